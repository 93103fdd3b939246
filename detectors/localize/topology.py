"""What a transfer between two nodes passes: their GPUs and NICs, the switches between them, the cables that join these.

A *place* is where a transfer begins or ends: a node, by one of its NICs, from the memory of one of its GPUs. A *piece*
is anything on the way that may be bad. Invariant: a piece is listed for a transfer only if the transfer certainly
passes it; where it is unknown which of several spines a transfer took, no spine is on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec


class FabricComponentKind(StrEnum):
    """Kinds of parts that are exchanged in a repair."""

    NODE = "node"  # the host: all that its NICs and GPUs share
    NIC = "nic"  # with its port and the cable to the switch: no transfer tells these apart
    GPU = "gpu"
    CABLE = "cable"  # between two switches
    UPLINK = "uplink"  # all that leads from a switch to those above it
    SWITCH = "switch"
    PATH = "path"  # what only transfers of this one pair pass


OWN = frozenset({FabricComponentKind.NODE, FabricComponentKind.NIC, FabricComponentKind.GPU})
"""Pieces that belong to one node."""


class Component(NamedTuple):
    """Something on the way that may be bad."""

    kind: FabricComponentKind
    name: tuple[str, ...]
    """``(node,)``, ``(node, nic)``, ``(node, gpu)``, ``(lower switch, upper switch)``, ``(switch,)`` or two nodes."""


class Endpoint(msgspec.Struct, frozen=True, order=True):
    """Where a transfer begins or ends. An empty ``nic`` or ``gpu``: the node's usual one, not specified."""

    node: str
    nic: str = ""
    gpu: str = ""


class Nic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    switches: tuple[str, ...] = ()
    """Above it, nearest first; empty: unknown."""


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    nics: tuple[Nic, ...] = (Nic(),)
    gpus: tuple[str, ...] = ()
    """The GPU beside each NIC, in the NICs' order; empty: transfers are not told apart by GPU."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a node needs a name")
        if not self.nics:
            raise ValueError(f"node {self.name}: nics is empty; leave it out where the NICs have no names")
        for what, names in (("NIC", [nic.name for nic in self.nics]), ("GPU", list(self.gpus))):
            if len(set(names)) != len(names) or (len(names) > 1 and "" in names):
                raise ValueError(f"node {self.name}: {what} names must differ and not be empty: {names}")
        if self.gpus and len(self.gpus) < len(self.nics):
            raise ValueError(f"node {self.name}: {len(self.nics)} NICs but {len(self.gpus)} GPUs: name one beside each")

    def places(self) -> tuple[Endpoint, ...]:
        """One a NIC, with the GPU beside it."""
        gpus = self.gpus or ("",) * len(self.nics)
        return tuple(Endpoint(self.name, nic.name, gpu) for nic, gpu in zip(self.nics, gpus, strict=False))


class FabricTopology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The nodes of one fault localization, and what is above them. JSON both ways.

    Raises:
        ValueError: two nodes have one name.
    """

    nodes: tuple[Host, ...]
    spines: dict[str, tuple[str, ...]] = {}
    """Leaf switch → the switches straight above it among which a transfer takes one. A leaf that is not listed has the
    one that its NICs' ``switches`` name."""

    def __post_init__(self) -> None:
        names = [host.name for host in self.nodes]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise ValueError(f"node {twice} stands twice in the topology")


def flat(names: Sequence[str], switches: Mapping[str, Sequence[str]] | None = None) -> FabricTopology:
    """Nodes with one NIC each; ``switches`` are those above a node, nearest first, as nodes report them."""
    above = switches or {}
    return FabricTopology(
        nodes=tuple(Host(name=name, nics=(Nic(switches=tuple(above.get(name, ()))),)) for name in dict.fromkeys(names))
    )


class Path(NamedTuple):
    """How a transfer goes."""

    pieces: tuple[Component, ...]
    group: tuple[int, bool]
    """Transfers of one group are alike when healthy: as many switches, and GPUs beside their NICs or not."""


