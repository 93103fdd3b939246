"""The verdict of a fault localization in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mainstay.detectors.finding import join_names
from mainstay.detectors.localize.model import (
    LocalizationState,
    LocalizationVerdict,
    LocalizedCulprit,
    PairEvidence,
    PairOutcome,
)
from mainstay.detectors.localize.status import ComponentStatus, LocalizationStatus, fabric_pieces, own_pieces
from mainstay.detectors.localize.topology import OWN, Component, FabricComponentKind

SHOWN = 8
"""Measurements that a culprit's evidence lists: the slowest."""
_ADVICE = {
    FabricComponentKind.SWITCH: "look at the switch",
    FabricComponentKind.UPLINK: "look at the switch's upward ports and cables",
    FabricComponentKind.CABLE: "plug in again or swap the cable between them",
    FabricComponentKind.NODE: "take it out and run a full check",
    FabricComponentKind.NIC: "swap its cable first, then the NIC",
    FabricComponentKind.GPU: "check its PCIe link and the GPU",
    FabricComponentKind.PATH: "look at the ports and cables between them",
}
_ORDER = tuple(_ADVICE)
"""Of pieces that cannot be told apart, the one that comes first here gives the name."""


def build_verdict(state: LocalizationState, status: LocalizationStatus, wanted: set[str]) -> LocalizationVerdict:
    """Everything that is known, as a verdict."""
    culprits = sorted((_culprit(state, status, piece) for piece in status.named), key=lambda c: -c.odds)
    good, unknown = [], dict(_unknown_fabric(status))
    for host in state.topology.nodes:
        if host.name not in wanted:
            continue
        states = [status.status(place) for place in host.places()]
        if all(status is ComponentStatus.GOOD for status in states):
            good.append(host.name)
        elif ComponentStatus.BAD not in states:
            unknown[host.name] = _why(status, host.name, states)
    noise = max((seen.cohort.noise for seen in status.seen if seen.cohort.base), default=None)
    return LocalizationVerdict(
        culprits=tuple(culprits),
        good=tuple(good),
        unknown=unknown,
        rounds=state.round,
        noise=noise,
        settled=not unknown and not any(c.also for c in culprits),
    )


def _unknown_fabric(status: LocalizationStatus) -> Iterator[tuple[str, str]]:
    for piece in sorted(p for p in status.suspects if p.kind not in OWN):
        others = [component_label(other) for other in sorted(status.suspects) if other != piece]
        yield (
            component_label(piece),
            f"a slow transfer passed it; it may also be {join_names(others)}" if others else "one slow transfer",
        )
    for piece in sorted(fabric_pieces(status.chart) - status.suspects):
        if status.open_above(piece) and status.seen:
            yield component_label(piece), "not measured often enough"


def _why(status: LocalizationStatus, node: str, states: list[ComponentStatus]) -> str:
    if ComponentStatus.AWAY in states:
        return "it does not answer"
    own = own_pieces(status.chart, node)
    if ComponentStatus.ACCUSED in states:
        others = sorted(
            {piece for piece in status.suspects if piece not in own and piece.kind is not FabricComponentKind.PATH}
        )
        return (
            f"slow with partners; it may also be {join_names([component_label(p) for p in others])}"
            if others
            else "slow once"
        )
    measured = any(node == name for pair in status.met for name, _ in pair)
    return "not measured often enough to tell" if measured else "not measured"


def _culprit(state: LocalizationState, status: LocalizationStatus, piece: Component) -> LocalizedCulprit:
    seen = status.named[piece]
    alike = sorted(seen.classes[piece], key=lambda p: _ORDER.index(p.kind))
    first = piece if piece.kind in {FabricComponentKind.SWITCH, FabricComponentKind.UPLINK} else _first(alike)
    showing = [one for one in status.seen if piece in one.odds]
    shown = tuple(int(one.size) for one in showing)
    spared = tuple(int(one.size) for one in status.seen if piece in one.cleared)
    level = min(one.level[piece] for one in showing)
    hung = level <= -5.0  # nearer to what hangs than to anything that ends
    evidence = tuple(_evidence(state, status, piece))[:SHOWN]
    speed = None if hung else math.exp(level)
    also = tuple(component_label(other) for other in alike if other != first)
    return LocalizedCulprit(
        kind=first.kind,
        name=first.name,
        nodes=(first.name[0],) if first.kind in OWN else (),
        also=also,
        speed=speed,
        sizes=shown if shown != (0,) else (),
        spared=spared,
        odds=seen.odds[piece],
        evidence=evidence,
        summary=_summary(first, speed, shown, spared, also=also, count=len(evidence)),
    )


def _first(alike: list[Component]) -> Component:
    """Of the pieces that cannot be told apart: the node, if it stands for its NIC and GPU."""
    return next((piece for piece in alike if piece.kind is FabricComponentKind.NODE), alike[0])


def _summary(
    piece: Component,
    speed: float | None,
    shown: tuple[int, ...],
    spared: tuple[int, ...],
    *,
    also: tuple[str, ...],
    count: int,
) -> str:
    how = "transfers hang" if speed is None else f"{speed:.0%} of the usual speed"
    at = f" at {_sizes(shown)} (not at {_sizes(spared)})" if spared and shown else ""
    or_ = f", or {join_names(also)} (nothing measured tells them apart)" if also else ""
    seen = f"seen in {count} pairs" if count != 1 else "seen in one pair"
    text = f"{component_label(piece)}{or_}: {how}{at}, {seen}; {_ADVICE[piece.kind]}."
    return text[0].upper() + text[1:]


def _sizes(sizes: tuple[int, ...]) -> str:
    return ", ".join(_bytes(size) for size in sizes)


def _bytes(size: int) -> str:
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def _evidence(state: LocalizationState, status: LocalizationStatus, piece: Component) -> Iterator[PairEvidence]:
    """The measurements that passed it and were slow, the slowest first."""
    seen = status.named[piece]
    used = [r for r in state.results if r.outcome is not PairOutcome.MISSING]
    found = []
    for residual, result in zip(seen.residual.tolist(), used, strict=True):
        passed = piece in status.chart.way(result.a, result.b, result.via).pieces
        if passed and residual <= math.log1p(-state.settings.slower) / 2:
            ratio = None if result.outcome is PairOutcome.HUNG else round(math.exp(residual), 4)
            found.append((residual, PairEvidence(a=result.a, b=result.b, round=result.round, ratio=ratio)))
    for _, one in sorted(found, key=lambda pair: pair[0]):
        yield one


def component_label(piece: Component) -> str:
    """A piece as people say it."""
    name = piece.name
    return {
        FabricComponentKind.NODE: f"node {name[0]}",
        FabricComponentKind.NIC: f"NIC {name[-1]} of {name[0]} (or its cable)",
        FabricComponentKind.GPU: f"GPU {name[-1]} of {name[0]}",
        FabricComponentKind.CABLE: f"the cable between {name[0]} and {name[-1]}",
        FabricComponentKind.UPLINK: f"the uplinks of switch {name[0]}",
        FabricComponentKind.SWITCH: f"switch {name[0]}",
        FabricComponentKind.PATH: f"the way between {name[0]} and {name[-1]}",
    }[piece.kind]
