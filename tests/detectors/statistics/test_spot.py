"""Thresholds from tails: the fit finds the parameters, and so many clusters pass as were asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainstay.detectors.statistics.spot import Tail, pareto, tail


@pytest.mark.parametrize("shape", [-0.2, 0.0, 0.3])
def test_the_fit_finds_the_distribution(shape: float) -> None:
    u = np.random.default_rng(3).random(4000)
    x = 2.0 * (-np.log(u) if shape == 0 else (u**-shape - 1) / shape)
    got_shape, got_scale = pareto(x)
    assert got_shape == pytest.approx(shape, abs=0.06)
    assert got_scale == pytest.approx(2.0, rel=0.08)


@pytest.mark.parametrize("count", range(10, 40))
def test_excesses_that_are_alike_have_a_fit(count: int) -> None:
    """One value of theta is 0 for 16 to 24 of them: the logarithm of its scale is that of an exponential there."""
    shape, scale = pareto(np.ones(count))
    raw = shape * (count + 10) / count
    assert -scale / raw == pytest.approx(1.0, rel=0.01), "none is larger"
    for unit in (8.0, 2.0**-100):
        assert pareto(np.full(count, unit)) == pytest.approx((shape, unit * scale), abs=0)


def test_a_threshold_is_passed_as_often_as_asked() -> None:
    rng = np.random.default_rng(1)
    learned = tail(rng.standard_t(6, 20_000))
    threshold = learned.threshold(1 / 10_000)
    passed = np.mean(rng.standard_t(6, 2_000_000) > threshold)
    assert 0.3 / 10_000 < passed < 3 / 10_000


def test_what_stays_high_for_a_while_is_one_peak() -> None:
    score = np.random.default_rng(2).random(10_000)
    score[5000:5200] = 5.0 + np.linspace(0, 1, 200)
    learned = tail(score, quantile=0.985)
    assert learned.rate <= 15 / 10_000, "the long stretch, and what the quantile leaves over"


def test_small_cases_by_hand() -> None:
    exponential = Tail(start=1.0, rate=0.1, shape=0.0, scale=2.0)
    assert exponential.threshold(0.1) == 1.0
    assert exponential.threshold(0.01) == pytest.approx(1 + 2 * np.log(10))
    heavy = Tail(start=1.0, rate=0.1, shape=0.5, scale=2.0)
    assert heavy.threshold(0.001) == pytest.approx(1 + 4 * (100**0.5 - 1))
    with pytest.raises(ValueError, match="finite"):
        tail(np.array([1.0, np.nan]))


def test_a_score_without_a_tail_has_a_threshold_at_its_top() -> None:
    assert tail(np.zeros(100)).threshold(1e-6) < 1e-6


def test_a_tail_starts_at_its_quantile_and_clusters_are_apart() -> None:
    """Of 101 scores 0 to 100 the quantile 0.9 is 90; peaks 29 and 30 samples apart are one cluster, 31 are two."""
    score = np.zeros(1000)
    for at, height in ((100, 5.0), (130, 8.0), (161, 3.0), (191, 2.0)):
        score[at] = height
    assert tail(score) == Tail(start=0.0, rate=2 / 1000, shape=0.0, scale=(8.0 + 3.0) / 2)
    assert tail(score, apart=29) == Tail(start=0.0, rate=4 / 1000, shape=0.0, scale=18 / 4)
    assert tail(np.arange(101.0), quantile=0.9) == Tail(start=90.0, rate=1 / 101, shape=0.0, scale=10.0)
    assert tail(np.arange(101.0)).start == 98.0
    assert tail(np.ones(50)) == Tail(start=1.0, rate=1 / 50, shape=0.0, scale=1e-9)
    with pytest.raises(ValueError, match="at least one"):
        tail(np.zeros(0))


@pytest.mark.parametrize(("peaks", "fitted"), [(9, False), (10, True)])
def test_ten_peaks_have_a_shape(peaks: int, fitted: bool) -> None:
    score = np.zeros(10_000)
    score[100 * np.arange(1, peaks + 1)] = np.arange(1.0, peaks + 1) ** 2
    found = tail(score, quantile=0.5)
    assert found.rate == peaks / 10_000
    expected = pareto(np.arange(1.0, peaks + 1) ** 2) if fitted else (0.0, sum(k * k for k in range(1, 10)) / 9)
    assert (found.shape, found.scale) == pytest.approx(expected)


def zhang_and_stephens(x: list[float]) -> tuple[float, float]:
    """Their equations 6 to 9 for m = 20 + floor(sqrt n), one value after the other; x in order."""
    n = len(x)
    m = 20 + math.floor(math.sqrt(n))
    quartile = x[math.floor(n / 4 + 0.5) - 1]
    thetas = [1 / x[-1] + (1 - math.sqrt(m / (j - 0.5))) / (3 * quartile) for j in range(1, m + 1)]
    profile = []
    for theta in thetas:
        k = -sum(math.log(1 - theta * value) for value in x) / n
        profile.append(n * (math.log(theta / k) + k - 1))
    weights = [1 / sum(math.exp(other - one) for other in profile) for one in profile]
    theta = sum(value * weight for value, weight in zip(thetas, weights, strict=True))
    k = -sum(math.log(1 - theta * value) for value in x) / n
    return k, k / theta


@pytest.mark.parametrize("n", [4, 5, 10, 40])
def test_the_fit_is_that_of_zhang_and_stephens_drawn_to_the_exponential_by_ten(n: int) -> None:
    x = [0.5 + k + 0.1 * k * k for k in range(n)]
    k, scale = zhang_and_stephens(x)
    assert pareto(np.array(x[::-1])) == pytest.approx((-k * n / (n + 10), scale))


def test_a_shape_stays_below_one() -> None:
    """Each excess is a hundred times the one before: the mean would not exist."""
    assert pareto(np.array([100.0**k for k in range(150)]))[0] == 0.9


@pytest.mark.parametrize(
    ("shape", "rate", "threshold"),
    [
        (2e-6, 0.01, 1 + 2 / 2e-6 * (10**2e-6 - 1)),
        (0.0, 0.2, 1.0),
        (-0.5, 0.001, 1 + 4 * (1 - 0.1)),
        (1e-7, 0.01, 1 + 2 * math.log(10)),
    ],
)
def test_a_threshold_by_the_formula_and_by_its_limit(shape: float, rate: float, threshold: float) -> None:
    assert Tail(start=1.0, rate=0.1, shape=shape, scale=2.0).threshold(rate) == pytest.approx(threshold, rel=1e-9)


@pytest.mark.parametrize("shape", [-0.2, 0.0, 0.3])
def test_the_rate_of_a_threshold_is_the_one_asked_for(shape: float) -> None:
    learned = Tail(start=1.0, rate=0.02, shape=shape, scale=2.0)
    rates = np.array([0.02, 1e-3, 1e-6])
    thresholds = np.array([learned.threshold(rate) for rate in rates])
    np.testing.assert_allclose(learned.log_rate(thresholds), np.log(rates))
    assert learned.log_rate(np.array([0.5]))[0] == np.inf
    assert Tail(start=0.0, rate=1.0, shape=-0.5, scale=1.0).log_rate(np.array([3.0]))[0] == -np.inf
