"""A simulated fabric with faults that are known: what a pair would measure, and what a collective would do.

More than the inference models: a fault's effect differs from pair to pair, nodes differ a little for good, a cable
between switches slows all that takes it, lost packets hurt large messages only, and some answers never come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mainstay.detectors.localize.model import GroupResult, NodePair, PairOutcome, PairResult, Round
from mainstay.detectors.localize.topology import (
    OWN,
    Component,
    Endpoint,
    FabricComponentKind,
    FabricTopology,
    Host,
    Nic,
    TopologyMap,
)

SIZES = (512, 65_536, 16 << 20)
"""Message sizes that a pair measures: below the 1 KiB from which the fault of Aegis drops packets, and above."""
_USUAL = {512: 2e8, 65_536: 1.5e10, 16 << 20: 4.6e10}
"""B/s: latency-bound, middling, and near the line rate of 400 Gb/s."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    name: str
    piece: Component
    speed: float
    """Share of the usual speed; 0: hangs."""
    over: int = 0
    """Only messages of more bytes."""


@dataclass(kw_only=True)
class Cluster:
    """``count`` nodes with ``rails`` NICs and GPUs each; ``leaf_nodes`` under a leaf (one a rail), ``spines`` above."""

    count: int
    rails: int = 2
    leaf_nodes: int = 8
    spines: int = 2
    noise: float = 0.01
    spread: float = 0.0
    """Standard deviation of what nodes differ by for good."""
    missing: float = 0.0
    """Share of answers that never come."""
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    together: int = 0
    """Most pairs at a time that shared a cable between switches."""
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.topology = self._topology()
        self.chart = TopologyMap(self.topology)
        self._own = dict(
            zip((host.name for host in self.topology.nodes), self.rng.normal(0, self.spread, self.count), strict=True)
        )

    def _topology(self) -> FabricTopology:
        hosts = []
        leaves: set[str] = set()
        for number in range(self.count):
            above = [f"leaf-{rail}-{number // self.leaf_nodes}" for rail in range(self.rails)]
            leaves.update(above)
            nics = tuple(Nic(name=f"nic{rail}", switches=(leaf,)) for rail, leaf in enumerate(above))
            gpus = tuple(f"gpu{rail}" for rail in range(self.rails))
            hosts.append(Host(name=f"node-{number:04d}", nics=nics, gpus=gpus))
        tops = {leaf: tuple(f"spine-{leaf.split('-')[1]}-{k}" for k in range(self.spines)) for leaf in leaves}
        return FabricTopology(nodes=tuple(hosts), spines=dict(sorted(tops.items())) if self.spines else {})

    def measure(self, asked: Round) -> list[PairResult]:
        """What the pairs of a round say."""
        self._count(asked.pairs)
        return [self._pair(pair) for pair in asked.pairs]

    def _count(self, pairs: tuple[NodePair, ...]) -> None:
        load: dict[Component, int] = {}
        for pair in pairs:
            for piece in self.chart.above(pair.a, pair.b, pair.via):
                if piece.kind is FabricComponentKind.CABLE:
                    load[piece] = load.get(piece, 0) + 1
        self.together = max(self.together, *load.values(), 0) if load else self.together

    def _pair(self, pair: NodePair) -> PairResult:
        if self.rng.random() < self.missing:
            return PairResult(a=pair.a, b=pair.b, via=pair.via, outcome=PairOutcome.MISSING)
        way = self.chart.way(pair.a, pair.b, pair.via)
        slow = [fault for fault in self.faults if fault.piece in way.pieces]
        if any(fault.speed == 0 for fault in slow):
            return PairResult(a=pair.a, b=pair.b, via=pair.via, outcome=PairOutcome.HUNG)
        spoiled = [(fault, math.log(fault.speed) * self.rng.uniform(0.9, 1.1)) for fault in slow]
        speeds = {
            str(size): float(self._usual(size, way.group) * math.exp(self._off(pair, size, spoiled))) for size in SIZES
        }
        return PairResult(a=pair.a, b=pair.b, via=pair.via, bandwidth=speeds)

    def _usual(self, size: int, group: tuple[int, bool]) -> float:
        hops, crossed = group
        far = 0.8 if size == SIZES[0] and hops > 1 else 0.97 if hops > 1 else 1.0
        return float(_USUAL[size] * far * (0.85 if crossed else 1.0))

    def _off(self, pair: NodePair, size: int, spoiled: list[tuple[Fault, float]]) -> float:
        worst = min((level for fault, level in spoiled if size > fault.over), default=0.0)
        own = min(self._own[pair.a.node], self._own[pair.b.node])
        return float(worst + own + float(self.rng.normal(0, self.noise)))

    def collective(self, asked: Round) -> list[GroupResult]:
        """Whether each group's collective passes: it fails with any faulty node."""
        bad = {fault.piece.name[0] for fault in self.faults}
        return [GroupResult(members=group, passed=not bad & set(group)) for group in asked.groups]


CLASSES = ("nic 0.9", "nic 0.7", "nic 0.5", "gpu 0.6", "cable 0.5", "uplink 0.6", "loss over 1 KB", "hang")


def draw(kind: str, cluster: Cluster, rng: np.random.Generator) -> Fault:
    """One fault of a class, anywhere."""
    host = cluster.topology.nodes[int(rng.integers(cluster.count))]
    rail = int(rng.integers(cluster.rails))
    nic = Component(FabricComponentKind.NIC, (host.name, f"nic{rail}"))
    leaf = cluster.chart.leaf(Endpoint(host.name, f"nic{rail}"))
    word, _, rest = kind.partition(" ")
    match word:
        case "nic":
            return Fault(name=kind, piece=nic, speed=float(rest))
        case "gpu":
            return Fault(
                name=kind, piece=Component(FabricComponentKind.GPU, (host.name, f"gpu{rail}")), speed=float(rest)
            )
        case "cable":
            spine = cluster.topology.spines[leaf][int(rng.integers(cluster.spines))]
            return Fault(name=kind, piece=Component(FabricComponentKind.CABLE, (leaf, spine)), speed=float(rest))
        case "uplink":
            return Fault(name=kind, piece=Component(FabricComponentKind.UPLINK, (leaf,)), speed=float(rest))
        case "loss":
            return Fault(name=kind, piece=nic, speed=0.35, over=1024)
        case _:
            return Fault(name=kind, piece=nic, speed=0.0)


def draws(kinds: tuple[str, ...], cluster: Cluster, rng: np.random.Generator) -> Iterator[Fault]:
    """Faults on different nodes and under different leaves where they are between switches."""
    taken: set[str] = set()
    for kind in kinds:
        while True:
            fault = draw(kind, cluster, rng)
            names = set(fault.piece.name[:1] if fault.piece.kind in OWN else fault.piece.name)
            if not taken & names:
                taken |= names
                yield fault
                break
