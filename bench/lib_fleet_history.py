"""A simulated fleet whose nodes fail, are repaired and fail sooner: the worlds of ``bench.selector``. Seeded.

A defect arrives on a node, stays latent for a while in which a benchmark may find it, and then strikes as an incident.
How defects arrive is not the form that the Selector's model assumes: each node has a frailty, every repair wears it
(719 h to the first incident, 152 h at the twentieth, as reported for the fleet behind SuperBench), times since the
repair are Weibull, one cohort's hazard jumps in the middle of the time, errors announce some defects and many mean
nothing.

What finds a defect is correlated: a mild one is missed by all, a severe one seen by all that can see its class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from mainstay.detectors.selector.coverage import DefectRecord
from mainstay.detectors.selector.history import HOUR, Incident, NodeHistory
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.suites import describe

Floats = npt.NDArray[np.float64]
Form = Literal["frailty", "weibull", "steps", "proportional", "memoryless"]
FORMS: tuple[Form, ...] = ("frailty", "weibull", "steps", "proportional")
"""Shapes of the hazard that hold something to learn; ``memoryless`` holds nothing."""
START = 1.7e9
JOB_HOURS = 24.0
NODES_A_JOB = 8
WEAR = math.log(719 / 152) / math.log(20)
"""Exponent with which a node's hazard grows with its incidents: 719 h at the first, 152 h at the twentieth."""


@dataclass(frozen=True)
class Catalog:
    """Benchmarks with their costs, and how well each sees each class."""

    names: tuple[str, ...]
    seconds: Floats
    catches: dict[str, tuple[str, ...]]
    classes: tuple[str, ...]
    sight: Floats
    """[class, benchmark] P(found) of a defect of middling severity."""


_BROAD: dict[str, tuple[float, dict[str, float]]] = {
    "ib_loopback": (60, {"fabric": 0.95}),
    "allreduce": (60, {"gpu_link": 0.95, "fabric": 0.3}),
    "copy": (30, {"host_link": 0.97, "host_memory": 0.5}),
    "launch": (20, {"host_cpu": 0.9, "host_link": 0.3}),
    "gemm": (60, {"compute": 0.93, "thermal": 0.5, "numerics": 0.3}),
    "memory": (40, {"gpu_memory": 0.95}),
    "host_memory": (30, {"host_memory": 0.95}),
    "disk": (60, {"storage": 0.95}),
    "deterministic": (30, {"numerics": 0.95}),
    "tcp": (20, {"network": 0.9}),
    "burn": (300, {"thermal": 0.98, "compute": 0.8, "numerics": 0.5}),
    "overlap": (120, {"gpu_link": 0.6, "fabric": 0.6, "compute": 0.5}),
    "bert": (300, {"compute": 0.85, "gpu_memory": 0.7, "host_link": 0.6, "thermal": 0.6, "host_cpu": 0.5}),
    "gpt": (420, {"compute": 0.85, "gpu_memory": 0.7, "gpu_link": 0.7, "thermal": 0.7, "host_cpu": 0.5}),
    "resnet": (300, {"compute": 0.7, "storage": 0.6, "host_link": 0.5, "host_memory": 0.5}),
    "lstm": (240, {"compute": 0.6, "gpu_memory": 0.5, "host_cpu": 0.6}),
}
"""A set as SuperBench's: micro-benchmarks that each see one part well, and models that see many parts less well and
take most of the time. Costs (s) and sights are assumed: none are published."""


def broad(seed: int) -> Catalog:
    """The assumed set of sixteen; how well each sees is drawn around the table."""
    rng = np.random.default_rng([seed, 1])
    classes = tuple(dict.fromkeys(defect for _, seen in _BROAD.values() for defect in seen))
    sight = np.zeros((len(classes), len(_BROAD)))
    for j, (_, seen) in enumerate(_BROAD.values()):
        for defect, p in seen.items():
            sight[classes.index(defect), j] = p + rng.uniform(-0.3, 0.3) * (1 - p)
    catches = {name: tuple(seen) for name, (_, seen) in _BROAD.items()}
    return Catalog(tuple(_BROAD), np.array([cost for cost, _ in _BROAD.values()], float), catches, classes, sight)


def suite(seed: int, name: str = "deep") -> Catalog:
    """A suite of ours on eight GPUs with its stated costs and classes; how well its benchmarks see is drawn."""
    rng = np.random.default_rng([seed, 1])
    info = next(s for s in describe("cuda") if s.name == name)
    fixed = [b for b in info.benchmarks if not b.optional]
    names = tuple(b.name for b in fixed)
    catches = {b.name: tuple(str(d) for d in b.defects) for b in fixed}
    classes = tuple(str(d) for d in Defect if any(str(d) in found for found in catches.values()))
    sight = np.zeros((len(classes), len(names)))
    for j, benchmark in enumerate(names):
        for place, defect in enumerate(catches[benchmark]):
            sight[classes.index(defect), j] = rng.uniform(0.8, 0.98) if place == 0 else rng.uniform(0.4, 0.9)
    return Catalog(names, np.array([b.expected_seconds for b in fixed]), catches, classes, sight)


