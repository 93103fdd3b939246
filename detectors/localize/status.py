"""The status of every place after some rounds: all message sizes together, as the planner needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from mainstay.detectors.localize.inference import SizePosterior, infer_faults
from mainstay.detectors.localize.model import LocalizationState, PairOutcome
from mainstay.detectors.localize.topology import OWN, Component, Endpoint, FabricComponentKind, TopologyMap


class ComponentStatus(StrEnum):
    UNKNOWN = "unknown"
    ACCUSED = "accused"  # something slow passed it
    GOOD = "good"
    BAD = "bad"
    AWAY = "away"  # it does not answer


@dataclass(slots=True)
class LocalizationStatus:
    """What the next round is planned from, and the verdict told from."""

    chart: TopologyMap
    seen: list[SizePosterior]
    named: dict[Component, SizePosterior] = field(default_factory=dict)
    """Culprit → the size that shows it most."""
    suspects: set[Component] = field(default_factory=set)
    cleared: set[Component] = field(default_factory=set)
    """At every size."""
    met: Counter[frozenset[tuple[str, str]]] = field(default_factory=Counter)
    """Ends (node and NIC) that measured with each other → how often."""
    away: set[str] = field(default_factory=set)
    """Nodes that do not answer."""
    trusted: frozenset[str] = frozenset()
    """Nodes that passed a check of their own."""

    def status(self, place: Endpoint) -> ComponentStatus:
        if place.node in self.away:
            return ComponentStatus.AWAY
        own = self.chart.own(place)
        if any(piece in self.bad for piece in own):
            return ComponentStatus.BAD
        if any(piece in self.suspects for piece in own):
            return ComponentStatus.ACCUSED
        return ComponentStatus.GOOD if all(piece in self.cleared for piece in own) else ComponentStatus.UNKNOWN

    def measured(self, place: Endpoint) -> int:
        """How often this NIC was in a measurement."""
        return sum(count for pair, count in self.met.items() if (place.node, place.nic) in pair)

    @property
    def bad(self) -> set[Component]:
        """The named, and what cannot be told apart from them."""
        return {piece for culprit, seen in self.named.items() for piece in seen.classes[culprit]}

    def open_above(self, piece: Component) -> bool:
        """Whether a piece between nodes is neither named nor cleared, nor hidden behind a named uplink."""
        hidden = (
            piece.kind is FabricComponentKind.CABLE
            and Component(FabricComponentKind.UPLINK, piece.name[:1]) in self.bad
        )
        return piece not in self.cleared and piece not in self.bad and not hidden

    def blocked(self, leaf: str, via: str) -> bool:
        """Whether what is named already slows all that leaves the leaf by this spine."""
        known = (
            Component(FabricComponentKind.UPLINK, (leaf,)),
            Component(FabricComponentKind.CABLE, (leaf, via)),
            Component(FabricComponentKind.SWITCH, (via,)),
        )
        return any(piece in self.bad for piece in known)


def compute_status(state: LocalizationState) -> LocalizationStatus:
    """Judge everything that is known."""
    chart = TopologyMap(state.topology)
    seen = infer_faults(chart, state.results, state.settings, state.known_good)
    status = LocalizationStatus(chart=chart, seen=seen, trusted=frozenset(state.known_good), away=_away(state))
    for one in seen:
        status.suspects |= one.suspects
        for piece, odds in one.odds.items():
            best = status.named.get(piece)
            if best is None or odds > best.odds[piece]:
                status.named[piece] = one
    _merge(status)
    if seen:
        status.cleared = set.intersection(*(one.cleared for one in seen))
    broken = {piece.name[0] for piece in status.bad if piece.kind in OWN}
    status.suspects = {p for p in status.suspects - status.bad if p.kind not in OWN or p.name[0] not in broken}
    for result in state.results:
        if result.outcome is not PairOutcome.MISSING:
            status.met[ends(result.a, result.b)] += 1
    return status


def _merge(status: LocalizationStatus) -> None:
    """One name for one thing: sizes may have picked different members of the same class."""
    chosen: dict[frozenset[Component], Component] = {}
    for piece, seen in sorted(status.named.items(), key=lambda item: -item[1].odds[item[0]]):
        key = frozenset(seen.classes[piece])
        if key in chosen:
            del status.named[piece]
        chosen.setdefault(key, piece)


def ends(a: Endpoint, b: Endpoint) -> frozenset[tuple[str, str]]:
    return frozenset({(a.node, a.nic), (b.node, b.nic)})


def _away(state: LocalizationState) -> set[str]:
    """Nodes of which answers were missing again and again, with partners that answered others."""
    missed: Counter[str] = Counter()
    heard: set[str] = set()
    for result in state.results:
        for node in (result.a.node, result.b.node):
            if result.outcome is PairOutcome.MISSING:
                missed[node] += 1
            else:
                heard.add(node)
    return {node for node, count in missed.items() if node not in heard and count >= state.settings.tries}


def fabric_pieces(chart: TopologyMap) -> set[Component]:
    """Everything between the nodes that can be judged: with a single leaf there is nothing to compare it with."""
    leaves: dict[str, tuple[str, ...]] = {}
    for host in chart.topology.nodes:
        for nic in host.nics:
            if nic.switches:
                leaves[nic.switches[0]] = nic.switches
    if len(leaves) < 3:  # of two, nothing that passes one uplink passes the other not
        return set()
    found: set[Component] = set()
    for leaf in leaves:
        found.add(Component(FabricComponentKind.UPLINK, (leaf,)))
        found |= {Component(FabricComponentKind.CABLE, (leaf, spine)) for spine in chart.topology.spines.get(leaf, ())}
    return found


def own_pieces(chart: TopologyMap, node: str) -> set[Component]:
    return {piece for place in chart.hosts[node].places() for piece in chart.own(place) if piece.kind in OWN}


def crossings(chart: TopologyMap, pieces: Iterable[Component], turn: int) -> list[Endpoint]:
    """The NIC with another GPU, and the GPU with another NIC, where pieces hold both of one node and others exist."""
    nic = next((piece.name for piece in pieces if piece.kind is FabricComponentKind.NIC), None)
    gpu = next((piece.name for piece in pieces if piece.kind is FabricComponentKind.GPU), None)
    if nic is None or gpu is None:
        return []
    host = chart.hosts[nic[0]]
    gpus = [name for name in host.gpus if name != gpu[1]]
    nics = [one.name for one in host.nics if one.name != nic[1]]
    found = [Endpoint(host.name, nic[1], gpus[turn % len(gpus)])] if gpus else []
    return found + ([Endpoint(host.name, nics[turn % len(nics)], gpu[1])] if nics else [])
