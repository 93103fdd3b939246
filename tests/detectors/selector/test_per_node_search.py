"""Sets for each node: as cheap as the exact answer, more where risk is, and why."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_exact import exact
from bench.selector import lagrange_bound, many_pairs, random_pairs
from mainstay.detectors.selector import audit_nodes, per_node_plan, per_node_search
from mainstay.detectors.selector.backtest import decide, learn_from
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
from mainstay.detectors.selector.posterior import Posterior

NAMES = ("memory", "link", "both")


def coverage() -> Coverage:
    """Memory and link defects, each found by its own benchmark; the third finds half of both."""
    records = [
        DefectRecord(defect=kind, found=frozenset({kind, "both"} if i % 2 else {kind}))
        for kind in ("memory", "link")
        for i in range(50)
    ]
    return Coverage.learn(records, NAMES)


def problem(
    p: list[float], shares: list[tuple[float, float]], ages: list[list[float]] | None = None
) -> per_node_search.NodeBenchmarkPairs:
    """Shares are of (memory, link)."""
    known = coverage()
    columns = [known.classes.index("memory"), known.classes.index("link")]
    placed = np.zeros((len(p), 2))
    placed[:, columns] = shares
    given = None if ages is None else np.array(ages)
    return per_node_search.pairs(known, np.array([10.0, 10.0, 30.0]), np.array(p), placed, given)


@pytest.mark.parametrize("seed", range(40))
def test_greedy_pairs_cost_what_the_exact_answer_does(seed: int) -> None:
    made, target = random_pairs(np.random.default_rng(seed))
    found = per_node_search.make(made, target=target)
    best = exact(per_node_search.PairList(pairs=made), target=target)
    assert found.reached
    assert made.cost(found.chosen) <= 1.05 * best.seconds


@pytest.mark.parametrize("seed", range(5))
def test_many_pairs_are_near_the_bound_of_the_price(seed: int) -> None:
    made = many_pairs(np.random.default_rng([2, seed]))
    found = per_node_search.make(made, keep=0.95)
    assert found.reached
    assert lagrange_bound(made, found) <= made.cost(found.chosen) <= 1.05 * lagrange_bound(made, found)


def test_time_goes_where_the_risk_is() -> None:
    made = problem([0.2, 0.2, 0.001], [(0.95, 0.05), (0.05, 0.95), (0.5, 0.5)])
    chosen = per_node_search.make(made, keep=0.85).chosen
    assert chosen.tolist() == [[True, False, False], [False, True, False], [False, False, False]]
    nobody_left = per_node_search.make(made, keep=0.85, spare_nodes=False).chosen
    assert nobody_left[:2].tolist() == chosen[:2].tolist()
    assert nobody_left[2].sum() == 1


def test_what_just_ran_is_not_run_again_and_what_waits_grows() -> None:
    shares = [(0.5, 0.5)] * 3
    made = problem([0.1] * 3, shares, ages=[[0.01, 1, 1], [1, 1, 1], [1, 5, 1]])
    before = made.left(made.none())
    assert before[0] < before[1] < before[2]
    chosen = per_node_search.make(made, keep=0.9).chosen
    assert chosen[:, 0].tolist() == [False, True, True]
    assert chosen[:, 1].all()
    forever = problem([0.1], shares[:1], ages=[[1e9] * 3])
    assert forever.mass.sum() == pytest.approx(7 * problem([0.1], shares[:1]).mass.sum())


def test_two_that_always_agreed_are_not_taken_for_one() -> None:
    """One defect's worth of doubt stays: whoever wants nearly everything runs both."""
    agreed = Coverage.learn([DefectRecord(defect="d", found=frozenset({"a", "b"}))] * 30, ("a", "b"))
    made = per_node_search.pairs(agreed, np.array([10.0, 10.0]), np.array([0.1]), np.ones((1, 1)))
    assert per_node_search.make(made, keep=0.95).chosen.sum() == 1
    assert per_node_search.make(made, keep=0.999).chosen.sum() == 2


def test_a_price_stops_before_the_target() -> None:
    made = problem([0.2], [(0.9, 0.1)])
    assert not per_node_search.make(made, target=0.0, worth=1.0).chosen.any()
    some = per_node_search.make(made, target=0.0, worth=100.0)
    assert some.chosen.tolist() == [[True, False, False]]
    assert not some.reached
    assert per_node_search.make(made, target=1.0).chosen.sum() == 0
    for wrong in ({"target": 0.1, "keep": 0.5}, {}, {"keep": 2.0}, {"target": 0.1, "worth": 0.0}):
        with pytest.raises(ValueError, match=r"give either|no share|must be worth"):
            per_node_search.make(made, **wrong)


