"""Plans for a job and their records, by hand: one benchmark finds nine tenths of what breaks on nodes of known risk."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from bench.lib_exact import problem_of
from mainstay.detectors.selector import node_plan
from mainstay.detectors.selector.audit import NODES_SHOWN, BenchmarkReason, NodeRisk, fallback, record
from mainstay.detectors.selector.cli import _row
from mainstay.detectors.selector.coverage import Coverage, DefectRecord
from mainstay.detectors.selector.node_plan import NodePlan
from mainstay.detectors.selector.risk import SelectionProblem
from mainstay.detectors.selector.set_search import BenchmarkSet, _starts


def problem(*p: float, found: int = 8, seconds: float = 10.0) -> SelectionProblem:
    """``sees`` found all defects, (1 + 8) / (2 + 8) of those to come; ``blind``, which takes 30 s, is made for none."""
    seen = [DefectRecord(defect="c", found=frozenset({"sees"}))] * found
    coverage = Coverage.learn(seen, ["sees", "blind"], classes=["c"], catches={"blind": []})
    return problem_of(coverage, np.array([seconds, 30.0]), np.array(p))


@pytest.mark.parametrize(("n", "counts"), [(32, [24, 16, 12, 8, 4, 2]), (16, [12, 8, 6, 4, 2, 1]), (2, [1]), (1, [])])
def test_shares_of_the_nodes_are_tried_and_the_riskiest_are_in_each(n: int, counts: list[int]) -> None:
    tried = list(node_plan._riskiest(problem(*np.linspace(0.1, 0.2, n))))
    assert [int(checked.sum()) for checked in tried] == counts
    assert all(checked[-count:].all() for checked, count in zip(tried, counts, strict=True))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_exactly_the_nodes_that_the_target_needs_are_checked(k: int) -> None:
    """A target that is the risk with the k riskiest nodes checked."""
    p = [0.3, 0.05, 0.4, 0.2, 0.1]
    worst = np.argsort(p)[::-1][:k]
    target = 1 - math.prod(1 - each * (0.1 if i in worst else 1.0) for i, each in enumerate(p))
    made = node_plan.make(problem(*p), target=target)
    assert sorted(np.flatnonzero(made.checked)) == sorted(worst)
    assert made.choice.hazard == pytest.approx(-math.log1p(-target))
    assert made.node_seconds == 10.0 * k


@pytest.mark.parametrize(
    ("worth", "spare", "checked"),
    [
        (100.0, True, 3),  # 0.64 incidents off for 10 s on each risky node, 0.001 on the others
        (100.0, False, 16),  # 1.94 off for 160 s: worth 194 s
        (82.0, False, 0),  # and worth 159 s
        (15.0, True, 0),  # 9.6 s for 10 s
    ],
)
def test_a_check_runs_where_it_averts_more_than_it_costs(worth: float, spare: bool, checked: int) -> None:
    made = node_plan.make(problem(*[0.5] * 3, *[0.001] * 13), target=0.0, worth=worth, spare_nodes=spare)
    assert made.checked.tolist() == [True] * checked + [False] * (16 - checked)
    assert made.choice.seconds == (10.0 if checked else 0.0)
    assert made.choice.hazard == pytest.approx(
        sum(-math.log1p(-p * (0.1 if at < checked else 1.0)) for at, p in enumerate([0.5] * 3 + [0.001] * 13))
    )


def test_a_check_that_costs_just_what_it_averts_runs() -> None:
    """Six of six found are 7/8: of p = 1/2 it takes 7/16 incidents off, worth 7 s at 16 s an incident."""
    made = node_plan.make(problem(*[0.5] * 3, *[1e-6] * 13, found=6, seconds=7.0), target=0.0, worth=16.0)
    assert made.checked.tolist() == [True] * 3 + [False] * 13


def test_incidents_below_the_target_are_worth_nothing() -> None:
    assert not node_plan.make(problem(0.5), target=0.5, worth=1e6).choice.chosen.any()
    one = node_plan.make(problem(0.5, 0.5), target=0.6, worth=1e6)
    assert (int(one.checked.sum()), one.choice.reached) == (1, True), "the second would cost 10 s for nothing"


@pytest.mark.parametrize("worth", [0.0, -5.0, math.nan])
def test_an_incident_that_is_worth_nothing_is_refused(worth: float) -> None:
    with pytest.raises(ValueError, match=r"must be worth more than .* node-seconds"):
        node_plan.make(problem(0.5), target=0.1, worth=worth)


# risk


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 2), (2, 0)])
def test_shares_of_other_nodes_or_classes_are_refused(shape: tuple[int, int]) -> None:
    known = problem(0.1, 0.1)
    with pytest.raises(ValueError, match=r"shares have shape .*, wanted \[node, class\]"):
        SelectionProblem(coverage=known.coverage, seconds=known.seconds, p=known.p, shares=np.ones(shape))


def test_the_bound_of_a_policy() -> None:
    """To keep 70 % of what 8 defects taught leaves room for (0.3 x 10 - 1) / 8 of them, of 95 % for none."""
    one = problem(0.5)
    before, after = math.log(2), -math.log(0.95)
    assert one.bound(0.2, None) == pytest.approx(-math.log(0.8))
    assert (one.bound(0.0, None), one.bound(1.0, None)) == (0.0, math.inf)
    assert one.bound(None, 0.7) == pytest.approx(before - 0.75 * (before - after))
    assert one.bound(None, 0.95) == pytest.approx(after)
    assert problem(0.5, found=0).bound(None, 0.9) == pytest.approx(-math.log(0.75)), "half is found of what is unknown"
    for wrong in ((None, None), (0.1, 0.9), (-0.01, None), (None, 1.01)):
        with pytest.raises(ValueError, match="share"):
            one.bound(*wrong)


# records


def test_the_record_of_a_plan_adds_up() -> None:
    whole = problem(0.5, 0.001, 0.5)
    said = record(whole, node_plan.make(whole, target=0.0, worth=100.0), ["n0", "n1", "n2"], model="m")
    assert (said.seconds, said.full_seconds, said.node_seconds, said.full_node_seconds) == (10.0, 40.0, 20.0, 120.0)
    assert (said.benchmarks, said.defects, said.model, said.learned, said.reached) == (("sees",), 8, "m", True, False)
    assert said.risk_before == pytest.approx(1 - 0.5 * 0.999 * 0.5)
    assert said.risk_after == pytest.approx(1 - 0.95 * 0.999 * 0.95)
    assert said.risk_full == pytest.approx(1 - 0.95 * 0.9999 * 0.95)
    assert said.reason == (
        "1 of 2 benchmarks (25% of the time of all) on 2 of 3 nodes:"
        " the risk falls from 75.02% to 9.84%; no set reaches 0.00%"
    )
    assert [(n.node, n.p, n.checked, n.benchmarks, n.seconds) for n in said.nodes] == [
        ("n0", 0.5, True, ("sees",), 10.0),
        ("n2", 0.5, True, ("sees",), 10.0),
        ("n1", 0.001, False, (), 0.0),
    ]
    assert [n.covered for n in said.nodes] == pytest.approx([0.9, 0.9, 0.0])
    sees, blind = said.considered
    assert (sees.benchmark, sees.chosen, sees.nodes, sees.finds, sees.alone) == ("sees", True, 2, 8, 8)
    assert sees.gain == pytest.approx(said.risk_before - said.risk_after)
    assert sees.gain_per_second == pytest.approx(sees.gain / 10)
    assert sees.reason == "most risk off a second: pick 1 of 1"
    assert (blind.benchmark, blind.chosen, blind.nodes, blind.finds, blind.gain) == ("blind", False, 0, 0, 0.0)
    assert blind.reason == "has found no defect so far"


@pytest.mark.parametrize(
    ("target", "worth", "said"),
    [
        (0.2, None, "on 2 of 3 nodes: the risk falls from 75.02% to 9.84%, under the target of 20.00%"),
        (0.098, 100.0, "on 2 of 3 nodes: the risk falls from 75.02% to 9.84%; it is not worth the time to reach 9.80%"),
        (0.8, None, "no check needed: a risk of 75.02% is under the target of 80.00%"),
        (0.2, 1.0, "no benchmark is worth its time against a risk of 75.02%, over the target of 20.00%"),
    ],
)
def test_the_decision_in_a_sentence(target: float, worth: float | None, said: str) -> None:
    whole = problem(0.5, 0.001, 0.5)
    told = record(whole, node_plan.make(whole, target=target, worth=worth), ["a", "b", "c"], model="m")
    assert told.reason.endswith(said)
    assert (told.target, told.reached) == (pytest.approx(target), worth is None)


@pytest.mark.parametrize(
    ("chosen", "p", "bound", "said"),
    [
        ([False, False], 0.1, math.inf, "the risk is under the target without any check"),
        ([True, False], 0.1, math.inf, "the target is reached without it"),
        ([True, False], 0.1, 0.0, "not worth its time on these nodes"),
        ([True, False], 0.0, -1.0, "takes no risk off these nodes"),
    ],
)
def test_why_a_benchmark_is_left_out(chosen: list[bool], p: float, bound: float, said: str) -> None:
    """``b`` found one defect of three that ``a`` did not."""
    seen = [DefectRecord(defect="c", found=frozenset(found)) for found in ("a", "a", "b")]
    whole = problem_of(Coverage.learn(seen, ["a", "b"]), np.array([1.0, 2.0]), np.array([p]))
    mask = np.array(chosen)
    made = NodePlan(BenchmarkSet(mask, whole.hazard(mask), whole.cost(mask), bound), np.array([mask.any()]))
    left = record(whole, made, ["n"], model="m").considered[-1]
    assert (left.benchmark, left.chosen, left.finds, left.alone, left.reason) == ("b", False, 1, 1, said)
    before, after = (0.4, 0.2) if chosen[0] else (1.0, 0.6)  # shares missed: (1 + found) / (2 + 3) are found
    assert (left.risk_before, left.risk_after) == (pytest.approx(p * before), pytest.approx(p * after))
    assert left.gain_per_second == pytest.approx(left.gain / 2.0)


def test_a_fallback_claims_no_gain_and_lists_fifty_nodes() -> None:
    nodes = [f"n{i}" for i in range(NODES_SHOWN + 1)]
    said = fallback(["a", "b"], [1.0, 2.0], nodes, why="3 incidents")
    assert (said.seconds, said.full_seconds, said.node_seconds, said.full_node_seconds) == (3.0, 3.0, 153.0, 153.0)
    assert (said.risk_before, said.risk_after, said.risk_full, said.target, said.defects) == (1.0, 1.0, 1.0, 0.0, 0)
    assert said.reason == "too little history: 3 incidents; the whole suite runs"
    for one, name, cost in zip(said.considered, "ab", (1.0, 2.0), strict=True):
        assert (one.benchmark, one.chosen, one.seconds, one.nodes) == (name, True, cost, 51)
        assert (one.gain, one.gain_per_second, one.finds, one.alone) == (0.0, 0.0, 0, 0)
        assert (one.risk_before, one.risk_after, one.reason) == (1.0, 1.0, "too little is known to leave it out")
    assert [n.node for n in said.nodes] == nodes[:50]
    assert {(n.p, n.covered, n.checked, n.benchmarks, n.seconds) for n in said.nodes} == {
        (1.0, 0.0, True, ("a", "b"), 3.0)
    }
    least = {"benchmark": "a", "chosen": True, "seconds": 1.0, "gain": 0.0, "gain_per_second": 0.0, "risk_before": 0.0}
    least |= {"risk_after": 0.0, "finds": 0, "alone": 0, "reason": ""}
    assert msgspec.convert(least, BenchmarkReason).nodes == 0
    bare = msgspec.convert({"node": "n", "p": 0.0, "covered": 0.0, "checked": True}, NodeRisk)
    assert (bare.benchmarks, bare.seconds, bare.reasons) == ((), 0.0, {})
    assert _row(said.considered[0], said)[4:] == ("?",) * 5 + ("too little is known to leave it out",)


@pytest.mark.parametrize(("thorough", "sizes"), [(True, [1, 1, 1, 2, 2, 2]), (False, [1, 1, 1])])
def test_a_thorough_search_starts_from_pairs_too(*, thorough: bool, sizes: list[int]) -> None:
    coverage = Coverage.learn([], ["a", "b", "c"], classes=["c"])
    starts = _starts(problem_of(coverage, np.ones(3), np.array([0.1])), thorough=thorough)
    assert [int(start.sum()) for start in starts] == sizes
