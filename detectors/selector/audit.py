"""Why each benchmark runs or does not, as data that is stored with the plan and printed as a table.

Every candidate is in the record: what it would take off the risk, what it costs, the risk before and after it, and a
sentence. The chosen come first, in the order in which they pay; the others follow, with what each would still add.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from mainstay.detectors.selector.coverage import Coverage
from mainstay.detectors.selector.hazard import Bools
from mainstay.detectors.selector.node_plan import NodePlan
from mainstay.detectors.selector.risk import SelectionProblem
from mainstay.detectors.selector.set_search import BenchmarkSet, in_order

NODES_SHOWN = 50


class BenchmarkReason(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark in a decision."""

    benchmark: str
    chosen: bool
    seconds: float
    """What it costs on a node."""
    gain: float
    """Risk of the job that it takes away: of a chosen one at its place in the order, of another after all chosen."""
    gain_per_second: float
    risk_before: float
    risk_after: float
    finds: int
    """Past defects that it found."""
    alone: int
    """Of these, the ones that no other in the plan found."""
    reason: str
    nodes: int = 0
    """On how many nodes it runs."""


class NodeRisk(msgspec.Struct, frozen=True, kw_only=True):
    """What a node brings into the job."""

    node: str
    p: float
    """P(incident within the job | survived so far)."""
    covered: float
    """Share of its defects that the plan finds."""
    checked: bool
    """Whether anything runs on it."""
    benchmarks: tuple[str, ...] = ()
    """What runs on it, in this order."""
    seconds: float = 0.0
    """What that takes."""
    reasons: dict[str, str] = {}
    """Benchmark → why it runs on this node, or does not; empty where all nodes have one set."""


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision."""

    benchmarks: tuple[str, ...]
    """To run, in this order; with sets of their own, all that any node runs."""
    seconds: float
    """On a node; with sets of their own, on the node that takes longest."""
    full_seconds: float
    """What all candidates together cost on a node."""
    node_seconds: float
    full_node_seconds: float
    """On all nodes of the job."""
    per_node: bool = False
    """Whether each node has a set of its own."""
    risk_before: float
    """Of an incident in the job, if nothing is run."""
    risk_after: float
    risk_full: float
    """If everything is run."""
    target: float
    reached: bool
    learned: bool
    """False: nothing could be learned, and the plan is the whole suite."""
    reason: str
    """The decision in a sentence."""
    model: str
    """What the risks come from."""
    defects: int
    """Past defects that coverage was learned from."""
    considered: tuple[BenchmarkReason, ...]
    nodes: tuple[NodeRisk, ...]
    """The riskiest first, fifty at most."""


def record(whole: SelectionProblem, made: NodePlan, nodes: Sequence[str], *, model: str) -> PlanRecord:
    """The record of a decision.

    Args:
        whole: what was decided, of all nodes.
        made: the decision.
        nodes: [node] names.
        model: where the risks come from, in a few words.
    """
    choice, problem = made.choice, whole.on(made.checked if made.choice.chosen.any() else np.ones(len(nodes), bool))
    names = problem.coverage.benchmarks
    steps = in_order(problem, choice.chosen)
    taken = [
        _considered(problem, choice, place, (before, after), f"most risk off a second: pick {k + 1} of {len(steps)}")
        for k, (place, before, after) in enumerate(steps)
    ]
    rest = [_left_out(problem, choice, int(place)) for place in np.flatnonzero(~choice.chosen)]
    rest.sort(key=lambda c: (-c.gain_per_second, c.benchmark))
    before = problem.residual(problem.none())
    return PlanRecord(
        benchmarks=tuple(names[place] for place, *_ in steps),
        seconds=choice.seconds,
        full_seconds=problem.cost(problem.all()),
        node_seconds=made.node_seconds,
        full_node_seconds=problem.cost(problem.all()) * len(nodes),
        risk_before=before,
        risk_after=choice.risk,
        risk_full=whole.residual(whole.all()),
        target=choice.goal,
        reached=choice.reached,
        learned=True,
        reason=_sentence(problem, choice, before, made),
        model=model,
        defects=problem.coverage.defects,
        considered=(*taken, *rest),
        nodes=_nodes(problem, made, nodes),
    )


def fallback(benchmarks: Sequence[str], seconds: Sequence[float], nodes: Sequence[str], *, why: str) -> PlanRecord:
    """The record of a decision that nothing could be learned for: everything runs, as unknown is never healthy.

    Args:
        benchmarks: of the suite, in its order.
        seconds: [benchmark] what each is expected to cost.
        nodes: names.
        why: what is missing.
    """
    said = "too little is known to leave it out"
    return PlanRecord(
        benchmarks=tuple(benchmarks),
        seconds=float(sum(seconds)),
        full_seconds=float(sum(seconds)),
        node_seconds=float(sum(seconds)) * len(nodes),
        full_node_seconds=float(sum(seconds)) * len(nodes),
        risk_before=1.0,
        risk_after=1.0,
        risk_full=1.0,
        target=0.0,
        reached=False,
        learned=False,
        reason=f"too little history: {why}; the whole suite runs",
        model="none",
        defects=0,
        considered=tuple(
            BenchmarkReason(
                benchmark=name, chosen=True, seconds=cost, gain=0.0, gain_per_second=0.0, risk_before=1.0,
                risk_after=1.0, finds=0, alone=0, reason=said, nodes=len(nodes),
            )
            for name, cost in zip(benchmarks, seconds, strict=True)
        ),
        nodes=tuple(
            NodeRisk(
                node=node, p=1.0, covered=0.0, checked=True, benchmarks=tuple(benchmarks), seconds=float(sum(seconds))
            )
            for node in nodes[:NODES_SHOWN]
        ),
    )  # fmt: skip


def _considered(
    problem: SelectionProblem, choice: BenchmarkSet, place: int, risks: tuple[float, float], why: str
) -> BenchmarkReason:
    (before, after), seconds = risks, float(problem.seconds[place])
    finds, alone = found(problem.coverage, choice.chosen, place)
    checked = len(problem.p) if problem.checked is None else int(problem.checked.sum())
    return BenchmarkReason(
        benchmark=problem.coverage.benchmarks[place],
        chosen=bool(choice.chosen[place]),
        seconds=seconds,
        gain=before - after,
        gain_per_second=(before - after) / seconds,
        risk_before=before,
        risk_after=after,
        finds=finds,
        alone=alone,
        reason=why,
        nodes=checked if choice.chosen[place] else 0,
    )


def _left_out(problem: SelectionProblem, choice: BenchmarkSet, place: int) -> BenchmarkReason:
    more = choice.chosen.copy()
    more[place] = True
    after = problem.residual(more)
    finds, alone = found(problem.coverage, choice.chosen, place)
    gain = choice.risk - after
    if choice.reached and not choice.chosen.any():
        why = "the risk is under the target without any check"
    elif finds == 0:
        why = "has found no defect so far"
    elif alone == 0:
        why = f"the chosen ones found all of its {finds} defects too"
    elif choice.reached:
        why = "the target is reached without it"
    else:
        why = "not worth its time on these nodes" if gain > 0 else "takes no risk off these nodes"
    return _considered(problem, choice, place, (choice.risk, choice.risk - max(gain, 0.0)), why)


def found(coverage: Coverage, chosen: Bools, place: int) -> tuple[int, int]:
    """Of a benchmark: how many past defects a benchmark found, and how many of them no other in the plan did."""
    per_pattern = coverage.counts.sum(axis=0)
    others = chosen.copy()
    others[place] = False
    mine = coverage.patterns[:, place]
    theirs = (coverage.patterns & others).any(axis=1)
    return int(per_pattern[mine].sum()), int(per_pattern[mine & ~theirs].sum())


def _sentence(problem: SelectionProblem, choice: BenchmarkSet, before: float, made: NodePlan) -> str:
    if not choice.chosen.any():
        if choice.reached:
            return f"no check needed: a risk of {before:.2%} is under the target of {choice.goal:.2%}"
        return f"no benchmark is worth its time against a risk of {before:.2%}, over the target of {choice.goal:.2%}"
    share = choice.seconds / problem.cost(problem.all())
    did = f"{int(choice.chosen.sum())} of {len(choice.chosen)} benchmarks ({share:.0%} of the time of all)"
    did += f" on {int(made.checked.sum())} of {len(made.checked)} nodes"
    if choice.reached:
        return f"{did}: the risk falls from {before:.2%} to {choice.risk:.2%}, under the target of {choice.goal:.2%}"
    full = problem.on(np.ones(len(made.checked), bool)).residual(problem.all())
    rest = "no set reaches" if full > choice.goal else "it is not worth the time to reach"
    return f"{did}: the risk falls from {before:.2%} to {choice.risk:.2%}; {rest} {choice.goal:.2%}"


def _nodes(problem: SelectionProblem, made: NodePlan, names: Sequence[str]) -> tuple[NodeRisk, ...]:
    covered = (problem.shares @ problem.coverage.detection_probability(made.choice.chosen)) * made.checked
    order = np.argsort(-problem.p, kind="stable")[:NODES_SHOWN]
    run = tuple(problem.coverage.benchmarks[place] for place, *_ in in_order(problem, made.choice.chosen))
    return tuple(
        NodeRisk(
            node=names[i],
            p=float(problem.p[i]),
            covered=float(covered[i]),
            checked=bool(made.checked[i]),
            benchmarks=run if made.checked[i] else (),
            seconds=made.choice.seconds if made.checked[i] else 0.0,
        )
        for i in order
    )
