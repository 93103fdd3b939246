"""What to run before a job, and on which of its nodes: the least node-seconds that bring its risk under a target.

Risk is uneven: a few nodes carry most of it. A node that the plan leaves alone keeps its whole risk, so leaving it
alone is taken into the same residual risk as leaving a benchmark out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.selector.hazard import Bools
from mainstay.detectors.selector.risk import SelectionProblem
from mainstay.detectors.selector.set_search import BenchmarkSet, quick, search

_SHARES = (0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)
"""Shares of the nodes, the riskiest first, that are tried."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Benchmarks, and nodes to run them on."""

    choice: BenchmarkSet
    checked: Bools
    """[node]."""

    @property
    def node_seconds(self) -> float:
        return self.choice.seconds * float(self.checked.sum())


def make(
    problem: SelectionProblem,
    *,
    target: float | None = None,
    keep: float | None = None,
    spare_nodes: bool = True,
    worth: float | None = None,
    thorough: bool = True,
) -> NodePlan:
    """The cheapest plan.

    Where nothing reaches the target, every benchmark that takes risk away runs on every node.

    Args:
        problem: of all nodes of the job.
        target: risk of the job to reach; or
        keep: share of what the full set on all nodes takes away that must be kept.
        spare_nodes: whether nodes may be left alone.
        worth: node-seconds that one averted incident is worth. What takes away less than it costs is then not run,
            even where the target is not reached; None: at any cost.
        thorough: search longer, see ``select.greedy``.

    Raises:
        ValueError: see ``SelectionProblem.bound``.
    """
    bound = problem.bound(target, keep)
    if worth is not None:
        return _worthwhile(problem, bound, worth, spare_nodes=spare_nodes)
    everywhere = NodePlan(search(problem, bound, thorough=thorough), np.ones(len(problem.p), bool))
    if not everywhere.choice.chosen.any():
        return NodePlan(everywhere.choice, np.zeros(len(problem.p), bool))
    if not everywhere.choice.reached or not spare_nodes:
        return everywhere
    best = _trimmed(problem, everywhere, bound)
    for checked in _riskiest(problem):
        found = quick(problem.on(checked), bound)
        if found.reached:
            best = min(best, _trimmed(problem, NodePlan(found, checked), bound), key=lambda plan: plan.node_seconds)
    refined = NodePlan(search(problem.on(best.checked), bound, thorough=thorough), best.checked)
    return min(best, refined, key=lambda plan: plan.node_seconds)


def _worthwhile(problem: SelectionProblem, bound: float, worth: float, *, spare_nodes: bool) -> NodePlan:
    """The plan of least total: incidents left above the bound, and the checks as the incidents they are worth."""
    if not worth > 0:
        raise ValueError(f"an averted incident must be worth more than {worth:g} node-seconds")
    n = len(problem.p)
    plans = [NodePlan(BenchmarkSet(problem.none(), problem.hazard(problem.none()), 0.0, bound), np.zeros(n, bool))]
    for checked in (np.ones(n, bool), *(_riskiest(problem) if spare_nodes else ())):
        found = quick(problem.on(checked), bound, least_rate=float(checked.sum()) / worth)
        plan = NodePlan(found, checked)
        if spare_nodes:
            plan = _trimmed(problem, plan, bound) if found.reached else _paying(problem, plan, worth)
        plans.append(plan)
    return min(plans, key=lambda plan: max(plan.choice.hazard, bound) + plan.node_seconds / worth)


def _paying(problem: SelectionProblem, plan: NodePlan, worth: float) -> NodePlan:
    """Leave alone the nodes on which the chosen benchmarks cost more than they are worth."""
    taken = problem.p * (problem.shares @ problem.coverage.detection_probability(plan.choice.chosen))
    checked = plan.checked & (worth * taken >= plan.choice.seconds)
    if not checked.any():
        return plan
    hazard = problem.on(checked).hazard(plan.choice.chosen)
    return NodePlan(BenchmarkSet(plan.choice.chosen, hazard, plan.choice.seconds, plan.choice.bound), checked)


def _order(problem: SelectionProblem) -> list[int]:
    """Nodes, those on which a check takes most risk away first."""
    covered = problem.shares @ problem.coverage.detection_probability(problem.all())
    return [int(i) for i in np.argsort(-problem.p * covered, kind="stable")]


def _riskiest(problem: SelectionProblem) -> Iterator[Bools]:
    order, n = _order(problem), len(problem.p)
    for k in sorted({max(1, round(share * n)) for share in _SHARES} - {n}, reverse=True):
        checked = np.zeros(n, bool)
        checked[order[:k]] = True
        yield checked


def _trimmed(problem: SelectionProblem, plan: NodePlan, bound: float) -> NodePlan:
    """Leave alone as many of the checked nodes, the least risky first, as the bound allows: by halving."""
    order = [i for i in _order(problem) if plan.checked[i]]
    low, high = 1, len(order)  # high nodes reach the bound
    covered = problem.coverage.detection_probability(plan.choice.chosen)[:, None]

    def hazard(k: int) -> float:
        some = np.zeros(len(problem.p), bool)
        some[order[:k]] = True
        return float(problem.on(some).hazards(covered)[0])

    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if hazard(middle) <= bound + 1e-12 * (1 + bound) else (middle + 1, high)
    checked = np.zeros(len(problem.p), bool)
    checked[order[:high]] = True
    choice = BenchmarkSet(plan.choice.chosen, hazard(high), plan.choice.seconds, bound)
    return NodePlan(choice, checked)
