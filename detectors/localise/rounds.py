"""Who measures with whom in a round.

In order: the accused with partners that are good (of those the known-good first), then the cables and uplinks of which
nothing is known, then the rest of the unknown, by the circle method within their leaf, so that a healthy fleet is told
in two rounds. Invariants: a NIC and a GPU have one transfer at a time, and no more transfers than ``flows`` go over one
cable between switches at once, or they would slow each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TypeVar

from detectors.localise.model import Pair, Settings
from detectors.localise.standing import Standing, Status, crossings, ends, fabric_pieces
from detectors.localise.topology import Kind, Piece, Place

T = TypeVar("T")
CONTROLS = 6
"""Pairs of healthy nodes that are measured beside one whose GPU is not the one beside its NIC: what is usual there."""
ENOUGH_ALIKE = 3
"""Measurements of an accused place, after which more of the same would not tell its GPU from its NIC."""
REPEATS = 4
"""Times that two places may meet when there is nobody else."""


def circle(count: int, turn: int) -> list[tuple[int, int]]:
    """Round ``turn`` of a round-robin tournament by the circle method; with an odd count one has a bye.

    Every two of ``count`` meet once in ``count - 1`` turns (``count`` if odd).
    """
    seats = count + count % 2
    if seats < 2:
        return []
    rest = [1 + (seat + turn) % (seats - 1) for seat in range(seats - 1)]
    order = [0, *rest]
    pairs = [(order[seat], order[seats - 1 - seat]) for seat in range(seats // 2)]
    return [(min(pair), max(pair)) for pair in pairs if max(pair) < count]


class Lanes:
    """What is taken in the round that is being planned."""

    def __init__(self, standing: Standing, flows: int, turn: int) -> None:
        self.chart = standing.chart
        self.pairs: list[Pair] = []
        self._suspects = standing.suspects
        self._flows = flows
        self._turn = turn
        self._taken: set[tuple[str, str, str]] = set()
        self._load: Counter[Piece] = Counter()

    def free(self, place: Place) -> bool:
        gpu_taken = bool(place.gpu) and (place.node, "gpu", place.gpu) in self._taken
        return (place.node, "nic", place.nic) not in self._taken and not gpu_taken

    def via(self, a: Place, b: Place) -> str | None:
        """A spine with room for the transfer, empty where there is no choice; None: no room."""
        vias = _turned(list(self.chart.vias(a, b)), self._turn)
        leaves = (self.chart.leaf(a), self.chart.leaf(b))
        vias.sort(key=lambda via: any(Piece(Kind.CABLE, (leaf, via)) in self._suspects for leaf in leaves))
        for via in vias or [""]:
            if self._room(a, b, via):
                return via
        return None

    def _room(self, a: Place, b: Place, via: str) -> bool:
        return all(self._load[piece] < self._flows for piece in self._narrow(a, b, via))

    def _narrow(self, a: Place, b: Place, via: str) -> list[Piece]:
        """What transfers would share: the cables where the spine is known, else the whole uplink."""
        above = self.chart.above(a, b, via)
        wanted = Kind.CABLE if any(piece.kind is Kind.CABLE for piece in above) else Kind.UPLINK
        return [piece for piece in above if piece.kind is wanted]

    def take(self, a: Place, b: Place, via: str | None = None) -> bool:
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
        self.pairs.append(Pair(a=a, b=b, via=chosen))
        return True


class Planner:
    """One round, from where everybody stands."""

    def __init__(self, standing: Standing, settings: Settings, turn: int, wanted: set[str]) -> None:
        self.standing = standing
        self.turn = turn
        self.wanted = wanted
        """Nodes to be told about."""
        self.lanes = Lanes(standing, settings.flows, turn)
        self._crossed = 0
        self._rails: list[dict[Place, Status]] = [
            {place: status for place in rail if (status := standing.status(place)) is not Status.AWAY}
            for rail in standing.chart.rails()
        ]

    def plan(self) -> tuple[Pair, ...]:
        self._tell_apart()
        for rail in self._rails:
            for place in self._of(rail, Status.ACCUSED):
                self._partner(place, rail)
        self._controls()
        for rail in self._rails:
            self._above(rail)
        for rail in self._rails:
            self._tournament(rail)
        return tuple(self.lanes.pairs)

    def _of(self, rail: dict[Place, Status], status: Status) -> list[Place]:
        wanted = [place for place, known in rail.items() if known is status and place.node in self.wanted]
        return _turned(wanted, self.turn)

    # a GPU and the NIC beside it: measure each with another

    def _tell_apart(self) -> None:
        found = [seen.classes[piece] for piece, seen in self.standing.named.items()]
        suspects = self.standing.suspects
        for rail in self._rails:
            for place in self._of(rail, Status.ACCUSED):
                own = [p for p in self.standing.chart.own(place) if p in suspects]
                if self.standing.measured(place) >= ENOUGH_ALIKE:
                    found.append(tuple(own))
        for pieces in found:
            for place in crossings(self.standing.chart, pieces, self.turn):
                self._crossed += self._partner(place, self._rail_of(place))

    def _controls(self) -> None:
        """Good nodes measured the same way: what is usual there."""
        goods = [place for rail in self._rails for place, known in rail.items() if known is Status.GOOD]
        left = CONTROLS if self._crossed else 0
        for place in _turned(goods, self.turn):
            if left <= 0:
                return
            for other in crossings(self.standing.chart, self.standing.chart.own(place), self.turn)[:1]:
                left -= self._partner(other, self._rail_of(other))

    def _rail_of(self, place: Place) -> dict[Place, Status]:
        return self._rails[self.standing.chart.rail[place.node, place.nic]]

    # one place that needs a partner

    def _partner(self, place: Place, rail: dict[Place, Status]) -> bool:
        """Enter the best free partner for a place."""
        if not self.lanes.free(place):
            return False
        candidates = [
            (self._rank(place, other, status), other)
            for other, status in _turned(list(rail.items()), self.turn)
            if other.node != place.node and self.lanes.free(other)
        ]
        ranked = sorted(((rank, other) for rank, other in candidates if rank is not None), key=lambda one: one[0])
        return any(self.lanes.take(place, other) for _, other in ranked)

    def _rank(self, place: Place, other: Place, status: Status) -> tuple[int, ...] | None:
        """How bad a partner is, in order of what matters; None: it would tell nothing.

        A switch in doubt is left out of the way, an uplink or cable in doubt too: by a partner under the same leaf,
        even one that is accused itself where the doubt is shared.
        """
        leaf = self.standing.chart.leaf(place)
        same = self.standing.chart.leaf(other) == leaf
        uplink = self._doubt(leaf)
        switch = Piece(Kind.SWITCH, (leaf,)) in self.standing.suspects
        fit = [Status.GOOD, Status.UNKNOWN, *([Status.ACCUSED] if same and uplink else [])]
        met = self.standing.met[ends(place, other)]
        if status not in fit or met >= REPEATS:
            return None
        off = (not same) if uplink or not switch else same
        return (met, off and (uplink or switch), fit.index(status), off, other.node not in self.standing.trusted)

    # what is between the leaves

    def _above(self, rail: dict[Place, Status]) -> None:
        """Cross once every uplink and cable of which nothing is known, those with suspicion against good ones."""
        by_leaf: dict[str, list[Place]] = defaultdict(list)
        for place, status in rail.items():
            if status in {Status.GOOD, Status.UNKNOWN}:
                by_leaf[self.standing.chart.leaf(place)].append(place)
        by_leaf.pop("", None)
        for members in by_leaf.values():
            members.sort(key=lambda p: (rail[p] is not Status.GOOD, p.node not in self.standing.trusted))
        leaves = sorted(by_leaf)
        needed = {leaf: self._needed(leaf) for leaf in leaves}
        order = [pair for shift in range(len(leaves)) for pair in circle(len(leaves), self.turn + shift)]
        order.sort(key=lambda pair: self._doubt(leaves[pair[0]]) + self._doubt(leaves[pair[1]]) > 1)
        for one, other in order:
            a, b = leaves[one], leaves[other]
            for via in sorted(needed[a] | needed[b]):
                if self.standing.blocked(a, via) or self.standing.blocked(b, via):
                    continue  # it would tell nothing
                if self._cross(by_leaf[a], by_leaf[b], via):
                    needed[a].discard(via)
                    needed[b].discard(via)

    def _needed(self, leaf: str) -> set[str]:
        """Spines to which the leaf's cable is unknown; ``""`` for the uplink as a whole."""
        chart, open_ = self.standing.chart, self.standing.open_above
        all_ = fabric_pieces(chart)
        uplink = Piece(Kind.UPLINK, (leaf,))
        if uplink not in all_:
            return set()
        spines = chart.topology.spines.get(leaf, ())
        unknown = {spine for spine in spines if open_(Piece(Kind.CABLE, (leaf, spine)))}
        if open_(uplink):
            return set(spines) if spines else {""}
        return unknown

    def _doubt(self, leaf: str) -> bool:
        return any(leaf in piece.name for piece in self.standing.suspects if piece.kind in {Kind.UPLINK, Kind.CABLE})

    def _cross(self, ones: Sequence[Place], others: Sequence[Place], via: str) -> bool:
        for a in ones:
            if not self.lanes.free(a):
                continue
            for b in others:
                fresh = not self.standing.met[ends(a, b)]
                if fresh and self.lanes.free(b) and via in (self.standing.chart.vias(a, b) or ("",)):
                    return self.lanes.take(a, b, via)
        return False

    # everybody else

    def _tournament(self, rail: dict[Place, Status]) -> None:
        by_leaf: dict[str, list[Place]] = defaultdict(list)
        for place, status in rail.items():
            if status is Status.UNKNOWN and place.node in self.wanted and self.lanes.free(place):
                by_leaf[self.standing.chart.leaf(place)].append(place)
        for members in by_leaf.values():
            left = list(members)
            if any(place.node in self.standing.trusted for place in rail):
                left = [place for place in left if not self._with_trusted(place, rail)]
            for one, other in circle(len(left), self.turn):
                a, b = left[one], left[other]
                if not self.standing.met[ends(a, b)]:
                    self.lanes.take(a, b)
            for place in left:
                self._partner(place, rail)

    def _with_trusted(self, place: Place, rail: dict[Place, Status]) -> bool:
        """Known-good partners first, in the same leaf."""
        if place.node in self.standing.trusted:
            return False
        leaf = self.standing.chart.leaf(place)
        partners = [
            other
            for other, status in rail.items()
            if other.node in self.standing.trusted
            and status in {Status.GOOD, Status.UNKNOWN}
            and self.standing.chart.leaf(other) == leaf
            and not self.standing.met[ends(place, other)]
        ]
        return any(self.lanes.take(place, other) for other in partners)


def _turned(items: list[T], turn: int) -> list[T]:
    at = turn % len(items) if items else 0
    return items[at:] + items[:at]
