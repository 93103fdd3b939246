"""A localisation's verdict as findings: who is bad, and which findings of earlier ones are over.

Invariant: one finding a culprit, keyed by the thing itself (node, node and NIC or GPU, or the switch, uplink, cable or
way between nodes), so that a second localisation feeds the first one's incident. Only what a verdict tells to be sound
is cleared: what it could not tell keeps its finding.
"""

from __future__ import annotations

import math
from typing import Final

from detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from detectors.localise.model import Culprit, Outcome, State, Verdict
from detectors.localise.standing import fabric_pieces
from detectors.localise.telling import words
from detectors.localise.topology import OWN, Kind, Map, Piece
from probes.benchmarks.defects import Defect
from probes.words import Remedy, Severity

NAME: Final = "localise"
_LONGEST: Final = 128
"""Characters of a device's name, as the store keeps them."""
_CAUSES: Final = {Kind.NIC: Cause.NIC, Kind.GPU: Cause.GPU_LINK, Kind.NODE: Cause.HOST}
SHOWN_BY: Final = {
    Cause.NIC: frozenset({Defect.FABRIC}),
    Cause.GPU_LINK: frozenset({Defect.HOST_LINK}),
    Cause.HOST: frozenset({Defect.FABRIC, Defect.HOST_LINK}),
}
"""Cause → classes of defect that a validation must have looked for to clear it; of what is between nodes there is none:
no check of one node passes it."""


def findings(verdict: Verdict, *, time: float) -> list[Finding]:
    """One for each culprit.

    Args:
        verdict: of a localisation.
        time: Unix seconds, when it was told.
    """
    return [_finding(culprit, verdict, time) for culprit in verdict.culprits]


def _finding(culprit: Culprit, verdict: Verdict, time: float) -> Finding:
    hangs = culprit.speed is None
    numbers = {
        "odds": round(culprit.odds, 2),
        "witnesses": float(len(culprit.evidence)),
        "rounds": float(verdict.rounds),
    }
    if culprit.speed is not None:
        numbers["slowdown"] = round(1.0 / culprit.speed - 1.0, 4)
    return Finding(
        kind=FindingKind.FAULT_LOCALISED,
        entity=entity(Piece(culprit.kind, culprit.name)),
        time=time,
        severity=Severity.CRITICAL if hangs else Severity.WARNING,
        detector=NAME,
        confidence=1.0 / (1.0 + math.exp(-min(culprit.odds, 700.0))),
        evidence=Evidence(summary=_summary(culprit), numbers=numbers),
        remedy=Remedy.INSPECT if hangs else Remedy.WATCH,
        cause=_CAUSES.get(culprit.kind, Cause.NETWORK),
    )


def _summary(culprit: Culprit) -> str:
    seen = [f"{w.a.node} - {w.b.node} {'hung' if w.ratio is None else f'{w.ratio:.0%}'}" for w in culprit.evidence[:3]]
    more = len(culprit.evidence) - len(seen)
    told = f" Pairs: {', '.join(seen)}{f' and {more} more' if more else ''}." if seen else ""
    return f"Localised: {culprit.summary}{told}"


def entity(piece: Piece) -> Entity:
    """What a finding about a piece is about."""
    if piece.kind in OWN:
        return Entity(node=piece.name[0], device=piece.name[1] if len(piece.name) > 1 else None)
    return Entity(device=between(piece))


def between(piece: Piece) -> str:
    """The name of what is between nodes: ``uplink leaf-1``, ``cable leaf-1/spine-2``."""
    return f"{piece.kind.value} {'/'.join(piece.name)}"[:_LONGEST]


def sound(state: State, verdict: Verdict) -> tuple[frozenset[str], frozenset[str]]:
    """What a verdict tells to be sound: nodes, and by ``between`` what is between them.

    A switch is sound when all uplinks and cables of it are; the way between two nodes when it was measured and all is
    told without it.
    """
    named = {Piece(c.kind, c.name) for c in verdict.culprits}
    open_ = set(verdict.unknown) | {other for c in verdict.culprits for other in c.also}
    chart = Map(state.topology)
    told = {p for p in fabric_pieces(chart) if p not in named and words(p) not in open_}
    judged = fabric_pieces(chart)
    for switch in {name for piece in judged for name in piece.name}:
        of_it = {piece for piece in judged if switch in piece.name}
        piece = Piece(Kind.SWITCH, (switch,))
        if of_it <= told and piece not in named and words(piece) not in open_:
            told.add(piece)
    good = frozenset(verdict.good)
    ways = (chart.way(r.a, r.b, r.via).pieces for r in state.results if r.outcome is Outcome.OK)
    paths = {piece for pieces in ways for piece in pieces if piece.kind is Kind.PATH}
    if verdict.settled:
        told |= paths - named
    return good, frozenset(between(piece) for piece in told)
