"""State machine of a localization: ``start_localization``, then ``next_round`` and ``record`` until the verdict.

Pure: the same state gives the same round. Whoever drives it keeps the state as JSON between rounds, measures what a
round asks for all at the same time, and records what came; what did not come is recorded as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from mainstay.detectors.localize import group_testing
from mainstay.detectors.localize.model import (
    GroupResult,
    LocalizationConfig,
    LocalizationState,
    LocalizationVerdict,
    NodePair,
    PairOutcome,
    PairResult,
    Round,
    limit,
    wanted_nodes,
)
from mainstay.detectors.localize.rounds import RoundPlanner
from mainstay.detectors.localize.status import (
    ComponentStatus,
    LocalizationStatus,
    compute_status,
    crossings,
    fabric_pieces,
)
from mainstay.detectors.localize.topology import OWN, FabricComponentKind, FabricTopology
from mainstay.detectors.localize.verdict_text import build_verdict


def start_localization(
    topology: FabricTopology,
    *,
    method: Literal["pairs", "groups"] = "pairs",
    known_good: Iterable[str] = (),
    suspects: Iterable[str] = (),
    settings: LocalizationConfig | None = None,
) -> LocalizationState:
    """A fault localization before its first round.

    Args:
        topology: all nodes that may measure, partners included.
        method: ``pairs`` that are measured, or ``groups`` of a collective that passes or fails.
        known_good: nodes that passed a check of their own.
        suspects: nodes to be told about; empty: all.
        settings: how sure, how long.

    Raises:
        ValueError: a node is not in the topology, or there are fewer than two.
    """
    if len(topology.nodes) < 2:
        raise ValueError("a localization needs two nodes at least")
    return LocalizationState(
        topology=topology,
        method=method,
        known_good=tuple(sorted(set(known_good))),
        suspects=tuple(sorted(set(suspects))),
        settings=settings or LocalizationConfig(),
    )


def next_round(state: LocalizationState) -> Round | LocalizationVerdict:
    """What to measure next, or the verdict when all is known, no round is left, or none would tell more."""
    if state.method == "groups":
        return group_testing.next_groups(state)
    status = compute_status(state)
    wanted = set(wanted_nodes(state))
    if state.round >= limit(state) or (state.results and _settled(status, wanted)):
        return build_verdict(state, status, wanted)
    pairs = RoundPlanner(status, state.settings, state.round, wanted).plan()
    if not pairs:
        return build_verdict(state, status, wanted)
    return Round(number=state.round + 1, pairs=pairs)


def record(state: LocalizationState, results: Sequence[PairResult] | Sequence[GroupResult]) -> LocalizationState:
    """The state after a round. Call it once a round, with one result for each of its pairs or groups."""
    number = state.round + 1
    marked = [msgspec.structs.replace(result, round=number) for result in results]
    pairs = tuple(result for result in marked if isinstance(result, PairResult))
    groups = tuple(result for result in marked if isinstance(result, GroupResult))
    if (pairs and state.method != "pairs") or (groups and state.method != "groups"):
        raise ValueError(f"results of another method than {state.method!r}")
    return msgspec.structs.replace(
        state, round=number, results=(*state.results, *pairs), groups=(*state.groups, *groups)
    )


def verdict(state: LocalizationState) -> LocalizationVerdict:
    """What can be said now, with rounds left or not."""
    if state.method == "groups":
        return group_testing.build_verdict(state)
    return build_verdict(state, compute_status(state), set(wanted_nodes(state)))


def missing(pair: NodePair, note: str) -> PairResult:
    """The result of a pair of which nothing came."""
    return PairResult(a=pair.a, b=pair.b, via=pair.via, outcome=PairOutcome.MISSING, note=note)


def _settled(status: LocalizationStatus, wanted: set[str]) -> bool:
    """Whether every node is good, bad, or away, every switch's cables are known, and GPUs differ from NICs."""
    places = [place for rail in status.chart.rails() for place in rail if place.node in wanted]
    if any(status.status(place) in {ComponentStatus.UNKNOWN, ComponentStatus.ACCUSED} for place in places):
        return False
    above = fabric_pieces(status.chart)
    if wanted >= status.chart.hosts.keys() and any(map(status.open_above, above)):
        return False
    if any(piece.kind in OWN or piece.kind is FabricComponentKind.PATH or above for piece in status.suspects):
        return False
    return not any(crossings(status.chart, seen.classes[piece], 0) for piece, seen in status.named.items())
