"""Lemons are named by their rate, with the certainty that the data carry; a bad week of a healthy node is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainstay.detectors.correlation.lemon_nodes import (
    Config,
    LemonPosterior,
    NodeRecord,
    _likelihood,
    findings,
    fit,
    gamma_cdf,
    score_nodes,
)
from mainstay.detectors.finding import FindingKind

DAY = 86_400.0


def fleet(seed: int, nodes: int = 500, days: float = 90.0, rate: float = 0.0065) -> dict[str, NodeRecord]:
    """6.5 failures per 1,000 node-days, as Meta's RSC-1."""
    counts = np.random.default_rng(seed).poisson(rate * days, nodes)
    return {f"n{i:03d}": NodeRecord(failures=int(c), seconds=days * DAY) for i, c in enumerate(counts)}


def example(seed: int) -> dict[str, NodeRecord]:
    return fleet(seed) | {"bad": NodeRecord(failures=9, seconds=90 * DAY)}


@pytest.mark.parametrize(
    ("shape", "x", "expected"),
    [(1.0, 1.0, 0.6321205588), (0.5, 0.2, 0.4729107431), (3.0, 6.0, 0.9380311967), (50.0, 40.0, 0.0703350673),
     (10.0, 30.0, 0.9999928782), (2.0, 0.0, 0.0)],
)  # fmt: skip
def test_the_incomplete_gamma_function(shape: float, x: float, expected: float) -> None:
    """From closed forms (Poisson sums, the error function) worked out independently."""
    assert gamma_cdf(shape, x) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_fails_fifteen_times_as_often_is_a_lemon(seed: int) -> None:
    (finding,) = findings(score_nodes(example(seed)), frozenset(), 1.8e9)
    assert (finding.kind, finding.entity.node, finding.active) == (FindingKind.LEMON_NODE, "bad", True)
    assert finding.evidence.numbers["failures"] == 9
    assert finding.confidence > 0.95
    assert not finding.recommended_action.evicts
    assert "failed 9 times in 90.0 days" in finding.evidence.summary
    times = finding.evidence.numbers["rate_per_day"] / finding.evidence.numbers["fleet_rate_per_day"]
    assert f", {times:.1f} times as often as the fleet" in finding.evidence.summary


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_fleet_has_none(seed: int) -> None:
    assert findings(score_nodes(fleet(seed)), frozenset(), 1.8e9) == []


def test_a_short_history_is_drawn_to_the_fleet() -> None:
    records = fleet(0) | {"new": NodeRecord(failures=1, seconds=1 * DAY)}
    posterior = next(p for p in score_nodes(records) if p.node == "new")
    assert posterior.probability < 0.5, "one failure on the first day is 150 times the fleet's rate, and chance"
    assert posterior.rate < 0.1


def test_lemons_do_not_raise_the_rate_that_they_are_compared_with() -> None:
    records = fleet(1) | {f"bad{i}": NodeRecord(failures=12, seconds=90 * DAY) for i in range(10)}
    named = {f.entity.node for f in findings(score_nodes(records), frozenset(), 1.8e9)}
    assert named == {f"bad{i}" for i in range(10)}


def test_what_was_said_is_taken_back_with_time_and_not_at_the_edge() -> None:
    better = fleet(0) | {"bad": NodeRecord(failures=9, seconds=2000 * DAY)}
    (over,) = findings(score_nodes(better), frozenset({"bad"}), 1.8e9)
    assert (over.entity.node, over.active) == ("bad", False)
    edge = fleet(0) | {"bad": NodeRecord(failures=6, seconds=90 * DAY)}
    between = next(p for p in score_nodes(edge) if p.node == "bad").probability
    assert Config().unsure < between < Config().sure
    assert findings(score_nodes(edge), frozenset({"bad"}), 1.8e9) == []
    assert findings(score_nodes(edge), frozenset(), 1.8e9) == []
    assert [f.active for f in findings(score_nodes(fleet(0)), frozenset({"gone"}), 1.8e9)] == [False]


def test_a_small_or_a_perfect_fleet_is_not_judged() -> None:
    assert score_nodes({f"n{i}": NodeRecord(failures=5 * (i == 0), seconds=9 * DAY) for i in range(7)}) == ()
    assert score_nodes({f"n{i}": NodeRecord(failures=0, seconds=9 * DAY) for i in range(99)}) == ()
    assert score_nodes({f"n{i}": NodeRecord(failures=0, seconds=0.0) for i in range(99)}) == ()


def test_the_fit_finds_how_nodes_differ() -> None:
    rng = np.random.default_rng(0)
    days = np.full(3000, 60.0)
    alike = rng.poisson(0.05 * days).astype(float)
    different = rng.poisson(rng.gamma(0.5, 0.05 / 0.5, 3000) * days).astype(float)
    assert fit(alike, days)[0] == pytest.approx(1.0)
    assert 0.3 < fit(different, days)[0] < 1.0


