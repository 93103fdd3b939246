"""The cheapest set of benchmarks that brings the risk under a target: a greedy search, and the exact answer.

Greedy by risk taken away per second is the classic for covering; alone it can pay half as much again as needed, as
its first picks become redundant. So it is started from every single benchmark and every pair as well, what turned out
redundant is dropped, and single benchmarks are exchanged for cheaper ones. The exact answer looks at all 2^n sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Protocol

import numpy as np

from mainstay.detectors.selector.hazard import Bools, Floats

PAIRS_LIMIT: Final = 24
"""Benchmarks up to which every pair is tried as a start."""
_NODES_LIMIT: Final = 512
"""Nodes up to which that takes well under a second."""
_SLACK: Final = 1e-12
"""Rounding, of one."""


class Searchable(Protocol):
    """What is searched: a risk's ``Problem``, or (node, benchmark) pairs as in ``tailor.Flat``."""

    @property
    def seconds(self) -> Floats: ...
    @property
    def p(self) -> Floats: ...
    def none(self) -> Bools: ...
    def cost(self, chosen: Bools, /) -> float: ...
    def hazard(self, chosen: Bools, /) -> float: ...
    def hazards_of(self, sets: Bools, /) -> Floats:
        """[set] of sets [candidate, set]."""


@dataclass(frozen=True, slots=True)
class BenchmarkSet:
    """A set of benchmarks."""

    chosen: Bools
    """[benchmark]."""
    hazard: float
    """-log(1 - risk) that is left after it."""
    seconds: float
    bound: float
    """The hazard to reach."""

    @property
    def risk(self) -> float:
        """What is left after it."""
        return -math.expm1(-self.hazard)

    @property
    def goal(self) -> float:
        """The risk to reach."""
        return -math.expm1(-self.bound)

    @property
    def reached(self) -> bool:
        return self.hazard <= loose(self.bound)


def search(problem: Searchable, bound: float, *, thorough: bool) -> BenchmarkSet:
    """The greedy search for a hazard to reach."""
    best = _grow(problem, problem.none(), bound)
    if not best.reached or not best.chosen.any():
        return best
    best = _polish(problem, best)
    for start in _starts(problem, thorough=thorough):
        if problem.cost(start) < best.seconds:
            grown = _grow(problem, start, bound, below=best.seconds)
            if grown.reached and grown.seconds < best.seconds:
                best = _polish(problem, grown)
    return best


def quick(problem: Searchable, bound: float, *, least_rate: float = 0.0) -> BenchmarkSet:
    """The greedy search from nothing, with what is redundant dropped; no other starts.

    Args:
        problem: what is to be decided.
        bound: hazard to reach.
        least_rate: hazard per second that a benchmark must take away to be worth it, even if the bound is not reached.
    """
    found = _grow(problem, problem.none(), bound, least_rate=least_rate)
    return _polish(problem, found) if found.reached and found.chosen.any() else found


def in_order(problem: Searchable, chosen: Bools) -> list[tuple[int, float, float]]:
    """A set in the order in which it pays: (benchmark, risk before it, risk after it), best first."""
    done, left = problem.none(), chosen.copy()
    hazard = problem.hazard(done)
    steps: list[tuple[int, float, float]] = []
    while left.any():
        hazards = _with_each(problem, done)
        rates = np.where(left, (hazard - hazards) / problem.seconds, -np.inf)
        place = int(np.argmax(rates))
        after = float(hazards[place])
        steps.append((place, -math.expm1(-hazard), -math.expm1(-after)))
        hazard = after
        done[place], left[place] = True, False
    return steps


def _starts(problem: Searchable, *, thorough: bool) -> Iterator[Bools]:
    n = len(problem.seconds)
    pairs = thorough and n <= PAIRS_LIMIT and len(problem.p) <= _NODES_LIMIT
    sizes = (1, 2) if pairs else (1,)
    for size in sizes:
        for places in combinations(range(n), size):
            start = problem.none()
            start[list(places)] = True
            yield start


def _with_each(problem: Searchable, chosen: Bools) -> Floats:
    """[benchmark] hazard after the set with each benchmark added."""
    sets = chosen[:, None] | np.eye(len(chosen), dtype=bool)
    return problem.hazards_of(sets)


def _grow(
    problem: Searchable, start: Bools, bound: float, *, below: float = np.inf, least_rate: float = 0.0
) -> BenchmarkSet:
    """Add what takes most hazard away per second until the bound, or ``below`` seconds, is reached."""
    chosen = start.copy()
    hazard, cost = problem.hazard(chosen), problem.cost(chosen)
    while hazard > loose(bound) and cost < below:
        hazards = _with_each(problem, chosen)
        gain = np.where(chosen, 0.0, hazard - hazards)
        # what lies beyond the bound is worth nothing: else an expensive benchmark that does too much would win the last
        # place
        rate = np.minimum(gain, hazard - bound) / problem.seconds
        place = int(np.argmax(rate))
        if gain[place] <= _SLACK * hazard or rate[place] < least_rate:
            break
        chosen[place] = True
        hazard, cost = float(hazards[place]), cost + float(problem.seconds[place])
    return BenchmarkSet(chosen, hazard, cost, bound)


def loose(bound: float) -> float:
    """The bound with room for rounding."""
    return bound + _SLACK * (1 + bound)


def _polish(problem: Searchable, found: BenchmarkSet) -> BenchmarkSet:
    """Drop what is redundant, the dearest first, and exchange one benchmark for a cheaper one, until nothing helps."""
    best = found
    while True:
        better = _cheaper(problem, best)
        if better is None:
            return best
        best = better


def _cheaper(problem: Searchable, found: BenchmarkSet) -> BenchmarkSet | None:
    """The cheapest set that differs by one dropped or exchanged benchmark and still reaches the goal."""
    tries: list[Bools] = []
    for place in np.flatnonzero(found.chosen):
        without = found.chosen.copy()
        without[place] = False
        tries.append(without)
        for other in np.flatnonzero(~found.chosen & (problem.seconds < problem.seconds[place])):
            swapped = without.copy()
            swapped[other] = True
            tries.append(swapped)
    if not tries:
        return None
    sets = np.stack(tries, axis=1)
    hazards = problem.hazards_of(sets)
    costs = np.where(hazards <= loose(found.bound), problem.seconds @ sets, np.inf)
    least = int(np.argmin(costs))
    return _choice(problem, sets[:, least], found.bound) if costs[least] < found.seconds else None


def _choice(problem: Searchable, chosen: Bools, bound: float) -> BenchmarkSet:
    return BenchmarkSet(chosen.copy(), problem.hazard(chosen), problem.cost(chosen), bound)
