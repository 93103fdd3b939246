"""The state machine of a localisation: ``begin``, then ``next_round`` and ``record`` until there is a verdict.

Pure: the same state gives the same round. Whoever drives it keeps the state as JSON between rounds, measures what a
round asks for all at the same time, and records what came; what did not come is recorded as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from detectors.localise import grouptest
from detectors.localise.model import GroupResult, Outcome, Pair, PairResult, Round, Settings, State, Verdict, limit
from detectors.localise.rounds import Planner
from detectors.localise.standing import Standing, Status, crossings, fabric_pieces, stand
from detectors.localise.telling import tell
from detectors.localise.topology import OWN, Kind, Topology


def begin(
    topology: Topology,
    *,
    method: Literal["pairs", "groups"] = "pairs",
    known_good: Iterable[str] = (),
    suspects: Iterable[str] = (),
    settings: Settings | None = None,
) -> State:
    """A localisation before its first round.

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
        raise ValueError("a localisation needs two nodes at least")
    return State(
        topology=topology,
        method=method,
        known_good=tuple(sorted(set(known_good))),
        suspects=tuple(sorted(set(suspects))),
        settings=settings or Settings(),
    )


def next_round(state: State) -> Round | Verdict:
    """What to measure next, or the verdict when all is told, no round is left, or none would tell more."""
    if state.method == "groups":
        return grouptest.next_groups(state)
    standing = stand(state)
    wanted = set(state.suspects) or {host.name for host in state.topology.nodes}
    if state.round >= limit(state) or (state.results and _settled(standing, wanted)):
        return tell(state, standing, wanted)
    pairs = Planner(standing, state.settings, state.round, wanted).plan()
    if not pairs:
        return tell(state, standing, wanted)
    return Round(number=state.round + 1, pairs=pairs)


def record(state: State, results: Sequence[PairResult] | Sequence[GroupResult]) -> State:
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


def verdict(state: State) -> Verdict:
    """What can be said now, with rounds left or not."""
    if state.method == "groups":
        return grouptest.tell(state)
    return tell(state, stand(state), set(state.suspects) or {host.name for host in state.topology.nodes})


def missing(pair: Pair, note: str) -> PairResult:
    """The result of a pair of which nothing came."""
    return PairResult(a=pair.a, b=pair.b, via=pair.via, outcome=Outcome.MISSING, note=note)


def _settled(standing: Standing, wanted: set[str]) -> bool:
    """Whether every node is good, bad or away, every switch's cables are told, and GPUs are told from NICs."""
    places = [place for rail in standing.chart.rails() for place in rail if place.node in wanted]
    if any(standing.status(place) in {Status.UNKNOWN, Status.ACCUSED} for place in places):
        return False
    above = fabric_pieces(standing.chart)
    if wanted >= standing.chart.hosts.keys() and any(map(standing.open_above, above)):
        return False
    if any(piece.kind in OWN or piece.kind is Kind.PATH or above for piece in standing.suspects):
        return False
    return not any(crossings(standing.chart, seen.classes[piece], 0) for piece, seen in standing.named.items())
