"""State machine of a localization: ``start_localization``, then ``next_round`` and ``record`` until the verdict.

Pure: the same state gives the same round. Whoever drives it keeps the state as JSON between rounds, measures what a
round asks for all at the same time, and records what came; what did not come is recorded as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from mainstay.detectors.localize.model import (
    LocalizationConfig,
    LocalizationState,
    LocalizationVerdict,
    NodePair,
    PairOutcome,
    PairResult,
    Round,
    limit,
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
    known_good: Iterable[str] = (),
    suspects: Iterable[str] = (),
    settings: LocalizationConfig | None = None,
) -> LocalizationState:
    """A fault localization before its first round.

    Args:
        topology: all nodes that may measure, partners included.
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
        known_good=tuple(sorted(set(known_good))),
        suspects=tuple(sorted(set(suspects))),
        settings=settings or LocalizationConfig(),
    )


def next_round(state: LocalizationState) -> Round | LocalizationVerdict:
    """What to measure next, or the verdict when all is known, no round is left, or none would tell more."""
    status = compute_status(state)
    wanted = set(state.suspects) or {host.name for host in state.topology.nodes}
    if state.round >= limit(state) or (state.results and _settled(status, wanted)):
        return build_verdict(state, status, wanted)
    pairs = RoundPlanner(status, state.settings, state.round, wanted).plan()
    if not pairs:
        return build_verdict(state, status, wanted)
    return Round(number=state.round + 1, pairs=pairs)


def record(state: LocalizationState, results: Sequence[PairResult]) -> LocalizationState:
    """The state after a round. Call it once a round, with one result for each of its pairs."""
    number = state.round + 1
    marked = (msgspec.structs.replace(result, round=number) for result in results)
    return msgspec.structs.replace(state, round=number, results=(*state.results, *marked))


def verdict(state: LocalizationState) -> LocalizationVerdict:
    """What can be said now, with rounds left or not."""
    return build_verdict(
        state, compute_status(state), set(state.suspects) or {host.name for host in state.topology.nodes}
    )


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
