"""Ages, reasons, sums and texts of the selector, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.finding import join_names
from mainstay.detectors.selector import audit_nodes, backtest, cli, per_node_plan, per_node_search
from mainstay.detectors.selector.audit import BenchmarkReason, NodeRisk, PlanRecord
from mainstay.detectors.selector.backtest import BacktestResult, SelectionDecision
from mainstay.detectors.selector.coverage import Coverage, DefectRecord
from mainstay.detectors.selector.fleet_history import (
    BenchmarkCost,
    CleanCheck,
    FleetHistory,
    PastDefect,
    SelectionPolicy,
    ValidationOpportunity,
)
from mainstay.detectors.selector.history import HOUR, Incident, NodeHistory
from mainstay.detectors.selector.per_node_search import NodeBenchmarkPairs, PerNodeSets


def hours(*numbers: float) -> tuple[float, ...]:
    return tuple(HOUR * number for number in numbers)


def node(name: str = "n", *spans: tuple[float, float | None], until: float = 1000.0, **more: Any) -> NodeHistory:
    incidents = tuple(Incident(at=a * HOUR, back_at=None if b is None else b * HOUR) for a, b in spans)
    return NodeHistory(node=name, since=0.0, until=until * HOUR, incidents=incidents, **more)


# ages and sets


def past(*nodes: NodeHistory, looks: tuple[CleanCheck, ...] = ()) -> FleetHistory:
    costs = (BenchmarkCost(name="a", seconds=10.0), BenchmarkCost(name="b", seconds=20.0))
    return FleetHistory(benchmarks=costs, nodes=nodes, looks=looks)


@pytest.mark.parametrize(
    ("known", "looks", "ages"),
    [
        (node(), [], [100.0, 100.0]),
        (node("n", (40, 60)), [], [40.0, 40.0]),  # since it came back
        (node("n", (90, 120)), [], [100.0, 100.0]),  # it is down
        (node("n", checks=hours(30, 70, 100)), [], [30.0, 30.0]),  # a check counts as all, if nothing says what ran
        (node("n", (40, 80), checks=hours(70)), [], [20.0, 20.0]),
        (node("n", checks=hours(70)), [(50, "a")], [50.0, 100.0]),
        (node(), [(50, "a"), (60, "b"), (55, "a"), (100, "a"), (0, "b")], [45.0, 40.0]),
        (node("n", (40, 55)), [(50, "a"), (55, "b"), (56, "other")], [45.0, 45.0]),
    ],
)
def test_how_long_ago_each_benchmark_ran(known: NodeHistory, looks: list[tuple[float, str]], ages: list[float]) -> None:
    clean = tuple(CleanCheck(at=at * HOUR, node="n", ran=(name,)) for at, name in looks)
    assert per_node_plan._ages(past(known, looks=clean), [known], 100 * HOUR).tolist() == [ages]


def test_what_cannot_have_come_yet_has_no_mass() -> None:
    """Ages of -1, 2 and 50 usual times: 0, 2 and 7 times the hazard of a usual time."""
    coverage = Coverage.learn([DefectRecord(defect="d", found=frozenset({"a"}))] * 8, ["a"])
    ages = np.array([[-3.0], [6.0], [150.0]])
    made = per_node_search.pairs(coverage, np.ones(1), np.full(3, 0.5), np.ones((3, 1)), ages, usual=3.0)
    assert made.mass.sum(axis=1) == pytest.approx(np.array([0.0, 2.0, 7.0]) * math.log(2) * 9 / 10)
    assert made.rest == pytest.approx([math.log(2) / 10] * 3)
    plain = per_node_search.pairs(coverage, np.ones(1), np.full(1, 0.5), np.ones((1, 1)), np.array([[2.0]]))
    assert plain.mass.sum() == pytest.approx(2.0 * math.log(2) * 9 / 10), "the usual time is one, if none is given"


def test_as_usual_forgets_later_checks_alone() -> None:
    told = per_node_plan.as_usual(node("n", checks=hours(1, 2, 3)), 2 * HOUR)
    assert told.checks == hours(1, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": np.array([1.0])}, {"seconds": np.array([0.0, 1.0])}, {"seconds": np.array([1.0, np.inf])},
        {"mass": np.ones(1)}, {"mass": np.ones((1, 2))}, {"rest": np.ones(2)}, {"mass": -np.ones((1, 1))},
        {"rest": -np.ones(1)}, {"mass": np.ones((0, 1)), "rest": np.ones(0)},
    ],
)  # fmt: skip
def test_pairs_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    given = {"seconds": np.ones(2), "sees": np.ones((1, 2), bool), "mass": np.ones((1, 1)), "rest": np.zeros(1)}
    assert NodeBenchmarkPairs(**given).hazard(np.zeros((1, 2), bool)) == 1.0
    with pytest.raises(ValueError, match=r"cost a finite time above 0 s|wanted .node, 1 patterns|no hazard below 0"):
        NodeBenchmarkPairs(**(given | wrong))


def test_the_price_of_a_hazard_is_the_least_that_reaches_the_goal() -> None:
    """A hazard of 0.5 for 10 s on one node and of 0.25 for 10 s on another: 20 s and 40 s a hazard."""
    made = NodeBenchmarkPairs(
        seconds=np.array([10.0]), sees=np.ones((1, 1), bool), mass=np.array([[0.5], [0.25]]), rest=np.zeros(2)
    )
    assert per_node_search.price_for(made, 0.75) == 0.0
    assert per_node_search.price_for(made, 0.3) == pytest.approx(20.0, rel=2e-4)
    assert per_node_search.price_for(made, 0.1) == pytest.approx(40.0, rel=2e-4)
    assert per_node_search.price_for(made, 0.1, 30.0) == 30.0
    assert per_node_search.price_for(made, -1.0) == pytest.approx(10.0 * 4**30, rel=1e-9), "beyond 1e18 of the cheapest"
    for price, chosen in ((19.9, [False, False]), (20.0, [True, False]), (39.9, [True, False]), (40.0, [True, True])):
        assert per_node_search.at_price(made, price)[:, 0].tolist() == chosen


# records


def sets_of(*rows: list[bool], price: float = 5.0, goal: float = 1.0) -> tuple[NodeBenchmarkPairs, PerNodeSets]:
    """Three benchmarks, of which the third finds what the first and the second do; on two nodes."""
    problem = NodeBenchmarkPairs(
        seconds=np.array([10.0, 20.0, 60.0]), sees=np.array([[1, 0, 1], [0, 1, 1]], bool),
        mass=np.array([[0.2, 0.1], [0.02, 0.01]]), rest=np.array([0.0, 0.05]),
    )  # fmt: skip
    chosen = np.array(rows, bool)
    return problem, PerNodeSets(chosen=chosen, hazard=problem.hazard(chosen), goal=goal, price=price)


YES, NO = True, False


def reasons(problem: NodeBenchmarkPairs, sets: PerNodeSets, ages: list[list[float]] | None = None) -> PlanRecord:
    coverage = Coverage.learn([], ["a", "b", "c"], classes=["k"])
    made = per_node_plan.PerNodePlan(problem=problem, sets=sets, ages=None if ages is None else np.array(ages))
    return audit_nodes.record(made, coverage, ["x", "y"], model="m")


def test_why_a_benchmark_runs_on_a_node_or_does_not() -> None:
    problem, sets = sets_of([YES, NO, NO], [NO, NO, NO])
    told = reasons(problem, sets, [[100.0, 49.0, 50.0], [10.0, 10.0, 10.0]])
    assert told.nodes[0].reasons == {
        "a": "alone takes 18.127% off for 10 s; last 4 d ago",
        "b": "ran 49 h ago: little can have come since (9.516% for 20 s)",
        "c": "the others on this node find most of the 25.918% that it would take off",
    }
    assert told.nodes[1].reasons["c"] == "would take 2.955% off for 60 s: on other benchmarks the time finds more"
    assert reasons(problem, sets).nodes[0].reasons["a"] == "alone takes 18.127% off for 10 s"
    idle = reasons(*sets_of([NO] * 3, [NO] * 3, price=0.0))
    assert {why for one in idle.nodes for why in one.reasons.values()} == {"not needed: the risk is under the target"}
    assert {one.reason for one in idle.considered} == {"the risk is under the target without any check"}
    assert {one.reason for one in reasons(*sets_of([NO] * 3, [NO] * 3)).considered} == {"has found no defect so far"}


@pytest.mark.parametrize(
    ("rows", "goal", "said"),
    [
        ([[NO] * 3] * 2, 1.0, "no check needed: a risk of 31.61% is under the target of 63.21%"),
        (
            [[NO] * 3] * 2, 0.1,
            "no benchmark is worth its time against a risk of 31.61%, over the target of 9.52%",
        ),
        (
            [[YES, YES, NO], [NO] * 3], 0.1,
            ("a set for each node (17% of the time of all benchmarks on all) on 1 of 2 nodes:"
            " the risk falls from 31.61% to 7.69%, the target is 9.52%"),
        ),
        (
            [[YES, NO, NO], [NO] * 3], 0.06,
            ("a set for each node (6% of the time of all benchmarks on all) on 1 of 2 nodes:"
            " the risk falls from 31.61% to 16.47%; it is not worth the time to reach 5.82%"),
        ),
        (
            [[YES, NO, NO], [YES, NO, NO]], 0.04,
            ("a set for each node (11% of the time of all benchmarks on all) on 2 of 2 nodes:"
            " the risk falls from 31.61% to 14.79%; no sets reach 3.92%"),
        ),
    ],
)  # fmt: skip
def test_the_decision_in_a_sentence(rows: list[list[bool]], goal: float, said: str) -> None:
    assert reasons(*sets_of(*rows, goal=goal)).reason == said


def test_what_pays_most_runs_first() -> None:
    """Of a, b and c on node x: 0.2 / 10, then 0.1 / 20; c finds nothing more."""
    problem, sets = sets_of([YES, YES, YES], [NO, YES, YES])
    assert audit_nodes.in_order(problem, sets, 0) == [0, 1, 2]
    assert audit_nodes.in_order(problem, sets, 1) == [1, 2], "0.01 / 20, equal to 0.03 / 60: the first"
    told = reasons(problem, sets)
    assert (told.seconds, told.node_seconds, told.full_seconds, told.full_node_seconds) == (90.0, 170.0, 90.0, 180.0)
    assert [one.seconds for one in told.nodes] == [90.0, 80.0]


def test_what_is_not_given_in_a_policy_or_result() -> None:
    assert BacktestResult() == BacktestResult(
        occasions=0, skipped=0, fallbacks=0, found=0, missed=0, unknowable=0, node_seconds=0.0, full_node_seconds=0.0
    )
    assert SelectionPolicy() == SelectionPolicy(
        target_risk=None, keep=None, spare_nodes=True, per_node=True, worth=None
    )
    assert ValidationOpportunity(at=0.0, nodes=()).job_hours == 24.0


# backtests and the command line


@pytest.mark.parametrize(
    ("chosen", "ran", "outcome"),
    [
        (("a", "c"), None, (1, 0, 0)),
        (("c",), None, (0, 1, 0)),  # all ran: it would not have found it
        (("c",), ("a", "c"), (0, 1, 0)),
        (("c",), ("a",), (0, 1, 1)),
        ((), ("a",), (0, 1, 0)),  # nothing was chosen
    ],
)
def test_what_a_decision_would_have_found(
    chosen: tuple[str, ...], ran: tuple[str, ...] | None, outcome: tuple[int, int, int]
) -> None:
    said, told = cli_record(), BacktestResult()
    decision = SelectionDecision(record=said, nodes=("n",), sets={"n": chosen})
    backtest._score(told, PastDefect(at=0.0, node="n", defect="d", found=("a", "b"), ran=ran), decision)
    assert (told.found, told.missed, told.unknowable) == outcome


def cli_record(nodes: int = 9) -> PlanRecord:
    one = BenchmarkReason(
        benchmark="a", chosen=True, seconds=30.4, gain=0.0123, gain_per_second=0.0004, risk_before=0.2,
        risk_after=0.1877, finds=12, alone=3, reason="why", nodes=2,
    )  # fmt: skip
    risks = tuple(
        NodeRisk(node=f"n{i}", p=0.0512, covered=0.9, checked=i > 0, benchmarks=("a", "b")[:i], seconds=30.4 * i)
        for i in range(nodes)
    )
    return PlanRecord(
        benchmarks=("a",), seconds=30.4, full_seconds=60.0, node_seconds=60.8, full_node_seconds=120.0, per_node=True,
        risk_before=0.2, risk_after=0.1, risk_full=0.05, target=0.1, reached=True, learned=True, reason="so", model="m",
        defects=40, considered=(one,), nodes=risks,
    )  # fmt: skip


def test_a_plan_on_a_screen() -> None:
    said = cli_record()
    assert cli._row(said.considered[0], said) == (
        "run", "a", "2", "30", "1.23%", "2.400%", "18.77%", "12", "3", "why",
    )  # fmt: skip
    console = Console(width=80)
    with console.capture() as captured:
        console.print(cli._sets(said))
    rows = [line.split() for line in captured.get().splitlines()]
    assert len(rows) == 1 + 8, "the head, and eight nodes of nine"
    assert rows[1] == ["n0", "5.12%", "90%", "0", "nothing"]
    assert rows[3] == ["n2", "5.12%", "90%", "61", "a,", "b"]
    assert join_names("abcdefgh", cli._NODES_LISTED) == "a, b, c, d, e, f, g, h"
    assert join_names("abcdefghi", cli._NODES_LISTED) == "a, b, c, d, e, f, g, h and 1 more"


def test_a_backtest_on_a_screen() -> None:
    told = BacktestResult(
        occasions=9, skipped=4, fallbacks=1, found=3, missed=5, unknowable=2, node_seconds=5400.0,
        full_node_seconds=36_000.0,
    )  # fmt: skip
    assert cli._summary(told).splitlines() == [
        "9 occasions: 4 without any check, 1 with the whole suite for lack of history",
        "finds 3 of 8 defects that the past found (37.5%)",
        "misses 5, of which 2 it might have found by what did not run then",
        "spends 1.5 node-hours of 10.0 (15.0%)",
    ]
    assert cli._summary(BacktestResult()).splitlines()[1:] == [
        "finds 0 of 0 defects that the past found", "misses 0", "spends 0.0 node-hours of 0.0 (0.0%)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "keep", "worth", "said"),
    [
        (-0.5, None, None, "--target-risk is -0.5"),
        (None, -0.1, None, "--keep is -0.1"),
        (None, 1.01, None, "--keep is 1.01"),
        (0.0, 0.5, None, "not both"),
        (0.1, 0.0, None, "not both"),
        (None, None, -1.0, "--worth is -1"),
        (None, None, math.nan, "--worth is nan"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(
    target: float | None, keep: float | None, worth: float | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        cli._wanted(cli.Goal(target_risk=target, keep=keep, worth=worth))


@pytest.mark.parametrize(
    ("target", "keep", "kept"),
    [(None, None, 0.1), (0.0, None, 0.0), (1.0, None, 1.0), (None, 0.0, None), (None, 1.0, None)],
)
def test_a_policy_has_a_target_of_a_tenth_unless_it_says_otherwise(
    target: float | None, keep: float | None, kept: float | None
) -> None:
    said = cli._wanted(cli.Goal(target_risk=target, keep=keep, spare_nodes=False, worth=0.5, uniform=True))
    assert said == SelectionPolicy(target_risk=kept, keep=keep, spare_nodes=False, per_node=False, worth=0.5)
