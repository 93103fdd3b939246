"""Learned limits: the stated budget of false alarms is kept, and a limit can always fire."""

from __future__ import annotations

import contextlib
import math
from statistics import NormalDist

import numpy as np
import pytest

from mainstay.detectors.validation.criterion_limits import (
    FAIL_SLACK,
    MAX_SLACK,
    WARN_SLACK,
    NotAGateError,
    RobustLimits,
    robust_scale,
    student_t,
)
from mainstay.probes.benchmarks.result import Better


def runs(*medians: float) -> list[np.ndarray]:
    return [np.array([median]) for median in medians]


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.9, 1, 3.07768), (0.995, 2, 9.92484), (0.99975, 4, 10.30625), (0.995, 9, 3.24984), (0.9, 30, 1.31042)],
)
def test_quantiles_of_students_t(probability: float, freedom: int, expected: float) -> None:
    """From printed tables."""
    assert student_t(probability, freedom) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n", [5, 8, 15, 40])
@pytest.mark.parametrize("budget", [0.005, 0.001])
def test_a_healthy_run_fails_within_twice_the_budget(n: int, budget: float) -> None:
    """Log-normal runs with 3 % scatter: the slack of 5 % does not save them, the quantile must."""
    random, normal, trials = np.random.default_rng(n), NormalDist(), 1000
    alarms = 0.0
    for _ in range(trials):
        with contextlib.suppress(NotAGateError):  # no limit, no alarm
            limits = RobustLimits(budget).fit(runs(*np.exp(0.03 * random.standard_normal(n))), Better.HIGHER).limits_
            alarms += normal.cdf(math.log(limits.low or 0.0) / 0.03)
    assert 0 < alarms / trials <= 2 * budget


@pytest.mark.parametrize(("better", "sign"), [(Better.HIGHER, -1), (Better.LOWER, 1)])
def test_identical_runs_still_leave_some_slack(better: Better, sign: int) -> None:
    limits = RobustLimits().fit(runs(*[100.0] * 5), better).limits_
    edge = limits.low if better is Better.HIGHER else limits.high
    assert edge == pytest.approx(100 * math.exp(sign * FAIL_SLACK))
    assert limits.warn == pytest.approx(100 * math.exp(sign * WARN_SLACK))
    assert limits.center == pytest.approx(100)
    assert (limits.high if better is Better.HIGHER else limits.low) is None


def test_no_limit_is_looser_than_half_the_speed() -> None:
    limits = RobustLimits(1e-6).fit(runs(90, 95, 100, 105, 110), Better.HIGHER).limits_
    assert limits.low == pytest.approx(100 * math.exp(-MAX_SLACK))


def test_one_bad_run_among_many_moves_little() -> None:
    clean = RobustLimits().fit(runs(99, 100, 101, 100, 99, 101, 100), Better.HIGHER).limits_
    dirty = RobustLimits().fit(runs(99, 100, 101, 100, 99, 101, 10), Better.HIGHER).limits_
    assert clean.center == pytest.approx(dirty.center, rel=0.01)


@pytest.mark.parametrize(
    ("medians", "words"),
    [
        ((1.0,) * 4, "only 4 runs"),
        ((10.0, 20.0, 40.0, 80.0, 160.0), "scatter"),
        ((1.0, 1.0, 1.0, 1.0, 0.0), "above zero"),
    ],
)
def test_runs_that_carry_no_limit(medians: tuple[float, ...], words: str) -> None:
    with pytest.raises(NotAGateError, match=words):
        RobustLimits().fit(runs(*medians), Better.HIGHER)


def test_what_scatters_much_still_finds_what_is_many_times_as_slow_and_lets_its_own_scatter_pass() -> None:
    draw = np.random.default_rng(3)
    healthy = np.exp(draw.normal(0.0, 0.25, 40))
    limits = RobustLimits().fit(runs(*healthy), Better.LOWER).limits_
    assert limits.high is not None
    assert 1.5 < limits.high < 10.0
    assert np.mean(np.exp(draw.normal(0.0, 0.25, 2000)) > limits.high) < 0.01


def test_fingerprints_that_never_repeat() -> None:
    with pytest.raises(NotAGateError, match="no value is repeated often enough"):
        RobustLimits().fit(runs(1, 2, 3, 4, 5), Better.EQUAL)


def test_two_legitimate_answers_are_both_allowed() -> None:
    assert RobustLimits().fit(runs(1, 1, 1, 2, 2, 2), Better.EQUAL).limits_.allowed == (1.0, 2.0)


def test_an_estimator_has_scikit_learns_manners() -> None:
    estimator = RobustLimits(false_alarms=0.01)
    assert vars(estimator) == {"false_alarms": 0.01}, "the constructor only stores"
    assert estimator.fit(runs(*[1.0] * 7), Better.LOWER) is estimator


@pytest.mark.parametrize(
    ("n", "deviation", "factor"),
    [(5, 1, 1.206), (6, 1.5, 1.2), (7, 2, 1.14), (8, 2, 1.129), (9, 2, 1.107), (10, 2.5, 10 / 9.2), (2, 0.5, 2 / 1.2),
     (1, 0, 5)],
)  # fmt: skip
def test_the_robust_scale_is_corrected_for_small_samples(n: int, deviation: float, factor: float) -> None:
    """Of 0 .. n - 1; the factors are those of Croux and Rousseeuw."""
    assert robust_scale(np.arange(float(n))) == pytest.approx(1.4826 * deviation * factor)


@pytest.mark.parametrize(("runs_of_two", "allowed"), [(2, (1.0, 2.0)), (1, (1.0,))])
def test_a_fingerprint_of_a_quarter_of_the_runs_is_allowed(runs_of_two: int, allowed: tuple[float, ...]) -> None:
    limits = RobustLimits().fit(runs(*[2.0] * runs_of_two, *[1.0] * (8 - runs_of_two)), Better.EQUAL).limits_
    assert (limits.allowed, limits.center, limits.low, limits.high) == (allowed, 1.0, 1.0, allowed[-1])


def test_beyond_two_hundred_degrees_of_freedom_the_quantile_is_the_normal_one() -> None:
    assert student_t(0.975, 201) == NormalDist().inv_cdf(0.975)
    assert student_t(0.975, 200) == pytest.approx(1.97190, rel=1e-5), "from a printed table"