def test_shares_of_patterns_by_hand() -> None:
    """30 defects, all found by both, and one of doubt, half for each: of 2 + 30."""
    agreed = Coverage.learn([DefectRecord(defect="d", found=frozenset({"a", "b"}))] * 30, ("a", "b"))
    sees, share, unseen = per_node_search.weights(agreed)
    assert sees.tolist() == [[True, True], [True, False], [False, True]]
    assert share == pytest.approx(np.array([[30, 0.5, 0.5]]) / 32)
    assert unseen == pytest.approx([1 / 32])


def test_the_record_of_sets_adds_up() -> None:
    made = problem([0.2, 0.2, 0.0], [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
    sets = per_node_search.make(made, keep=0.9)
    assert sets.chosen.tolist() == [[True, False, False], [False, True, False], [False, False, False]]
    plan = per_node_plan.PerNodePlan(problem=made, sets=sets, ages=None)
    said = audit_nodes.record(plan, coverage(), ["n0", "n1", "n2"], model="m")
    assert (said.seconds, said.full_seconds, said.node_seconds, said.full_node_seconds) == (10.0, 50.0, 20.0, 150.0)
    assert said.risk_before == pytest.approx(1 - 0.8 * 0.8)
    assert said.risk_after == pytest.approx(1 - np.exp(-sets.hazard))
    told = {one.benchmark: one for one in said.considered}
    assert [one.benchmark for one in said.considered if one.chosen] == list(said.benchmarks) == ["link", "memory"]
    assert (told["memory"].finds, told["memory"].alone, told["memory"].nodes) == (50, 50, 1)
    assert (told["both"].finds, told["both"].alone, told["both"].nodes) == (50, 0, 0)
    memory, both = told["memory"], told["both"]
    assert (memory.risk_after, both.risk_before) == pytest.approx((said.risk_after, said.risk_after))
    assert memory.risk_before == pytest.approx(1 - np.exp(-sets.hazard - memory.gain))
    assert both.risk_after == pytest.approx(1 - np.exp(-sets.hazard + both.gain))
    assert memory.gain_per_second == pytest.approx(memory.gain / 10)
    assert both.gain_per_second == pytest.approx(both.gain / 90), "it would run on three nodes"
    assert memory.reason == "pays on 1 of 3 nodes"
    safe = said.nodes[-1]
    assert (safe.node, safe.p, safe.covered, safe.checked, safe.seconds) == ("n2", 0.0, 0.0, False, 0.0)
    risky = said.nodes[0]
    assert (risky.node, risky.p, risky.benchmarks, risky.seconds) == ("n0", pytest.approx(0.2), ("memory",), 10.0)
    assert risky.covered == pytest.approx(1 - made.left(sets.chosen)[0] / -np.log(0.8))


@pytest.mark.parametrize(("age", "said"), [(71.0, "71 h"), (72.0, "3 d"), (100.0, "4 d")])
def test_ages_are_hours_and_then_days(age: float, said: str) -> None:
    assert audit_nodes._hours(age) == said


# which class


def node(name: str, **changes: object) -> NodeHistory:
    return NodeHistory(node=name, since=0.0, until=1000 * HOUR, **changes)  # type: ignore[arg-type]


def test_a_node_is_drawn_to_the_fleet_as_far_as_nodes_are_alike() -> None:
    histories = {f"n{i}": node(f"n{i}") for i in range(20)}
    rng = np.random.default_rng(3)
    alike = [(f"n{i}", str(rng.choice(["a", "b"])), 1.0) for i in range(20) for _ in range(20)]
    apart = [(f"n{i}", "ab"[i % 2], 1.0) for i in range(20) for _ in range(20)]
    own = {"a": 20}
    first, second = (Posterior.learn(d, histories, ("a", "b")) for d in (alike, apart))
    assert first.belief > 10 * second.belief
    assert first.shares(histories["n0"], own, 2.0)[0] < 0.8
    assert second.shares(histories["n0"], own, 2.0)[0] > 0.95


def test_errors_of_the_last_day_point_to_a_class() -> None:
    noisy = tuple(h * 100 * HOUR - HOUR for h in range(1, 10))
    histories = {"n": node("n", errors={"ecc": noisy})}
    defects = [("n", "memory", h * 100 * HOUR) for h in range(1, 10)]
    defects += [("n", "link", h * 100 * HOUR + 50 * HOUR) for h in range(1, 9)]
    learned = Posterior.learn(defects, histories, ("memory", "link"))
    with_error = learned.shares(histories["n"], {}, 100 * HOUR)
    without = learned.shares(histories["n"], {}, 150 * HOUR)
    assert with_error[0] > 0.9
    assert without[0] < 0.2
    assert with_error.sum() == pytest.approx(1.0)


# from a past


def fleet() -> FleetHistory:
    """Every fourth of sixteen nodes fails often: half of these by memory, half by links."""
    rng = np.random.default_rng(7)
    nodes, defects, looks = [], [], []
    for i in range(16):
        name, kind = f"n{i:02d}", "memory" if i % 8 == 0 else "link"
        starts = np.cumsum(rng.exponential(80 if i % 4 == 0 else 900, 40)) + 3 * np.arange(40)
        incidents = [Incident(at=t * HOUR, back_at=(t + 2) * HOUR) for t in starts if t < 1990]
        days = tuple(float(d) * 24 * HOUR for d in range(1, 83))
        nodes.append(
            NodeHistory(
                node=name, since=0.0, until=2000 * HOUR, incidents=tuple(incidents), remediations=(), checks=days
            )
        )
        defects += [PastDefect(at=i.at, node=name, defect=kind, found=(kind,)) for i in incidents]
        looks += [CleanCheck(at=at, node=name, ran=NAMES) for at in days]
    costs = tuple(BenchmarkCost(name=n, seconds=s) for n, s in zip(NAMES, (10.0, 10.0, 30.0), strict=True))
    return FleetHistory(benchmarks=costs, nodes=tuple(nodes), defects=tuple(defects), looks=tuple(looks))


def test_each_node_gets_what_breaks_on_it_and_the_record_says_why() -> None:
    past = fleet()
    names = tuple(h.node for h in past.nodes)
    occasion = ValidationOpportunity(at=2000 * HOUR, nodes=names)
    known = learn_from(past)
    assert known.usual_gap == pytest.approx(24.0)
    made = decide(past, known, occasion, SelectionPolicy(keep=0.8))
    assert made.record.per_node
    assert made.sets["n00"] == ("memory",)
    assert made.sets["n04"] == ("link",)
    assert made.record.node_seconds == 10 * sum(len(s) for s in made.sets.values())
    assert made.record.node_seconds < 0.3 * made.record.full_node_seconds
    told = {one.node: one for one in made.record.nodes}
    assert set(told["n00"].reasons) == set(NAMES)
    assert told["n00"].reasons["memory"].startswith("alone takes")
    assert told["n00"].reasons["link"].startswith(("would take", "the others"))
    uniform = decide(past, known, occasion, SelectionPolicy(keep=0.8, per_node=False))
    assert not uniform.record.per_node
    assert len(set(uniform.sets.values())) == 1
    assert made.record.node_seconds < uniform.record.node_seconds


def test_a_target_is_this_jobs_alone_and_a_share_is_the_fleets() -> None:
    past = fleet()
    occasion = ValidationOpportunity(at=2000 * HOUR, nodes=("n00", "n04"))
    known = learn_from(past)
    own = per_node_plan.make(past, known, occasion, SelectionPolicy(target_risk=0.3))
    assert own.sets.goal == pytest.approx(-np.log(0.7))
    assert own.problem.mass.shape[0] == own.sets.chosen.shape[0] == 2
    kept = per_node_plan.make(past, known, occasion, SelectionPolicy(keep=0.8))
    assert kept.sets.goal == kept.sets.hazard == pytest.approx(kept.problem.hazard(kept.sets.chosen))


def test_what_ran_an_hour_ago_is_left_out_and_said_so() -> None:
    past = fleet()
    at = 2000 * HOUR
    just = CleanCheck(at=at - HOUR, node="n00", ran=("memory",))
    later = FleetHistory(benchmarks=past.benchmarks, nodes=past.nodes, defects=past.defects, looks=(*past.looks, just))
    occasion = ValidationOpportunity(at=at, nodes=("n00", "n04"))
    known = learn_from(past)
    assert "memory" in decide(past, known, occasion, SelectionPolicy(keep=0.8)).sets["n00"]
    made = decide(later, known, occasion, SelectionPolicy(keep=0.8))
    assert "memory" not in made.sets.get("n00", ())
    why = next(one.reasons for one in made.record.nodes if one.node == "n00")
    assert why["memory"].startswith("ran 1 h ago")
    assert decide(later.until(at - 2 * HOUR), known, occasion, SelectionPolicy(keep=0.8)).sets["n00"] == ("memory",)
