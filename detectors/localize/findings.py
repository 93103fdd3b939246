"""The verdict of a fault localization as findings: which components are bad, and which earlier findings end.

Invariant: one finding a culprit, keyed by the thing itself (node, node and NIC or GPU, or the switch, uplink, cable or
way between nodes), so that a second localization feeds the first one's incident. Only what a verdict shows to be sound
is cleared: what it could not tell keeps its finding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.localize.model import LocalizationState, LocalizationVerdict, LocalizedCulprit, PairOutcome
from mainstay.detectors.localize.status import fabric_pieces
from mainstay.detectors.localize.topology import OWN, Component, FabricComponentKind, TopologyMap
from mainstay.detectors.localize.verdict_text import component_label
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.core_types import RecommendedAction, Severity

NAME: Final = "localize"
_LONGEST: Final = 128
"""Characters of a device's name, as the store keeps them."""
_CAUSES: Final = {
    FabricComponentKind.NIC: Cause.NIC,
    FabricComponentKind.GPU: Cause.GPU_LINK,
    FabricComponentKind.NODE: Cause.HOST,
}
SHOWN_BY: Final = {
    Cause.NIC: frozenset({Defect.FABRIC}),
    Cause.GPU_LINK: frozenset({Defect.HOST_LINK}),
    Cause.HOST: frozenset({Defect.FABRIC, Defect.HOST_LINK}),
}
"""Cause → classes of defect that a validation must have looked for to clear it; of what is between nodes there is none:
no check of one node passes it."""


def findings(verdict: LocalizationVerdict, *, time: float) -> list[Finding]:
    """One for each culprit.

    Args:
        verdict: of a fault localization.
        time: Unix seconds, when it was told.
    """
    return [_finding(culprit, verdict, time) for culprit in verdict.culprits]


def _finding(culprit: LocalizedCulprit, verdict: LocalizationVerdict, time: float) -> Finding:
    hangs = culprit.speed is None
    numbers = {
        "odds": round(culprit.odds, 2),
        "witnesses": float(len(culprit.evidence)),
        "rounds": float(verdict.rounds),
    }
    if culprit.speed is not None:
        numbers["slowdown"] = round(1.0 / culprit.speed - 1.0, 4)
    return Finding(
        kind=FindingKind.FAULT_LOCALIZED,
        entity=entity(Component(culprit.kind, culprit.name)),
        time=time,
        severity=Severity.CRITICAL if hangs else Severity.WARNING,
        detector=NAME,
        confidence=1.0 / (1.0 + math.exp(-min(culprit.odds, 700.0))),
        evidence=Evidence(summary=_summary(culprit), numbers=numbers),
        recommended_action=RecommendedAction.INSPECT_NODE if hangs else RecommendedAction.MONITOR,
        cause=_CAUSES.get(culprit.kind, Cause.NETWORK),
    )


def _summary(culprit: LocalizedCulprit) -> str:
    seen = [f"{w.a.node} - {w.b.node} {'hung' if w.ratio is None else f'{w.ratio:.0%}'}" for w in culprit.evidence[:3]]
    more = len(culprit.evidence) - len(seen)
    told = f" Pairs: {', '.join(seen)}{f' and {more} more' if more else ''}." if seen else ""
    return f"Localized: {culprit.summary}{told}"


def entity(piece: Component) -> Entity:
    """What a finding about a piece is about."""
    if piece.kind in OWN:
        return Entity(node=piece.name[0], device=piece.name[1] if len(piece.name) > 1 else None)
    return Entity(device=between(piece))


def between(piece: Component) -> str:
    """The name of what is between nodes: ``uplink leaf-1``, ``cable leaf-1/spine-2``."""
    return f"{piece.kind.value} {'/'.join(piece.name)}"[:_LONGEST]


def sound(state: LocalizationState, verdict: LocalizationVerdict) -> tuple[frozenset[str], frozenset[str]]:
    """What a verdict tells to be sound: nodes, and by ``between`` what is between them.

    A switch is sound when all uplinks and cables of it are; the way between two nodes when it was measured and all is
    told without it.
    """
    named = {Component(c.kind, c.name) for c in verdict.culprits}
    open_ = set(verdict.unknown) | {other for c in verdict.culprits for other in c.also}
    chart = TopologyMap(state.topology)
    judged = fabric_pieces(chart)
    doubted = {piece for piece in judged | set(_switches(judged)) if piece in named or component_label(piece) in open_}
    told = judged - doubted
    told |= {switch for switch, of_it in _switches(judged).items() if of_it <= told and switch not in doubted}
    if verdict.settled:
        told |= _measured_paths(state, chart) - named
    return frozenset(verdict.good), frozenset(between(piece) for piece in told)


def _measured_paths(state: LocalizationState, chart: TopologyMap) -> set[Component]:
    ways = (chart.way(r.a, r.b, r.via).pieces for r in state.results if r.outcome is PairOutcome.OK)
    return {piece for pieces in ways for piece in pieces if piece.kind is FabricComponentKind.PATH}


def _switches(judged: set[Component]) -> dict[Component, set[Component]]:
    """Each switch with its uplinks and cables."""
    of_it: dict[Component, set[Component]] = defaultdict(set)
    for piece in judged:
        for name in piece.name:
            of_it[Component(FabricComponentKind.SWITCH, (name,))].add(piece)
    return of_it
