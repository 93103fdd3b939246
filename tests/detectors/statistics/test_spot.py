"""Thresholds from tails: the fit finds the parameters, and so many clusters pass as were asked for."""

from __future__ import annotations

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