def test_the_posterior_is_the_gamma_of_the_fleet_and_the_node() -> None:
    records = example(0)
    found = score_nodes(records)
    counts = np.array([records[name].failures for name in sorted(records)], float)
    shape, mean = fit(counts, np.full(len(counts), 90.0))
    for one in (found[0], found[-1]):
        assert one.rate == pytest.approx((shape + one.failures) / (shape / mean + 90.0))
        surely = 1.0 - gamma_cdf(shape + one.failures, (shape / mean + 90.0) * 3.0 * mean)
        assert (one.fleet_rate, one.probability) == pytest.approx((mean, surely))
    assert found[0].node == "bad", "the likeliest stands first"
    order = [(-one.probability, -one.failures, one.node) for one in found]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("probability", "failures", "said", "active"),
    [
        (0.95, 3, False, [True]),
        (0.9499, 3, False, []),
        (0.95, 2, False, []),
        (0.99, 3, True, []),
        (0.70, 3, True, []),
        (0.6999, 3, True, [False]),
        (0.6999, 3, False, []),
    ],
)
def test_a_lemon_is_named_from_95_percent_and_taken_back_below_70(
    probability: float, failures: int, said: bool, active: list[bool]
) -> None:
    one = LemonPosterior(
        node="n", failures=failures, days=2.0, rate=0.6, fleet_rate=0.2, probability=probability, worst="GPU-1",
        worst_failures=2,
    )  # fmt: skip
    found = findings((one,), frozenset({"n"} if said else ()), 7.0)
    assert [f.active for f in found] == active
    if active == [True]:
        assert found[0].evidence.summary == (
            "Node n failed 3 times in 2.0 days (2 of them on GPU-1), 3.0 times as often as the fleet: it is a lemon "
            "with 95.0 % certainty."
        )
        assert (found[0].confidence, found[0].time) == (0.95, 7.0)


@pytest.mark.parametrize(
    ("counts", "days", "mean"),
    [
        ([1.0] * 19 + [50.0], [10.0] * 20, 0.1),  # without the worst in twenty
        ([1.0] * 20 + [50.0], [10.0] * 21, 0.1),
        ([1.0] * 18 + [50.0], [10.0] * 19, 68 / 190),  # of nineteen none is left out
        ([0.0] * 19 + [3.0], [10.0] * 20, 0.5 / 200),  # half a failure is the least
        ([1.0] * 19 + [2.0], [10.0] * 19 + [200.0], 20 / 380),  # the worst is that of the highest rate
        ([4.0], [10.0], 0.4),
    ],
)
def test_the_fleets_rate_leaves_out_the_worst_in_twenty(counts: list[float], days: list[float], mean: float) -> None:
    assert fit(np.array(counts), np.array(days))[1] == pytest.approx(mean)


def test_shapes_are_tried_from_a_twentieth_to_one() -> None:
    worst = np.array([0.0] * 200 + [100.0, 100.0])
    assert fit(worst, np.full(202, 10.0))[0] == pytest.approx(0.05)
    assert fit(np.ones(50), np.full(50, 10.0))[0] == pytest.approx(1.0)


@pytest.mark.parametrize(("shape", "mean"), [(0.5, 0.1), (1.0, 0.3)])
def test_the_likelihood_is_the_negative_binomials(shape: float, mean: float) -> None:
    """P(n) = G(shape + n) / G(shape) n! x (s / (s + d))^shape x (d / (s + d))^n, without the n!, s = shape / mean."""
    counts, days = np.array([0.0, 1.0, 3.0]), np.array([5.0, 10.0, 20.0])
    s = shape / mean
    product = 1.0
    for n, d in zip(counts, days, strict=True):
        rising = math.prod(shape + k for k in range(int(n)))
        product *= rising * (s / (s + d)) ** shape * (d / (s + d)) ** n
    assert _likelihood(shape, mean, counts, days) == pytest.approx(math.log(product))


@pytest.mark.parametrize("x", [1.5, 2.9, 3.0, 3.1, 8.0, 20.0])
def test_the_incomplete_gamma_function_of_a_whole_shape_is_a_poisson_sum(x: float) -> None:
    expected = 1.0 - math.exp(-x) * (1.0 + x)
    assert gamma_cdf(2.0, x) == pytest.approx(expected, rel=1e-12)
    assert gamma_cdf(2.0, -x) == 0.0


def test_a_fleet_of_eight_is_judged_with_what_is_known_of_its_worst_device() -> None:
    records = {f"n{i}": NodeRecord(failures=int(i == 3), seconds=9 * DAY) for i in range(7)}
    records["n7"] = NodeRecord(failures=20, seconds=9 * DAY, worst="GPU-1", worst_failures=15)
    first, *_ = score_nodes(records)
    assert (first.node, first.failures, first.days, first.worst, first.worst_failures) == ("n7", 20, 9.0, "GPU-1", 15)
    stricter = score_nodes(records, Config(times=50.0))[0]
    assert stricter.probability < first.probability
    assert score_nodes(records, Config(least_nodes=9)) == ()
    (found,) = findings((first,), frozenset(), 5.0)
    assert found.evidence.numbers["times"] == 3.0
    assert "(15 of them on GPU-1)" in found.evidence.summary


def test_what_is_taken_back_is_sure() -> None:
    (over,) = findings((), frozenset({"n"}), 7.0)
    assert (over.confidence, over.time, over.active) == (1.0, 7.0, False)
    assert over.evidence.summary == "Node n fails no more often than others."
    plain = LemonPosterior(node="n", failures=3, days=2.0, rate=0.6, fleet_rate=0.2, probability=0.96)
    (found,) = findings((plain,), frozenset(), 7.0)
    assert "failed 3 times in 2.0 days, 3.0 times" in found.evidence.summary