class TopologyMap:
    """A topology, ready to be asked."""

    def __init__(self, topology: FabricTopology) -> None:
        self.topology = topology
        self.hosts = {host.name: host for host in topology.nodes}
        self.switches = {(host.name, nic.name): nic.switches for host in topology.nodes for nic in host.nics}
        self.rail = {(host.name, nic.name): rail for host in topology.nodes for rail, nic in enumerate(host.nics)}
        self._beside = {place.node + "\0" + place.nic: place.gpu for host in topology.nodes for place in host.places()}

    def rails(self) -> list[list[Endpoint]]:
        """All usual places by the number of their NIC: those of one rail measure with each other."""
        found: list[list[Endpoint]] = []
        for host in self.topology.nodes:
            for rail, place in enumerate(host.places()):
                if rail == len(found):
                    found.append([])
                found[rail].append(place)
        return found

    def leaf(self, place: Endpoint) -> str:
        """The switch right above; empty where it is unknown."""
        above = self.switches.get((place.node, place.nic), ())
        return above[0] if above else ""

    def vias(self, a: Endpoint, b: Endpoint) -> tuple[str, ...]:
        """Spines over which a transfer may go; empty within a leaf, or where there is nothing to choose."""
        one, other = self.leaf(a), self.leaf(b)
        if one == other or one not in self.topology.spines:
            return ()
        return tuple(spine for spine in self.topology.spines[one] if spine in self.topology.spines.get(other, ()))

    def above(self, a: Endpoint, b: Endpoint, via: str) -> list[Component]:
        """Cables, uplinks and switches on the way."""
        chains = self.switches.get((a.node, a.nic), ()), self.switches.get((b.node, b.nic), ())
        if not all(chains):
            return []
        (one, other) = (chain[0] for chain in chains)
        if one == other:
            return [Component(FabricComponentKind.SWITCH, (one,))]
        if one in self.topology.spines or other in self.topology.spines:
            return self._over(one, other, via)
        return self._climb(*chains)

    def _over(self, one: str, other: str, via: str) -> list[Component]:
        found = [
            Component(kind, (leaf,))
            for leaf in (one, other)
            for kind in (FabricComponentKind.SWITCH, FabricComponentKind.UPLINK)
        ]
        if via:
            found += [Component(FabricComponentKind.CABLE, (leaf, via)) for leaf in (one, other)]
            found.append(Component(FabricComponentKind.SWITCH, (via,)))
        return found

    def _climb(self, up: tuple[str, ...], down: tuple[str, ...]) -> list[Component]:
        """Where each switch has one above it: up to the first that both have."""
        turn = next((switch for switch in up if switch in down), None)
        sides = [chain if turn is None else chain[: chain.index(turn)] for chain in (up, down)]
        found = [
            Component(kind, (s,))
            for side in sides
            for s in side
            for kind in (FabricComponentKind.SWITCH, FabricComponentKind.UPLINK)
        ]
        return found if turn is None else [*found, Component(FabricComponentKind.SWITCH, (turn,))]

    def own(self, place: Endpoint) -> list[Component]:
        """The pieces of the node itself at this place."""
        found = [Component(FabricComponentKind.NODE, (place.node,))]
        if place.nic:
            found.append(Component(FabricComponentKind.NIC, (place.node, place.nic)))
        if place.gpu:
            found.append(Component(FabricComponentKind.GPU, (place.node, place.gpu)))
        return found

    def crossed(self, place: Endpoint) -> bool:
        """Whether the GPU is not the one beside the NIC."""
        return bool(place.gpu) and self._beside.get(place.node + "\0" + place.nic) != place.gpu

    def way(self, a: Endpoint, b: Endpoint, via: str = "") -> Path:
        """Everything that a transfer between two places passes.

        Raises:
            ValueError: a place has no node or NIC of the topology.
        """
        for place in (a, b):
            if (place.node, place.nic) not in self.switches:
                known = self.hosts.get(place.node)
                what = f"no node {place.node!r}" if known is None else f"no NIC {place.nic!r} of node {place.node}"
                raise ValueError(f"the topology has {what}")
        above = self.above(a, b, via)
        ends = sorted(((a.node, a.nic), (b.node, b.nic)))
        path = Component(FabricComponentKind.PATH, tuple(":".join(filter(None, end)) for end in ends))
        hops = sum(piece.kind is FabricComponentKind.SWITCH for piece in above) or (2 if above else 0)
        if above and self.leaf(a) != self.leaf(b):
            hops = max(hops, 3)  # over a spine, told or not
        group = (hops, self.crossed(a) or self.crossed(b))
        return Path((*self.own(a), *self.own(b), path, *above), group)
