"""Who measures with whom in a round.

In order: the accused with partners that are good (of those the known-good first), then the cables and uplinks of which
nothing is known, then the rest of the unknown, by the circle method within their leaf, so that a healthy fleet is known
in two rounds. Invariants: a NIC and a GPU have one transfer at a time, and no more transfers than ``flows`` go over one
cable between switches at once, or they would slow each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TypeVar

from mainstay.detectors.localize.model import LocalizationConfig, NodePair
from mainstay.detectors.localize.status import ComponentStatus, LocalizationStatus, crossings, ends, fabric_pieces
from mainstay.detectors.localize.topology import Component, Endpoint, FabricComponentKind

T = TypeVar("T")
CONTROLS = 6
"""Pairs of healthy nodes that are measured beside one whose GPU is not the one beside its NIC: what is usual there."""
ENOUGH_ALIKE = 3
"""Measurements of an accused place, after which more of the same would not tell its GPU from its NIC."""
REPEATS = 4
"""Times that two places may meet when there is no other."""


def circle(count: int, turn: int) -> list[tuple[int, int]]:
    """Round ``turn`` of a round-robin tournament by the circle method; with an odd count one has a bye.

    Every two of ``count`` meet once in ``count - 1`` turns (``count`` if odd).
    """
    positions = count + count % 2
    if positions < 2:
        return []
    rest = [1 + (position + turn) % (positions - 1) for position in range(positions - 1)]
    order = [0, *rest]
    pairs = [(order[position], order[positions - 1 - position]) for position in range(positions // 2)]
    return [(min(pair), max(pair)) for pair in pairs if max(pair) < count]


class RoundSlots:
    """What is taken in the round that is being planned."""

    def __init__(self, status: LocalizationStatus, flows: int, turn: int) -> None:
        self.chart = status.chart
        self.pairs: list[NodePair] = []
        self._suspects = status.suspects
        self._flows = flows
        self._turn = turn
        self._taken: set[tuple[str, str, str]] = set()
        self._load: Counter[Component] = Counter()

    def free(self, place: Endpoint) -> bool:
        gpu_taken = bool(place.gpu) and (place.node, "gpu", place.gpu) in self._taken
        return (place.node, "nic", place.nic) not in self._taken and not gpu_taken

    def via(self, a: Endpoint, b: Endpoint) -> str | None:
        """A spine with room for the transfer, empty where there is no choice; None: no room."""
        vias = _turned(list(self.chart.vias(a, b)), self._turn)
        leaves = (self.chart.leaf(a), self.chart.leaf(b))
        vias.sort(
            key=lambda via: any(Component(FabricComponentKind.CABLE, (leaf, via)) in self._suspects for leaf in leaves)
        )
        for via in vias or [""]:
            if self._room(a, b, via):
                return via
        return None

    def _room(self, a: Endpoint, b: Endpoint, via: str) -> bool:
        return all(self._load[piece] < self._flows for piece in self._narrow(a, b, via))

    def _narrow(self, a: Endpoint, b: Endpoint, via: str) -> list[Component]:
        """What transfers would share: the cables where the spine is known, else the whole uplink."""
        above = self.chart.above(a, b, via)
        wanted = (
            FabricComponentKind.CABLE
            if any(piece.kind is FabricComponentKind.CABLE for piece in above)
            else FabricComponentKind.UPLINK
        )
        return [piece for piece in above if piece.kind is wanted]

    def reserve_pair(self, a: Endpoint, b: Endpoint, via: str | None = None) -> bool:
        """Enter a pair, if there is room."""
        if a.node == b.node or not self.free(a) or not self.free(b):
            return False
        chosen = self.via(a, b) if via is None else via
        if chosen is None or not self._room(a, b, chosen):
            return False
        for place in (a, b):
            self._taken.add((place.node, "nic", place.nic))
            if place.gpu:
                self._taken.add((place.node, "gpu", place.gpu))
        self._load.update(self._narrow(a, b, chosen))
        self.pairs.append(NodePair(a=a, b=b, via=chosen))
        return True


class RoundPlanner:
    """One round, from where everybody stands."""

    def __init__(self, status: LocalizationStatus, settings: LocalizationConfig, turn: int, wanted: set[str]) -> None:
        self.status = status
        self.turn = turn
        self.wanted = wanted
        """Nodes to be told about."""
        self.lanes = RoundSlots(status, settings.flows, turn)
        self._crossed = 0
        self._rails: list[dict[Endpoint, ComponentStatus]] = [
            {place: state for place in rail if (state := status.status(place)) is not ComponentStatus.AWAY}
            for rail in status.chart.rails()
        ]

    def plan(self) -> tuple[NodePair, ...]:
        self._tell_apart()
        for rail in self._rails:
            for place in self._of(rail, ComponentStatus.ACCUSED):
                self._partner(place, rail)
        self._controls()
        for rail in self._rails:
            self._above(rail)
        for rail in self._rails:
            self._tournament(rail)
        return tuple(self.lanes.pairs)

    def _of(self, rail: dict[Endpoint, ComponentStatus], status: ComponentStatus) -> list[Endpoint]:
        wanted = [place for place, known in rail.items() if known is status and place.node in self.wanted]
        return _turned(wanted, self.turn)

    # a GPU and the NIC beside it: measure each with another

    def _tell_apart(self) -> None:
        found = [seen.classes[piece] for piece, seen in self.status.named.items()]
        suspects = self.status.suspects
        for rail in self._rails:
            for place in self._of(rail, ComponentStatus.ACCUSED):
                own = [p for p in self.status.chart.own(place) if p in suspects]
                if self.status.measured(place) >= ENOUGH_ALIKE:
                    found.append(tuple(own))
        for pieces in found:
            for place in crossings(self.status.chart, pieces, self.turn):
                self._crossed += self._partner(place, self._rail_of(place))

    def _controls(self) -> None:
        """Good nodes measured the same way: what is usual there."""
        goods = [place for rail in self._rails for place, known in rail.items() if known is ComponentStatus.GOOD]
        left = CONTROLS if self._crossed else 0
        for place in _turned(goods, self.turn):
            if left <= 0:
                return
            for other in crossings(self.status.chart, self.status.chart.own(place), self.turn)[:1]:
                left -= self._partner(other, self._rail_of(other))

    def _rail_of(self, place: Endpoint) -> dict[Endpoint, ComponentStatus]:
        return self._rails[self.status.chart.rail[place.node, place.nic]]

    # one place that needs a partner

    def _partner(self, place: Endpoint, rail: dict[Endpoint, ComponentStatus]) -> bool:
        """Enter the best free partner for a place."""
        if not self.lanes.free(place):
            return False
        candidates = [
            (self._rank(place, other, status), other)
            for other, status in _turned(list(rail.items()), self.turn)
            if other.node != place.node and self.lanes.free(other)
        ]
        ranked = sorted(((rank, other) for rank, other in candidates if rank is not None), key=lambda one: one[0])
        return any(self.lanes.reserve_pair(place, other) for _, other in ranked)

    def _rank(self, place: Endpoint, other: Endpoint, status: ComponentStatus) -> tuple[int, ...] | None:
        """How bad a partner is, in order of what matters; None: it would tell nothing.

        A switch in doubt is left out of the way, an uplink or cable in doubt too: by a partner under the same leaf,
        even one that is accused itself where the doubt is shared.
        """
        leaf = self.status.chart.leaf(place)
        same = self.status.chart.leaf(other) == leaf
        uplink = self._doubt(leaf)
        switch = Component(FabricComponentKind.SWITCH, (leaf,)) in self.status.suspects
        fit = [ComponentStatus.GOOD, ComponentStatus.UNKNOWN, *([ComponentStatus.ACCUSED] if same and uplink else [])]
        met = self.status.met[ends(place, other)]
        if status not in fit or met >= REPEATS:
            return None
        off = (not same) if uplink or not switch else same
        return (met, off and (uplink or switch), fit.index(status), off, other.node not in self.status.trusted)

    # what is between the leaves

    def _above(self, rail: dict[Endpoint, ComponentStatus]) -> None:
        """Cross once every uplink and cable of which nothing is known, those with suspicion against good ones."""
        by_leaf: dict[str, list[Endpoint]] = defaultdict(list)
        for place, status in rail.items():
            if status in {ComponentStatus.GOOD, ComponentStatus.UNKNOWN}:
                by_leaf[self.status.chart.leaf(place)].append(place)
        by_leaf.pop("", None)
        for members in by_leaf.values():
            members.sort(key=lambda p: (rail[p] is not ComponentStatus.GOOD, p.node not in self.status.trusted))
        leaves = sorted(by_leaf)
        needed = {leaf: self._needed(leaf) for leaf in leaves}
        order = [pair for shift in range(len(leaves)) for pair in circle(len(leaves), self.turn + shift)]
        order.sort(key=lambda pair: self._doubt(leaves[pair[0]]) + self._doubt(leaves[pair[1]]) > 1)
        for one, other in order:
            a, b = leaves[one], leaves[other]
            for via in sorted(needed[a] | needed[b]):
                if self.status.blocked(a, via) or self.status.blocked(b, via):
                    continue  # it would tell nothing
                if self._cross(by_leaf[a], by_leaf[b], via):
                    needed[a].discard(via)
                    needed[b].discard(via)

    def _needed(self, leaf: str) -> set[str]:
        """Spines to which the leaf's cable is unknown; ``""`` for the uplink as a whole."""
        chart, open_ = self.status.chart, self.status.open_above
        all_ = fabric_pieces(chart)
        uplink = Component(FabricComponentKind.UPLINK, (leaf,))
        if uplink not in all_:
            return set()
        spines = chart.topology.spines.get(leaf, ())
        unknown = {spine for spine in spines if open_(Component(FabricComponentKind.CABLE, (leaf, spine)))}
        if open_(uplink):
            return set(spines) if spines else {""}
        return unknown

    def _doubt(self, leaf: str) -> bool:
        return any(
            leaf in piece.name
            for piece in self.status.suspects
            if piece.kind in {FabricComponentKind.UPLINK, FabricComponentKind.CABLE}
        )

    def _cross(self, ones: Sequence[Endpoint], others: Sequence[Endpoint], via: str) -> bool:
        for a in ones:
            if not self.lanes.free(a):
                continue
            for b in others:
                fresh = not self.status.met[ends(a, b)]
                if fresh and self.lanes.free(b) and via in (self.status.chart.vias(a, b) or ("",)):
                    return self.lanes.reserve_pair(a, b, via)
        return False

    # everybody else

    def _tournament(self, rail: dict[Endpoint, ComponentStatus]) -> None:
        by_leaf: dict[str, list[Endpoint]] = defaultdict(list)
        for place, status in rail.items():
            if status is ComponentStatus.UNKNOWN and place.node in self.wanted and self.lanes.free(place):
                by_leaf[self.status.chart.leaf(place)].append(place)
        for members in by_leaf.values():
            left = list(members)
            if any(place.node in self.status.trusted for place in rail):
                left = [place for place in left if not self._with_trusted(place, rail)]
            for one, other in circle(len(left), self.turn):
                a, b = left[one], left[other]
                if not self.status.met[ends(a, b)]:
                    self.lanes.reserve_pair(a, b)
            for place in left:
                self._partner(place, rail)

    def _with_trusted(self, place: Endpoint, rail: dict[Endpoint, ComponentStatus]) -> bool:
        """Known-good partners first, in the same leaf."""
        if place.node in self.status.trusted:
            return False
        leaf = self.status.chart.leaf(place)
        partners = [
            other
            for other, status in rail.items()
            if other.node in self.status.trusted
            and status in {ComponentStatus.GOOD, ComponentStatus.UNKNOWN}
            and self.status.chart.leaf(other) == leaf
            and not self.status.met[ends(place, other)]
        ]
        return any(self.lanes.reserve_pair(place, other) for other in partners)


def _turned(items: list[T], turn: int) -> list[T]:
    at = turn % len(items) if items else 0
    return items[at:] + items[:at]