@dataclass
class Latent:
    defect: int
    found: frozenset[str]
    """Benchmarks that would find it."""
    arrived: float
    strikes: float
    seen: bool = False
    """The full set could have found it by now."""


@dataclass
class Node:
    name: str
    cohort: str
    frailty: float
    mix: Floats
    """[class] what breaks on it."""
    rng: np.random.Generator
    back: float = 0.0
    """Hours; in service since."""
    repairs: int = 0
    latent: Latent | None = None
    incidents: list[tuple[float, float]] = field(default_factory=list)
    """(hours at, hours back), struck or found in time."""
    own: Counter[str] = field(default_factory=Counter)
    """Classes of its past defects."""
    checks: list[float] = field(default_factory=list)
    looked: dict[str, float] = field(default_factory=dict)
    """Benchmark → hours when it last ran here."""
    errors: dict[str, list[float]] = field(default_factory=lambda: {"xid": [], "ecc": []})

    def history(self, now: float) -> NodeHistory:
        """What an operator knows at ``now`` (hours)."""
        known = tuple(
            Incident(at=START + at * HOUR, back_at=START + back * HOUR if back <= now else None)
            for at, back in self.incidents
        )
        return NodeHistory(
            node=self.name, since=START, until=START + now * HOUR, cohort=self.cohort, incidents=known,
            remediations=tuple(i.back_at for i in known if i.back_at is not None),
            checks=tuple(START + at * HOUR for at in self.checks),
            errors={kind: tuple(START + t * HOUR for t in times) for kind, times in self.errors.items()},
        )  # fmt: skip


@dataclass
class Tally:
    """What a policy did."""

    node_hours: float = 0.0
    incidents: int = 0
    seconds: float = 0.0
    """Node-seconds of validation."""
    full_seconds: float = 0.0
    """What the full set would have spent on the same occasions."""
    found: int = 0
    full_found: int = 0
    """Latent defects that the full set would have found; each counts once, however often it was missed."""

    @property
    def mtbi(self) -> float:
        """Hours of a node in jobs between two incidents."""
        return self.node_hours / max(1, self.incidents)


Orders = Mapping[str, frozenset[str]]
"""Node → benchmarks to run on it; nothing on one that is not there."""
Policy = Callable[["Fleet", Sequence[Node], float], Orders]
"""(fleet, nodes of the job, hours) → what to run."""


def everything(fleet: Fleet, nodes: Sequence[Node], now: float) -> Orders:
    """The full set on every node."""
    del now
    return {node.name: frozenset(fleet.shop.names) for node in nodes}


def nothing(fleet: Fleet, nodes: Sequence[Node], now: float) -> Orders:
    del fleet, nodes, now
    return {}


