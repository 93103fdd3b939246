"""The Selector as a policy of a simulated fleet, one set for all nodes or one for each, and its trial in a world."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.lib_exact import problem_of
from bench.lib_fleet_history import (
    JOB_HOURS,
    START,
    Catalog,
    Fleet,
    Form,
    Node,
    Orders,
    Policy,
    Tally,
    everything,
    nothing,
)
from mainstay.detectors.selector import node_plan, per_node_search
from mainstay.detectors.selector.coverage import Coverage, shares_of
from mainstay.detectors.selector.history import HOUR
from mainstay.detectors.selector.learning import Learned, learn
from mainstay.detectors.selector.per_node_plan import as_usual
from mainstay.detectors.selector.posterior import Posterior

HALF = 2160.0
"""Hours of learning under the full set, and of judging after it."""
Shop = Callable[[int], Catalog]


@dataclass
class Selecting:
    """The Selector as a policy: learns every week from what the fleet's operator knows."""

    target: float | None = None
    keep: float | None = None
    worth: float | None = None
    spare_nodes: bool = True
    seconds: list[float] = field(default_factory=list)
    _at: float = -1e9
    _learned: Learned | None = None
    _coverage: Coverage | None = None

    def __call__(self, fleet: Fleet, nodes: Sequence[Node], now: float) -> Orders:
        shop = fleet.shop
        if self._learned is None or self._coverage is None or now - self._at >= 168:
            self._learned, self._at = learn(fleet.histories()), now
            self._coverage = Coverage.learn(fleet.records, shop.names, classes=shop.classes, catches=shop.catches)
        begun = time.perf_counter()
        p = self._learned.risk([node.history(now) for node in nodes], START + now * HOUR, JOB_HOURS)
        shares = np.stack([shares_of(self._coverage, node.own) for node in nodes])
        made = node_plan.make(
            problem_of(self._coverage, shop.seconds, p, shares),
            target=self.target, keep=self.keep, worth=self.worth, spare_nodes=self.spare_nodes, thorough=False,
        )  # fmt: skip
        self.seconds.append(time.perf_counter() - begun)
        chosen = frozenset(name for name, on in zip(shop.names, made.choice.chosen, strict=True) if on)
        return {node.name: chosen for node, on in zip(nodes, made.checked, strict=True) if on}


@dataclass
class Tailoring:
    """The Selector with a set for each node: learns every week, and looks at the whole fleet once a day."""

    target: float | None = None
    keep: float | None = None
    worth: float | None = None
    seconds: list[float] = field(default_factory=list)
    _at: float = -1e9
    _day: float = -1.0
    _sets: Orders = field(default_factory=dict)
    _learned: Learned | None = None
    _coverage: Coverage | None = None
    _posterior: Posterior | None = None

    def __call__(self, fleet: Fleet, nodes: Sequence[Node], now: float) -> Orders:
        if now - self._at >= 168:
            histories = fleet.histories()
            shop = fleet.shop
            self._learned, self._at = learn(histories), now
            self._coverage = Coverage.learn(fleet.records, shop.names, classes=shop.classes, catches=shop.catches)
            by_name = {h.node: h for h in histories}
            self._posterior = Posterior.learn(fleet.defects, by_name, self._coverage.classes)
        if self.keep is None:
            return self._made(fleet, nodes, now)
        if now != self._day:
            self._day, self._sets = now, self._made(fleet, [n for n in fleet.nodes if n.back <= now], now)
        return {node.name: self._sets[node.name] for node in nodes if node.name in self._sets}

    def _made(self, fleet: Fleet, nodes: Sequence[Node], now: float) -> Orders:
        assert self._learned is not None
        assert self._coverage is not None
        assert self._posterior is not None
        begun, at, names = time.perf_counter(), START + now * HOUR, fleet.shop.names
        histories = [node.history(now) for node in nodes]
        p = self._learned.risk([as_usual(h, at - JOB_HOURS * HOUR) for h in histories], at, JOB_HOURS)
        shares = [self._posterior.shares(h, node.own, at) for h, node in zip(histories, nodes, strict=True)]
        ages = [[now - max(node.looked.get(name, 0.0), node.back) for name in names] for node in nodes]
        problem = per_node_search.pairs(
            self._coverage, fleet.shop.seconds, p, np.stack(shares), np.array(ages), usual=JOB_HOURS
        )
        chosen = per_node_search.make(problem, target=self.target, keep=self.keep, worth=self.worth).chosen
        self.seconds.append(time.perf_counter() - begun)
        sets = {
            node.name: frozenset(name for name, on in zip(names, row, strict=True) if on)
            for node, row in zip(nodes, chosen, strict=True)
        }
        return {name: one for name, one in sets.items() if one}


Chooser = Selecting | Tailoring


@dataclass
class Compared:
    """One policy against the full set, summed over worlds."""

    policy: Tally = field(default_factory=Tally)
    full: Tally = field(default_factory=Tally)
    none: Tally = field(default_factory=Tally)
    seconds: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.policy.seconds / self.policy.full_seconds

    @property
    def found(self) -> float:
        return self.policy.found / max(1, self.policy.full_found)

    @property
    def mtbi(self) -> float:
        return self.policy.mtbi / self.full.mtbi


@dataclass(frozen=True)
class Trial:
    """One policy in one world; None: the two fixed rules."""

    seed: int
    form: Form
    shop: Shop
    make: Callable[[], Chooser] | None

    def __call__(self) -> Compared:
        found = Compared()
        if self.make is None:
            found.full, found.none = self._half(everything), self._half(nothing)
        else:
            policy = self.make()
            found.policy, found.seconds = self._half(policy), policy.seconds
        return found

    def _half(self, rule: Policy) -> Tally:
        """What a rule does in the half in which policies are judged."""
        fleet = Fleet(self.seed, self.form, shop=self.shop(self.seed))
        fleet.run(everything, HALF)
        return fleet.run(rule, 2 * HALF)


def add_tally(total: Tally, more: Tally) -> None:
    for name in vars(total):
        setattr(total, name, getattr(total, name) + getattr(more, name))
