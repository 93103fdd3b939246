"""Coverage, risk, choice, plan and audit: hand-computed cases, the exact optimum as oracle, laws that always hold."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_exact import exact, greedy, problem_of
from mainstay.detectors.selector import node_plan
from mainstay.detectors.selector.audit import fallback, record
from mainstay.detectors.selector.coverage import Coverage, DefectRecord, shares_of
from mainstay.detectors.selector.risk import SelectionProblem


def defects(kind: str, n: int, *found: str, ran: frozenset[str] | None = None) -> list[DefectRecord]:
    return [DefectRecord(defect=kind, found=frozenset(found), ran=ran)] * n


def mask(coverage: Coverage, *chosen: str) -> np.ndarray:
    return np.array([name in chosen for name in coverage.benchmarks], bool)


def covered(coverage: Coverage, kind: str, *chosen: str) -> float:
    return float(coverage.detection_probability(mask(coverage, *chosen))[coverage.classes.index(kind)])


# coverage


def test_coverage_is_of_the_union() -> None:
    """Two benchmarks that find the same half find half together, not three quarters."""
    same = Coverage.learn([*defects("c", 50, "a", "b"), *defects("c", 50)], ["a", "b"])
    assert covered(same, "c", "a") == covered(same, "c", "a", "b") == 51 / 102
    apart = Coverage.learn([*defects("c", 50, "a"), *defects("c", 50, "b")], ["a", "b"])
    assert covered(apart, "c", "a", "b") == 101 / 102


def test_nothing_finds_nothing_and_no_set_is_sure() -> None:
    coverage = Coverage.learn(defects("c", 1000, "a"), ["a"])
    assert covered(coverage, "c") == 0.0
    assert covered(coverage, "c", "a") == 1001 / 1002


def test_a_class_without_record_is_found_half_of_the_time_by_what_is_made_for_it() -> None:
    coverage = Coverage.learn(
        [], ["disk", "gemm"], classes=["storage", "compute"], catches={"disk": ["storage"], "gemm": ["compute"]}
    )
    assert covered(coverage, "storage", "disk") == 0.5
    assert covered(coverage, "storage", "gemm") == 0.0


def test_a_benchmark_that_did_not_run_counts_as_blind_unless_enough_ran_all() -> None:
    part = defects("c", 10, "a", ran=frozenset({"a"}))
    assert covered(Coverage.learn(part, ["a", "b"]), "c", "b") == 1 / 12
    whole = defects("c", 20, "a", "b")
    assert covered(Coverage.learn([*part, *whole], ["a", "b"]), "c", "b") == 21 / 22


@pytest.mark.parametrize("seed", range(5))
def test_more_benchmarks_never_cover_less(seed: int) -> None:
    coverage = random_problem(seed).coverage
    rng = np.random.default_rng(seed)
    for _ in range(20):
        chosen = rng.random(len(coverage.benchmarks)) < 0.4
        more = chosen | (rng.random(len(chosen)) < 0.3)
        assert (coverage.detection_probability(more) >= coverage.detection_probability(chosen)).all()


def test_shares_follow_the_fleet_and_the_node() -> None:
    coverage = Coverage.learn([*defects("c", 30, "a"), *defects("d", 10, "a")], ["a"])
    assert coverage.shares() == pytest.approx([30.5 / 41, 10.5 / 41])
    own = shares_of(coverage, {"d": 12})
    assert own.sum() == pytest.approx(1.0)
    assert own[1] == pytest.approx((12 + 4 * 10.5 / 41) / 16)


def test_bad_coverage_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="each once"):
        Coverage.learn([], ["a", "a"], classes=["c"])
    with pytest.raises(ValueError, match="no class"):
        Coverage.learn([], ["a"])


# risk


def one_class(*p: float, n: int = 98) -> SelectionProblem:
    """a finds 60 %, b 30 % beside it, c the same as a at a third of the price."""
    records = [
        *defects("c", int(n * 0.6), "a", "c"),
        *defects("c", int(n * 0.3), "b"),
        *defects("c", n - int(n * 0.6) - int(n * 0.3)),
    ]
    coverage = Coverage.learn(records, ["a", "b", "c"])
    return problem_of(coverage, np.array([30.0, 10.0, 10.0]), np.array(p))


def test_the_residual_risk_is_that_of_the_definition() -> None:
    problem = one_class(0.1, 0.3, 0.0)
    share = covered(problem.coverage, "c", "a", "b")
    by_hand = 1 - (1 - 0.1 * (1 - share)) * (1 - 0.3 * (1 - share))
    assert problem.residual(mask(problem.coverage, "a", "b")) == pytest.approx(by_hand)
    assert problem.residual(problem.none()) == pytest.approx(1 - 0.9 * 0.7)
    some = problem.on(np.array([False, True, True]))
    assert some.residual(mask(problem.coverage, "a", "b")) == pytest.approx(1 - 0.9 * (1 - 0.3 * (1 - share)))


def test_tiny_and_certain_risks_are_exact() -> None:
    tiny = one_class(1e-12)
    assert tiny.residual(tiny.none()) == pytest.approx(1e-12, rel=1e-6)
    assert one_class(1.0, 0.5).residual(np.zeros(3, bool)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("seconds", "p", "said"),
    [([1.0, 1.0], [0.1], "2 costs for 3"), ([1.0, 0.0, 1.0], [0.1], "above 0 s"), ([1.0] * 3, [1.1], "between 0 and 1"),
     ([1.0] * 3, [np.nan], "between 0 and 1"), ([1.0] * 3, [], "must be a node")],
)  # fmt: skip
def test_a_bad_problem_is_refused_in_words(seconds: list[float], p: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        problem_of(one_class(0.1).coverage, np.array(seconds), np.array(p))


# choice


def random_problem(seed: int) -> SelectionProblem:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(5, 12)), int(rng.integers(1, 8))
    names = [f"b{i}" for i in range(n)]
    sees, sight = rng.random((k, n)) < 0.45, rng.beta(1, 1, n)
    records = []
    for _ in range(int(rng.integers(25, 250))):
        kind, luck = int(rng.integers(k)), rng.random() if seed % 2 else rng.random(n)
        found = (sees[kind] & (luck < sight)).nonzero()[0]
        records.append(DefectRecord(defect=str(kind), found=frozenset(names[j] for j in found)))
    return problem_of(Coverage.learn(records, names), rng.lognormal(3, 1, n), rng.beta(1, 20, int(rng.integers(1, 40))))


@pytest.mark.parametrize("seed", range(25))
def test_greedy_is_within_a_twentieth_of_the_exact_optimum(seed: int) -> None:
    problem = random_problem(seed)
    before, after = problem.residual(problem.none()), problem.residual(problem.all())
    for share in (0.05, 0.3, 0.7):
        target = after + share * (before - after)
        found, best = greedy(problem, target=target), exact(problem, target=target)
        assert found.reached
        assert best.seconds - 1e-9 <= found.seconds <= 1.05 * best.seconds
        assert found.risk == pytest.approx(problem.residual(found.chosen))


def test_exact_agrees_with_looking_at_every_set_by_hand() -> None:
    problem = one_class(0.2, 0.1)
    target = problem.residual(mask(problem.coverage, "c", "b")) + 1e-9
    best = exact(problem, target=target)
    assert (best.seconds, best.chosen.tolist()) == (20.0, [False, True, True])


def test_a_risk_under_the_target_needs_no_check() -> None:
    found = greedy(one_class(0.01), target=0.05)
    assert not found.chosen.any()
    assert found.reached


def test_an_unreachable_target_takes_all_that_helps_and_says_so() -> None:
    found = greedy(one_class(0.5), target=0.0)
    assert not found.reached
    assert found.chosen.sum() == 2  # the third adds nothing


def test_keeping_most_of_the_effect_leaves_an_allowance_for_what_did_not_show() -> None:
    problem = one_class(0.1, n=40)  # too few to know of 1 %
    assert greedy(problem, keep=0.99).risk == pytest.approx(problem.residual(problem.all()))
    assert greedy(problem, keep=0.5).seconds < greedy(problem, keep=0.99).seconds


@pytest.mark.parametrize(("target", "keep"), [(None, None), (0.1, 0.9), (-0.1, None), (None, 1.1)])
def test_a_policy_is_one_share(target: float | None, keep: float | None) -> None:
    with pytest.raises(ValueError, match="share"):
        greedy(one_class(0.1), target=target, keep=keep)


def test_exact_refuses_what_it_cannot_look_at() -> None:
    names = [f"b{i}" for i in range(17)]
    problem = problem_of(Coverage.learn([], names, classes=["c"]), np.ones(17), np.array([0.1]))
    with pytest.raises(ValueError, match="17 benchmarks"):
        exact(problem, target=0.0)


# plan


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_reaches_its_target_and_never_costs_more_than_all_nodes_would(seed: int) -> None:
    problem = random_problem(seed)
    before, after = problem.residual(problem.none()), problem.residual(problem.all())
    target = after + 0.4 * (before - after)
    made, everywhere = node_plan.make(problem, target=target), node_plan.make(problem, target=target, spare_nodes=False)
    assert made.choice.reached
    assert made.node_seconds <= everywhere.node_seconds
    assert problem.on(made.checked).residual(made.choice.chosen) == pytest.approx(made.choice.risk)
    assert everywhere.checked.all()


def test_a_plan_leaves_the_safe_nodes_alone() -> None:
    problem = one_class(*[0.0001] * 7, 0.5)
    made = node_plan.make(problem, target=0.25)
    assert made.checked.tolist() == [False] * 7 + [True]


def test_what_is_not_worth_its_time_is_not_run() -> None:
    problem = one_class(0.02, 0.02)
    assert not node_plan.make(problem, target=0.0, worth=100.0).choice.chosen.any()
    assert node_plan.make(problem, target=0.0, worth=1e6).checked.all()
    with pytest.raises(ValueError, match="worth more than"):
        node_plan.make(problem, target=0.0, worth=0.0)


def test_a_job_too_large_to_be_safe_is_still_checked() -> None:
    """R is 1 with any set; the incidents to expect are not."""
    problem = one_class(*[0.05] * 4096)
    assert problem.residual(problem.all()) == pytest.approx(1.0)
    for made in (
        node_plan.make(problem, target=0.1),
        node_plan.make(problem, keep=0.9),
        node_plan.make(problem, target=0.1, worth=1e5),
    ):
        assert made.choice.chosen.any()
        assert made.checked.mean() > 0.8


# audit


def test_the_record_tells_of_every_benchmark_and_adds_up() -> None:
    problem = one_class(0.3, 0.2)
    made = node_plan.make(problem, target=0.1)
    said = record(problem, made, ["n1", "n2"], model="m")
    chosen = [c for c in said.considered if c.chosen]
    assert {c.benchmark for c in said.considered} == {"a", "b", "c"}
    assert tuple(c.benchmark for c in chosen) == said.benchmarks == ("c", "b")
    assert chosen[0].risk_before == pytest.approx(said.risk_before)
    assert chosen[-1].risk_after == pytest.approx(said.risk_after)
    assert sum(c.gain for c in chosen) == pytest.approx(said.risk_before - said.risk_after)
    left = said.considered[-1]
    assert (left.benchmark, left.finds, left.alone, left.gain) == ("a", 58, 0, pytest.approx(0.0, abs=1e-12))
    assert "found all of its 58" in left.reason
    assert [n.node for n in said.nodes] == ["n1", "n2"]


def test_the_record_says_when_no_check_is_needed_and_when_none_suffices() -> None:
    problem = one_class(0.01)
    assert "no check needed" in record(problem, node_plan.make(problem, target=0.1), ["n"], model="m").reason
    said = record(problem, node_plan.make(problem, target=0.0), ["n"], model="m")
    assert "no set reaches" in said.reason
    assert not said.reached


def test_a_fallback_runs_everything_and_claims_nothing() -> None:
    said = fallback(["a", "b"], [1.0, 2.0], ["n"], why="3 incidents")
    assert said.benchmarks == ("a", "b")
    assert (said.learned, said.reached, said.risk_after) == (False, False, 1.0)


def test_what_found_a_class_once_is_for_it_and_more_than_enough_is_enough() -> None:
    once = Coverage.learn(defects("c", 1, "a"), ["a", "b"], catches={"a": [], "b": []})
    assert (covered(once, "c", "a"), covered(once, "c", "b")) == (2 / 3, 0.0)
    part = defects("c", 10, "a", ran=frozenset({"a"}))
    for whole in (20, 21, 30):
        known = Coverage.learn([*part, *defects("c", whole, "a", "b")], ["a", "b"])
        assert covered(known, "c", "b") == (1 + whole) / (2 + whole)