class Fleet:
    """A fleet that is stepped job by job; every job takes eight nodes for a day."""

    def __init__(
        self, seed: int, form: Form, *, shop: Catalog | None = None, nodes: int = 96, hours: float = 4320.0
    ) -> None:
        rng = np.random.default_rng([seed, 2])
        self.form, self.hours, self.gap = form, hours, 719.0
        self.shop = shop or broad(seed)
        k = len(self.shop.classes)
        fleet_mix = rng.dirichlet(np.ones(k))
        self.nodes = [
            Node(
                name=f"n{i:04d}", cohort=("a", "a", "b", "c")[i % 4],
                frailty=float(rng.gamma(1.0)) if form in ("frailty", "steps") else float(rng.gamma(4.0) / 4),
                mix=rng.dirichlet(20 * fleet_mix + 0.05), rng=np.random.default_rng([seed, 3, i]),
            )
            for i in range(nodes)
        ]  # fmt: skip
        self.covariate = rng.normal(0, 0.8, nodes) if form == "proportional" else np.zeros(nodes)
        self.records: list[DefectRecord] = []
        self.defects: list[tuple[str, str, float]] = []
        """(node, class, Unix seconds) of each record."""
        self.now = 0.0
        self.rng = rng

    def hazard(self, place: int, node: Node, at: float) -> float:
        """Defects an hour."""
        rate = node.frailty * math.pow(1 + node.repairs, WEAR) / self.gap
        if self.form == "memoryless":
            return 1 / self.gap
        rate *= {"a": 1.0, "b": 1.8, "c": 0.5}[node.cohort] * math.exp(float(self.covariate[place]))
        if self.form == "weibull":  # worst just after a repair
            age = max(at - node.back, 1.0)
            rate *= 0.6 * math.pow(age / 400.0, -0.4)
        if self.form == "steps" and node.cohort == "a" and at > self.hours / 2:
            rate *= 3.0
        return rate

    def run(self, policy: Policy, until: float) -> Tally:
        """Jobs under a policy until a time, in hours; what it did."""
        tally = Tally()
        while self.now < until:
            up = [(i, n) for i, n in enumerate(self.nodes) if n.back <= self.now]
            order = self.rng.permutation(len(up))
            for start in range(0, len(up) - NODES_A_JOB + 1, NODES_A_JOB):
                self._job([up[j] for j in order[start : start + NODES_A_JOB]], policy, tally)
            self.now += JOB_HOURS
        return tally

    def _job(self, members: Sequence[tuple[int, Node]], policy: Policy, tally: Tally) -> None:
        orders = policy(self, [node for _, node in members], self.now)
        cost = dict(zip(self.shop.names, self.shop.seconds.tolist(), strict=True))
        tally.seconds += sum(cost[name] for benchmarks in orders.values() for name in benchmarks)
        tally.full_seconds += float(self.shop.seconds.sum()) * len(members)
        for place, node in members:
            here, benchmarks = node.latent, orders.get(node.name, frozenset())
            node.looked |= dict.fromkeys(benchmarks, self.now)
            if here is not None and here.arrived < self.now and here.found:
                tally.full_found += not here.seen
                here.seen = True
                if here.found & benchmarks:
                    tally.found += 1
                    self._repair(node, self.now + 1e-3, here.found & benchmarks, benchmarks)
                    continue
            if benchmarks:
                node.checks.append(self.now)
            self._work(place, node, tally)

    def _work(self, place: int, node: Node, tally: Tally) -> None:
        end = self.now + JOB_HOURS
        if node.latent is None:
            after = node.rng.exponential(1 / self.hazard(place, node, self.now))
            if after < JOB_HOURS:
                node.latent = self._defect(node, self.now + after)
        self._errors(node, end)
        strikes = math.inf if node.latent is None else node.latent.strikes
        tally.node_hours += min(strikes, end) - self.now
        if node.latent is not None and strikes < end:
            tally.incidents += 1
            self._repair(node, strikes, node.latent.found, frozenset(self.shop.names))  # looked at with everything

    def _defect(self, node: Node, at: float) -> Latent:
        rng, shop = node.rng, self.shop
        kind = int(rng.choice(len(shop.classes), p=node.mix))
        severity = math.sqrt(0.8) * rng.normal() + math.sqrt(0.2) * rng.normal(size=len(shop.names))
        cut = np.array([_quantile(p) for p in shop.sight[kind]])
        found = frozenset(name for name, seen in zip(shop.names, severity < cut, strict=True) if seen)
        wait = rng.exponential(72.0) if rng.random() < 0.7 else rng.exponential(4.0)
        return Latent(kind, found, at, at + wait)

    def _errors(self, node: Node, end: float) -> None:
        reporting = node.latent is not None and self.shop.classes[node.latent.defect] in ("gpu_memory", "gpu_link")
        for kind, quiet in (("xid", 0.002), ("ecc", 0.004)):
            rate = 0.1 if reporting and kind == ("ecc" if node.latent and node.latent.defect % 2 else "xid") else quiet
            count = node.rng.poisson(rate * JOB_HOURS)
            node.errors[kind] += sorted(node.rng.uniform(self.now, end, count).tolist())

    def _repair(self, node: Node, at: float, found: frozenset[str], ran: frozenset[str]) -> None:
        assert node.latent is not None
        defect = self.shop.classes[node.latent.defect]
        self.records.append(DefectRecord(defect=defect, found=found, ran=ran))
        self.defects.append((node.name, defect, START + at * HOUR))
        node.own[defect] += 1
        back = at + float(node.rng.lognormal(math.log(12.0), 0.5))
        node.incidents.append((at, back))
        for times in node.errors.values():  # a node that is down says nothing
            times[:] = [t for t in times if t < at]
        node.back, node.latent, node.repairs = back, None, node.repairs + 1

    def histories(self, now: float | None = None) -> list[NodeHistory]:
        """The past of every node."""
        return [node.history(self.now if now is None else now) for node in self.nodes]


def _quantile(p: float) -> float:
    """Of the standard normal; nothing sees what it cannot see."""
    return NormalDist().inv_cdf(p) if 0 < p < 1 else math.copysign(math.inf, p - 0.5)
