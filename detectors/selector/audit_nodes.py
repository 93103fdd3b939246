"""The record of a decision with a set for each node: why each benchmark runs on a node, or does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from mainstay.detectors.selector.audit import NODES_SHOWN, BenchmarkReason, NodeRisk, PlanRecord, found
from mainstay.detectors.selector.coverage import Coverage
from mainstay.detectors.selector.hazard import Floats
from mainstay.detectors.selector.per_node_plan import PerNodePlan
from mainstay.detectors.selector.per_node_search import NodeBenchmarkPairs, PerNodeSets

_RECENT: Final = 0.5
"""Share of the longest time since a look on the node under which a benchmark "ran lately"."""


def record(made: PerNodePlan, coverage: Coverage, nodes: Sequence[str], *, model: str) -> PlanRecord:
    """The record of a decision.

    Args:
        made: the decision.
        coverage: what benchmarks find.
        nodes: [node] names.
        model: where the risks come from, in a few words.
    """
    problem, sets = made.problem, made.sets
    before, after = problem.hazard(problem.none()), sets.hazard
    considered = _considered(problem, sets, coverage)
    spent = sets.chosen @ problem.seconds
    full = float(problem.seconds.sum())
    return PlanRecord(
        benchmarks=tuple(c.benchmark for c in considered if c.chosen),
        seconds=float(spent.max()),
        full_seconds=full,
        node_seconds=float(spent.sum()),
        full_node_seconds=full * len(nodes),
        per_node=True,
        risk_before=_risk(before),
        risk_after=_risk(after),
        risk_full=_risk(problem.hazard(problem.all())),
        target=_risk(sets.goal),
        reached=sets.reached,
        learned=True,
        reason=_sentence(problem, sets, before),
        model=model,
        defects=coverage.defects,
        considered=considered,
        nodes=_nodes(made, coverage, nodes),
    )


def in_order(problem: NodeBenchmarkPairs, sets: PerNodeSets, node: int) -> list[int]:
    """Benchmarks of a node's set, that which takes most hazard off a second first."""
    left = sets.chosen[node].copy()
    open_ = problem.mass[node].copy()
    order = []
    while left.any():
        rate = np.where(left, (open_ @ problem.sees) / problem.seconds, -1.0)
        place = int(np.argmax(rate))
        order.append(place)
        left[place] = False
        open_[problem.sees[:, place]] = 0.0
    return order


def _risk(hazard: float) -> float:
    return -math.expm1(-hazard)


def _considered(problem: NodeBenchmarkPairs, sets: PerNodeSets, coverage: Coverage) -> tuple[BenchmarkReason, ...]:
    gains = problem.gains(sets.chosen)
    runs = sets.chosen.sum(axis=0)
    any_ = runs > 0
    made = []
    for place, name in enumerate(coverage.benchmarks):
        on = int(runs[place])
        gain = float(gains[sets.chosen[:, place], place].sum()) if on else float(gains[:, place].sum())
        spent = float(problem.seconds[place]) * (on or len(gains))
        finds, alone = found(coverage, any_, place)
        least = sets.hazard + gain if on else sets.hazard
        made.append(
            BenchmarkReason(
                benchmark=name, chosen=on > 0, seconds=float(problem.seconds[place]), gain=gain,
                gain_per_second=gain / spent, risk_before=_risk(least), risk_after=_risk(max(least - gain, 0.0)),
                finds=finds, alone=alone, nodes=on, reason=_why(on, len(gains), finds, sets),
            )
        )  # fmt: skip
    return tuple(sorted(made, key=lambda c: (not c.chosen, -c.gain_per_second, c.benchmark)))


def _why(on: int, of: int, finds: int, sets: PerNodeSets) -> str:
    if on:
        return f"pays on {on} of {of} nodes"
    if sets.price == 0:
        return "the risk is under the target without any check"
    if finds == 0:
        return "has found no defect so far"
    return "not worth its time on any node: what it would find is rare there, or others find it"


def _sentence(problem: NodeBenchmarkPairs, sets: PerNodeSets, before: float) -> str:
    goal = _risk(sets.goal)
    if not sets.chosen.any():
        if sets.reached:
            return f"no check needed: a risk of {_risk(before):.2%} is under the target of {goal:.2%}"
        return f"no benchmark is worth its time against a risk of {_risk(before):.2%}, over the target of {goal:.2%}"
    share = problem.cost(sets.chosen) / problem.cost(problem.all())
    nodes = int(sets.chosen.any(axis=1).sum())
    did = (
        f"a set for each node ({share:.0%} of the time of all benchmarks on all) on {nodes} of {len(sets.chosen)} nodes"
    )
    fell = f"{did}: the risk falls from {_risk(before):.2%} to {_risk(sets.hazard):.2%}"
    if sets.reached:
        return f"{fell}, the target is {goal:.2%}"
    rest = "no sets reach" if problem.hazard(problem.all()) > sets.goal else "it is not worth the time to reach"
    return f"{fell}; {rest} {goal:.2%}"


def _nodes(made: PerNodePlan, coverage: Coverage, names: Sequence[str]) -> tuple[NodeRisk, ...]:
    problem, sets = made.problem, made.sets
    whole = problem.left(problem.none())
    kept = problem.left(sets.chosen)
    gains = problem.gains(sets.chosen)
    told = []
    for i in np.argsort(-whole, kind="stable")[:NODES_SHOWN]:
        order = in_order(problem, sets, int(i))
        told.append(
            NodeRisk(
                node=names[i],
                p=_risk(float(whole[i])),
                covered=float(1.0 - kept[i] / whole[i]) if whole[i] > 0 else 0.0,
                checked=bool(order),
                benchmarks=tuple(coverage.benchmarks[b] for b in order),
                seconds=float(problem.seconds[order].sum()),
                reasons={name: _pair(made, gains, int(i), b) for b, name in enumerate(coverage.benchmarks)},
            )
        )
    return tuple(told)


def _pair(made: PerNodePlan, gains: Floats, node: int, place: int) -> str:
    problem, sets = made.problem, made.sets
    gain, seconds = float(gains[node, place]), float(problem.seconds[place])
    age = None if made.ages is None else float(made.ages[node, place])
    if sets.chosen[node, place]:
        ran = "" if age is None else f"; last {_hours(age)} ago"
        return f"alone takes {_risk(gain):.3%} off for {seconds:.0f} s{ran}"
    if sets.price == 0:
        return "not needed: the risk is under the target"
    could = float(problem.mass[node] @ problem.sees[:, place])
    if gain < could / 2:
        return f"the others on this node find most of the {_risk(could):.3%} that it would take off"
    if made.ages is not None and age is not None and age < _RECENT * float(made.ages[node].max()):
        return f"ran {_hours(age)} ago: little can have come since ({_risk(gain):.3%} for {seconds:.0f} s)"
    return f"would take {_risk(gain):.3%} off for {seconds:.0f} s: on other benchmarks the time finds more"


def _hours(hours: float) -> str:
    return f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} d"
