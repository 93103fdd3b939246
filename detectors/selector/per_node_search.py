"""A set of its own for each node: time is spent where risk is.

One set for all nodes pays for every benchmark on every node. But most of the risk sits on few nodes, and what breaks
differs: so (node, benchmark) pairs are chosen. What a set finds on a node is the mass of the latent defects that it
hits: a defect of class c that benchmarks π would find (a pattern, learned from past defects) is there with the hazard

    mass(node, π) = Σ_c -log(1 - p(node)) P(c | node) w(π | c) x min(age(node, π), longest) / usual

where age is the time since any benchmark of π last ran on the node: what ran and found nothing has cleared them,
and what was left out for long grows until it pays. Defects strike independently, so hazards add up. One price for a
hazard holds for all pairs (a Lagrange multiplier); at the price each node's set is found alone, and the price is
raised until all nodes together are under the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from mainstay.detectors.selector.coverage import Coverage
from mainstay.detectors.selector.hazard import Bools, Floats
from mainstay.detectors.selector.risk import checked_share, hazard_of
from mainstay.detectors.selector.set_search import PAIRS_LIMIT, loose, search

_LONGEST: Final = 7.0
"""Usual times between two looks after which no more defects wait: what came before has struck meanwhile."""
_STEEP: Final = 4.0
"""Factor by which the price is raised in search of one that is high enough."""
_NEAR: Final = 1.0001
"""Prices that are alike."""
_TOO_MUCH: Final = 1e18
"""Times the cheapest benchmark: a price at which everything that takes anything away is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBenchmarkPairs:
    """Nodes and benchmarks, and the defects that may sit on the nodes."""

    seconds: Floats
    """[benchmark] on one node; above zero."""
    sees: Bools
    """[pattern, benchmark]."""
    mass: Floats
    """[node, pattern] hazard of such a defect in the job."""
    rest: Floats
    """[node] hazard of what no benchmark finds."""

    def __post_init__(self) -> None:
        patterns, benchmarks = self.sees.shape
        if self.seconds.shape != (benchmarks,) or not (np.isfinite(self.seconds) & (self.seconds > 0)).all():
            raise ValueError("every benchmark must cost a finite time above 0 s")
        if self.mass.ndim != 2 or self.mass.shape[1] != patterns or self.rest.shape != (len(self.mass),):
            raise ValueError(f"mass has shape {self.mass.shape}, wanted [node, {patterns} patterns]")
        if not len(self.mass) or not (self.mass >= 0).all() or not (self.rest >= 0).all():
            raise ValueError("there must be a node, and no hazard below 0")

    def left(self, chosen: Bools) -> Floats:
        """[node] hazard after sets [node, benchmark]."""
        return np.asarray(self.rest + (self.mass * (self.hits(chosen) == 0)).sum(axis=1), np.float64)

    def hits(self, chosen: Bools) -> Floats:
        """[node, pattern] how many of the chosen would find it."""
        return np.asarray(chosen.astype(np.float64) @ self.sees.T.astype(np.float64), np.float64)

    def hazard(self, chosen: Bools) -> float:
        """-log of the chance that nothing strikes any node."""
        return float(self.left(chosen).sum())

    def cost(self, chosen: Bools) -> float:
        """Node-seconds."""
        return float((chosen @ self.seconds).sum())

    def gains(self, chosen: Bools) -> Floats:
        """[node, benchmark] hazard that each takes away: by being added, or of a chosen one, that it alone does."""
        hits, sees = self.hits(chosen), self.sees.astype(np.float64)
        return np.asarray(np.where(chosen, (self.mass * (hits == 1)) @ sees, (self.mass * (hits == 0)) @ sees))

    def none(self) -> Bools:
        return np.zeros((len(self.mass), len(self.seconds)), bool)

    def all(self) -> Bools:
        return ~self.none()

    def some(self, nodes: Bools) -> NodeBenchmarkPairs:
        """The same of some nodes [node]."""
        return NodeBenchmarkPairs(seconds=self.seconds, sees=self.sees, mass=self.mass[nodes], rest=self.rest[nodes])

    def bound(self, target: float | None, keep: float | None) -> float:
        """The hazard to reach: that of a risk, or what keeps a share of all that the full sets take away.

        Raises:
            ValueError: neither or both are given, or not as a share.
        """
        wanted = checked_share(target, keep)
        if target is not None:
            return hazard_of(target)
        before, after = self.hazard(self.none()), self.hazard(self.all())
        return before - wanted * (before - after)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairList:
    """Pairs of few nodes as one list of candidates, for the searches of ``select``."""

    pairs: NodeBenchmarkPairs

    @property
    def seconds(self) -> Floats:
        return np.tile(self.pairs.seconds, len(self.pairs.mass))

    @property
    def p(self) -> Floats:
        return self.pairs.rest

    def none(self) -> Bools:
        return np.zeros(self.pairs.mass.shape[0] * len(self.pairs.seconds), bool)

    def cost(self, chosen: Bools) -> float:
        return float(self.seconds[chosen].sum())

    def hazard(self, chosen: Bools) -> float:
        return float(self.hazards_of(chosen[:, None])[0])

    def hazards_of(self, sets: Bools) -> Floats:
        shaped = sets.reshape(len(self.pairs.mass), len(self.pairs.seconds), -1).astype(np.float32)
        missed = np.einsum("pb,nbs->nps", self.pairs.sees.astype(np.float32), shaped) == 0
        return np.asarray(self.pairs.rest.sum() + np.einsum("np,nps->s", self.pairs.mass, missed), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerNodeSets:
    """A set for each node."""

    chosen: Bools
    """[node, benchmark]."""
    hazard: float
    """That is left on all nodes."""
    goal: float
    """The hazard to reach."""
    price: float
    """Node-seconds that a hazard of one is worth at it; 0: nothing is needed."""

    @property
    def reached(self) -> bool:
        return self.hazard <= loose(self.goal)


def weights(coverage: Coverage) -> tuple[Bools, Floats, Floats]:
    """Patterns [pattern, benchmark], their share of each class [class, pattern], and what nothing finds [class].

    One defect's worth of doubt a class is spread over its benchmarks as defects that each alone finds: two that agreed
    on all defects so far are not taken for one. No benchmark finds another one, as in
    ``Coverage.detection_probability``.
    """
    found = coverage.patterns.any(axis=1)
    sees = np.vstack([coverage.patterns[found], np.eye(len(coverage.benchmarks), dtype=bool)])
    claims = coverage.claims.astype(np.float64)
    alone = claims / np.maximum(claims.sum(axis=1, keepdims=True), 1.0)
    share = np.hstack([coverage.counts[:, found], alone]) / (2.0 + coverage.counts.sum(axis=1, keepdims=True))
    return sees, share, np.asarray(1.0 - share.sum(axis=1), np.float64)


def pairs(
    coverage: Coverage, seconds: Floats, p: Floats, shares: Floats, ages: Floats | None = None, *, usual: float = 1.0
) -> NodeBenchmarkPairs:
    """What is to be decided.

    Args:
        coverage: which benchmarks find what.
        seconds: [benchmark] on one node.
        p: [node] P(incident within the job | looked at ``usual`` ago).
        shares: [node, class] of its next defect.
        ages: [node, benchmark] since each last ran on it, in the unit of ``usual``; None: all ``usual`` ago.
        usual: time between two looks that ``p`` speaks of.
    """
    sees, weight, unseen = weights(coverage)
    by_class = -np.log1p(-np.minimum(p, 1 - 1e-15))[:, None] * shares
    grown = np.ones((len(p), len(sees)))
    if ages is not None:
        clipped = np.clip(ages / usual, 0.0, _LONGEST)
        grown = np.stack([clipped[:, row].min(axis=1) for row in sees], axis=1)
    return NodeBenchmarkPairs(
        seconds=np.asarray(seconds, np.float64), sees=sees, mass=by_class @ weight * grown, rest=by_class @ unseen
    )


def make(
    problem: NodeBenchmarkPairs,
    *,
    target: float | None = None,
    keep: float | None = None,
    spare_nodes: bool = True,
    worth: float | None = None,
) -> PerNodeSets:
    """The cheapest sets.

    Where nothing reaches the target, every benchmark runs that takes risk away at the highest price.

    Args:
        problem: nodes and what may sit on them.
        target: risk of all nodes together to reach; or
        keep: share of what all benchmarks on all nodes take away that must be kept.
        spare_nodes: whether nodes may be left alone; if not, each gets at least what pays most on it.
        worth: node-seconds that one averted incident is worth: what takes away less than it costs is not run, even
            where the target is not reached; None: at any cost.

    Raises:
        ValueError: see ``NodeBenchmarkPairs.bound``, or ``worth`` is not above zero.
    """
    goal = problem.bound(target, keep)
    if worth is not None and not worth > 0:
        raise ValueError(f"an averted incident must be worth more than {worth:g} node-seconds")
    price = price_for(problem, goal, math.inf if worth is None else worth)
    chosen = at_price(problem, price)
    if problem.hazard(chosen) <= loose(goal):
        chosen = min(_reaching(problem, chosen, price, goal, capped=worth is not None), key=problem.cost)
    if not spare_nodes:
        idle = np.flatnonzero(~chosen.any(axis=1))
        chosen[idle, np.argmax(problem.gains(chosen) / problem.seconds, axis=1)[idle]] = True
    return PerNodeSets(chosen=chosen, hazard=problem.hazard(chosen), goal=goal, price=price)


def _reaching(
    problem: NodeBenchmarkPairs, chosen: Bools, price: float, goal: float, *, capped: bool
) -> Iterator[Bools]:
    """Sets that reach the goal: as priced, from the next lower price with what pays most, and of few pairs searched."""
    yield _trimmed(problem, chosen, goal)
    for lower in (price, price / _NEAR):
        yield _trimmed(problem, _filled(problem, at_price(problem, lower, thorough=True), goal), goal)
    if chosen.size <= PAIRS_LIMIT and not capped:
        found = search(PairList(pairs=problem), goal, thorough=True)
        if found.reached:
            yield found.chosen.reshape(chosen.shape)


def _filled(problem: NodeBenchmarkPairs, chosen: Bools, goal: float) -> Bools:
    chosen = chosen.copy()
    while (over := problem.hazard(chosen) - goal) > loose(goal) - goal:
        # what lies beyond the goal is worth nothing: else an expensive benchmark that does too much would win the last
        # place
        rate = np.where(chosen, 0.0, np.minimum(problem.gains(chosen), over) / problem.seconds)
        if not rate.max() > 0:
            break
        chosen[np.unravel_index(int(np.argmax(rate)), rate.shape)] = True
    return chosen


def _trimmed(problem: NodeBenchmarkPairs, chosen: Bools, goal: float) -> Bools:
    """Without the dearest pairs that the goal does not need."""
    chosen = chosen.copy()
    while True:
        room = loose(goal) - problem.hazard(chosen)
        free = chosen & (problem.gains(chosen) <= room)
        if not free.any():
            return chosen
        chosen[np.unravel_index(int(np.argmax(np.where(free, problem.seconds, -1.0))), free.shape)] = False


def at_price(problem: NodeBenchmarkPairs, price: float, *, thorough: bool = False) -> Bools:
    """[node, benchmark] sets that each node takes when a hazard of one is worth ``price`` seconds.

    Greedy by hazard off per second while it pays, then what no longer pays is dropped; and everything, with what does
    not pay dropped. Of both, each node takes the better.

    Args:
        problem: nodes and what may sit on them.
        price: in seconds.
        thorough: grow from every single benchmark too.
    """
    starts = [problem.all(), _grown(problem, problem.none(), price)]
    if thorough:
        for place in range(len(problem.seconds)):
            first = problem.none()
            first[:, place] = True
            starts.append(_grown(problem, first, price))
    best, least = problem.none(), np.full(len(problem.mass), np.inf)
    for start in starts:
        chosen = _dropped(problem, start, price)
        cost = chosen @ problem.seconds + price * problem.left(chosen)
        better = cost < least
        best[better], least[better] = chosen[better], cost[better]
    return best


def _grown(problem: NodeBenchmarkPairs, chosen: Bools, price: float) -> Bools:
    chosen = chosen.copy()
    open_ = problem.mass * (problem.hits(chosen) == 0)
    sees = problem.sees.astype(np.float64)
    rows = np.arange(len(open_))
    while rows.size:
        worth = np.where(chosen[rows], -np.inf, price * (open_[rows] @ sees) / problem.seconds)
        best = np.argmax(worth, axis=1)
        pays = worth[np.arange(len(rows)), best] >= 1.0
        rows, best = rows[pays], best[pays]
        chosen[rows, best] = True
        open_[rows] *= ~problem.sees[:, best].T
    return chosen


def _dropped(problem: NodeBenchmarkPairs, chosen: Bools, price: float) -> Bools:
    """Without what others made redundant: the least worth first, one a node at a time."""
    chosen = chosen.copy()
    while True:
        worth = np.where(chosen, price * problem.gains(chosen) / problem.seconds, np.inf)
        least = np.argmin(worth, axis=1)
        rows = np.flatnonzero(worth[np.arange(len(least)), least] < 1.0)
        if not rows.size:
            return chosen
        chosen[rows, least[rows]] = False


def price_for(problem: NodeBenchmarkPairs, goal: float, most: float = math.inf) -> float:
    """The least price of a hazard at which the sets reach the goal; ``most`` if none below it does."""
    if problem.hazard(problem.none()) <= goal:
        return 0.0
    cheapest = float(problem.seconds.min())
    high = cheapest
    while problem.hazard(at_price(problem, high)) > loose(goal):
        high *= _STEEP
        if high > most or high > cheapest * _TOO_MUCH:
            return min(most, high)
    low = high / _STEEP
    while high / low >= _NEAR:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if problem.hazard(at_price(problem, middle)) <= loose(goal) else (middle, high)
    return min(most, high)
