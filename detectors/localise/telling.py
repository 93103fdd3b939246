"""The verdict of a localisation in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from detectors.localise.model import Culprit, Evidence, Outcome, State, Verdict, some
from detectors.localise.standing import Standing, Status, fabric_pieces, own_pieces
from detectors.localise.topology import OWN, Kind, Piece, Place

SHOWN = 8
"""Measurements that a culprit's evidence lists: the slowest."""
_ORDER = (Kind.SWITCH, Kind.UPLINK, Kind.CABLE, Kind.NODE, Kind.NIC, Kind.GPU, Kind.PATH)
_ADVICE = {
    Kind.NIC: "swap its cable first, then the NIC",
    Kind.GPU: "check its PCIe link and the GPU",
    Kind.NODE: "take it out and run a full check",
    Kind.CABLE: "reseat or swap the cable between them",
    Kind.UPLINK: "look at the switch's upward ports and cables",
    Kind.SWITCH: "look at the switch",
    Kind.PATH: "look at the ports and cables between them",
}


def tell(state: State, standing: Standing, wanted: set[str]) -> Verdict:
    """Everything that is known, as a verdict."""
    culprits = sorted((_culprit(state, standing, piece) for piece in standing.named), key=lambda c: -c.odds)
    good, unknown = [], dict(_unknown_fabric(standing))
    for host in state.topology.nodes:
        if host.name not in wanted:
            continue
        states = [standing.status(place) for place in host.places()]
        if all(status is Status.GOOD for status in states):
            good.append(host.name)
        elif Status.BAD not in states:
            unknown[host.name] = _why(standing, host.name, states)
    noise = max((seen.cohort.noise for seen in standing.seen if seen.cohort.base), default=None)
    return Verdict(
        culprits=tuple(culprits),
        good=tuple(good),
        unknown=unknown,
        rounds=state.round,
        noise=noise,
        settled=not unknown and not any(c.also for c in culprits),
    )


def _unknown_fabric(standing: Standing) -> Iterator[tuple[str, str]]:
    for piece in sorted(p for p in standing.suspects if p.kind not in OWN):
        others = [words(other) for other in sorted(standing.suspects) if other != piece]
        yield (
            words(piece),
            f"a slow transfer passed it; it may also be {some(others)}" if others else "one slow transfer",
        )
    for piece in sorted(fabric_pieces(standing.chart) - standing.suspects):
        if standing.open_above(piece) and standing.seen:
            yield words(piece), "not measured often enough"


def _why(standing: Standing, node: str, states: list[Status]) -> str:
    if Status.AWAY in states:
        return "it does not answer"
    own = own_pieces(standing.chart, node)
    if Status.ACCUSED in states:
        others = sorted({piece for piece in standing.suspects if piece not in own and piece.kind is not Kind.PATH})
        return f"slow with partners; it may also be {some([words(p) for p in others])}" if others else "slow once"
    measured = any(node in {r.node for r in pair} for pair in _heard(standing))
    return "not measured often enough to tell" if measured else "not measured"


def _heard(standing: Standing) -> Iterator[tuple[Place, ...]]:
    for pair in standing.met:
        yield tuple(Place(node, nic) for node, nic in pair)


def _culprit(state: State, standing: Standing, piece: Piece) -> Culprit:
    seen = standing.named[piece]
    alike = sorted(seen.classes[piece], key=lambda p: _ORDER.index(p.kind))
    first = piece if piece.kind in {Kind.SWITCH, Kind.UPLINK} else _first(alike)
    showing = [one for one in standing.seen if piece in one.odds]
    shown = tuple(int(one.size) for one in showing)
    spared = tuple(int(one.size) for one in standing.seen if piece in one.cleared)
    level = min(one.level[piece] for one in showing)
    hung = level <= -5.0  # nearer to what hangs than to anything that ends
    evidence = tuple(_evidence(state, standing, piece))[:SHOWN]
    speed = None if hung else math.exp(level)
    also = tuple(words(other) for other in alike if other != first)
    return Culprit(
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


def _first(alike: list[Piece]) -> Piece:
    """Of the pieces that cannot be told apart: the node, if it stands for its NIC and GPU."""
    return next((piece for piece in alike if piece.kind is Kind.NODE), alike[0])


def _summary(
    piece: Piece,
    speed: float | None,
    shown: tuple[int, ...],
    spared: tuple[int, ...],
    *,
    also: tuple[str, ...],
    count: int,
) -> str:
    how = "transfers hang" if speed is None else f"{speed:.0%} of the usual speed"
    at = f" at {_sizes(shown)} (not at {_sizes(spared)})" if spared and shown else ""
    or_ = f", or {some(also)} (nothing measured tells them apart)" if also else ""
    seen = f"seen in {count} pairs" if count != 1 else "seen in one pair"
    text = f"{words(piece)}{or_}: {how}{at}, {seen}; {_ADVICE[piece.kind]}."
    return text[0].upper() + text[1:]


def _sizes(sizes: tuple[int, ...]) -> str:
    return ", ".join(_bytes(size) for size in sizes)


def _bytes(size: int) -> str:
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def _evidence(state: State, standing: Standing, piece: Piece) -> Iterator[Evidence]:
    """The measurements that passed it and were slow, the slowest first."""
    seen = standing.named[piece]
    used = [r for r in state.results if r.outcome is not Outcome.MISSING]
    found = []
    for residual, result in zip(seen.residual.tolist(), used, strict=True):
        passed = piece in standing.chart.way(result.a, result.b, result.via).pieces
        if passed and residual <= math.log1p(-state.settings.slower) / 2:
            ratio = None if result.outcome is Outcome.HUNG else round(math.exp(residual), 4)
            found.append((residual, Evidence(a=result.a, b=result.b, round=result.round, ratio=ratio)))
    for _, one in sorted(found, key=lambda pair: pair[0]):
        yield one


def words(piece: Piece) -> str:
    """A piece as people say it."""
    name = piece.name
    return {
        Kind.NODE: f"node {name[0]}",
        Kind.NIC: f"NIC {name[-1]} of {name[0]} (or its cable)",
        Kind.GPU: f"GPU {name[-1]} of {name[0]}",
        Kind.CABLE: f"the cable between {name[0]} and {name[-1]}",
        Kind.UPLINK: f"the uplinks of switch {name[0]}",
        Kind.SWITCH: f"switch {name[0]}",
        Kind.PATH: f"the way between {name[0]} and {name[-1]}",
    }[piece.kind]
