"""The cheapest set of all: what the greedy search is measured against."""

from __future__ import annotations

from typing import Final

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.selector.coverage import Coverage
from mainstay.detectors.selector.risk import SelectionProblem, hazard_of
from mainstay.detectors.selector.set_search import BenchmarkSet, Searchable, _choice, loose, search

EXACT_LIMIT: Final = 16
"""Benchmarks up to which all sets can be looked at: 65,536."""


def exact(problem: Searchable, *, target: float) -> BenchmarkSet:
    """The cheapest set of all 2^n: the oracle that the greedy search is measured against.

    Raises:
        ValueError: more than ``EXACT_LIMIT`` benchmarks.
    """
    n = len(problem.seconds)
    if n > EXACT_LIMIT:
        raise ValueError(f"{n} benchmarks have too many sets to look at all of them: {EXACT_LIMIT} at most")
    bound = hazard_of(target)
    sets = (np.arange(2**n)[None, :] >> np.arange(n)[:, None] & 1).astype(bool)  # [benchmark, set]
    cost = problem.seconds @ sets
    order = np.argsort(cost, kind="stable")
    for start in range(0, len(order), 1024):
        some = order[start : start + 1024]
        hazards = problem.hazards_of(sets[:, some])
        good = np.flatnonzero(hazards <= loose(bound))
        if good.size:
            return _choice(problem, sets[:, some[good[0]]], bound)
    return _choice(problem, ~problem.none(), bound)


def greedy(
    problem: SelectionProblem, *, target: float | None = None, keep: float | None = None, thorough: bool = True
) -> BenchmarkSet:
    """The product's search, by a risk to reach or by the share of the full set's effect to keep."""
    return search(problem, problem.bound(target, keep), thorough=thorough)


def problem_of(coverage: Coverage, seconds: Floats, p: Floats, shares: Floats | None = None) -> SelectionProblem:
    """A problem; without shares of their own all nodes have the fleet's."""
    probabilities = np.asarray(p, np.float64)
    if shares is None:
        shares = np.broadcast_to(coverage.shares(), (len(probabilities), len(coverage.classes)))
    return SelectionProblem(coverage=coverage, seconds=np.asarray(seconds, np.float64), p=probabilities, shares=shares)
