"""A machine's model sees unusual levels, restlessness and signals that go together unusually; and names signals."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_multivariate import MachineModel, ewma, filled, status
from bench.lib_multivariate_views import Level, Unrest

DAYS = 1440


def healthy(seed: int, length: int = 4 * DAYS) -> np.ndarray:
    """Twelve signals driven by two loads and a day's rhythm, with noise of their own."""
    rng = np.random.default_rng(seed)
    load = np.zeros((length, 2))
    for k in range(1, length):
        load[k] = 0.95 * load[k - 1] + 0.3 * rng.standard_normal(2)
    load[:, 0] += np.sin(np.arange(length) * 2 * np.pi / DAYS)
    mix = np.random.default_rng(99).normal(size=(2, 12))
    return load @ mix + 0.2 * rng.standard_normal((length, 12))


@pytest.fixture(scope="module")
def model() -> MachineModel:
    return MachineModel().fit(healthy(0))


def risen(over: np.ndarray) -> int:
    return int(np.count_nonzero(np.diff(over.astype(int)) == 1))


def test_healthy_days_stay_below_both_thresholds(model: MachineModel) -> None:
    scores = model.stream().update(healthy(1, 8 * DAYS))
    assert risen(scores.rank > model.threshold_) <= 8
    assert risen(status(scores.unrest) >= model.alarm_threshold_) <= 8


def test_restlessness_alarms_within_minutes_and_rests_at_a_new_level(model: MachineModel) -> None:
    x = healthy(5, DAYS)
    x[300:, 4] += 2.0
    x[900:1000, 5:8] += np.random.default_rng(2).normal(0, 1.5, (100, 3))
    loud = status(model.stream().update(x).unrest) >= model.alarm_threshold_
    assert loud[900:910].any()
    assert loud[920:1000].mean() > 0.9
    assert not loud[400:900].any(), "a level that stays is no alarm for ever"
    named = np.argsort(-model.contributions(x)[900:1000].mean(axis=0))[:3]
    assert set(named.tolist()) == {5, 6, 7}


def test_stillness_is_no_unrest_and_a_scaled_load_has_a_level() -> None:
    rows = np.random.default_rng(0).normal(0.0, 1.0, (500, 4))
    view = Unrest().fit(rows)
    assert view.score(np.full((1, 4), -5.0)) == 0.0
    assert view.score(np.array([[4.0, 0.0, 0.0, 0.0]])) == pytest.approx(4.0, rel=0.2)
    np.testing.assert_allclose(Level().fit(rows).score(np.array([[3.0, 0.0, 0.0, 4.0]])), 25 / 4)


@pytest.mark.parametrize("fault", ["level", "restless", "unlike", "stuck"])
def test_faults_of_four_kinds_stand_out(model: MachineModel, fault: str) -> None:
    x = healthy(2, DAYS)
    at = slice(600, 680)
    if fault == "level":
        x[at, 3] += 4.0
    elif fault == "restless":
        x[at, 3] += np.random.default_rng(1).normal(0, 1.5, 80)
    elif fault == "unlike":  # usual values at the wrong time
        x[at, 2:5] = x[100:180, 2:5]
    else:
        x[at, 3] = 6.0
    score = model.score_samples(x)
    assert np.median(score[at]) > np.quantile(score[:600], 0.995)
    assert (score[at] > model.threshold_).any()
    if fault != "unlike":
        assert model.contributions(x)[at].mean(axis=0).argmax() == 3


def test_samples_are_scored_from_their_past_alone_in_whatever_chunks(model: MachineModel) -> None:
    x = healthy(3, 500)
    x[np.random.default_rng(0).random(x.shape) < 0.05] = np.nan
    whole = model.score_samples(x)
    assert len(model.stream().update(x[:0]).unrest) == 0
    stream = model.stream()
    parts = [stream.update(x[start : start + step]).rank for start, step in ((0, 1), (1, 1), (2, 7), (9, 0), (9, 491))]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9)
    x[400:] = 50.0
    np.testing.assert_array_equal(model.score_samples(x)[:400], whole[:400])


def test_missing_values_are_their_last_known_ones() -> None:
    x = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, np.nan], [4.0, 5.0]])
    np.testing.assert_array_equal(filled(x, np.array([7.0, 8.0])), [[7, 1], [2, 1], [2, 1], [4, 5]])
    whole = np.ones((2, 2))
    assert filled(whole, np.zeros(2)) is whole


def test_the_average_is_that_of_the_formula() -> None:
    np.testing.assert_allclose(ewma(np.array([4.0, 0.0]), 3.0, 0.0), [2.0, 1.0])
    np.testing.assert_allclose(ewma(np.array([[4.0, 2.0], [0.0, 1.0]]), 3.0, np.array([0.0, 2.0])), [[2, 2], [1, 1.5]])


def test_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="too few to learn from"):
        MachineModel().fit(healthy(0, 100))


def test_constant_and_silent_signals_are_no_trouble() -> None:
    x = healthy(4, DAYS)
    x[:, 0] = 0.5
    x[:, 1] = np.nan
    score = MachineModel().fit(x).score_samples(x)
    assert np.isfinite(score).all()


def test_what_stands_is_over_where_two_of_three_samples_are() -> None:
    score = np.random.default_rng(4).random(2000)
    over = score >= 0.7
    two = np.convolve(np.concatenate([[0, 0], over]), np.ones(3), mode="valid") >= 2
    np.testing.assert_array_equal((status(score) >= 0.7)[1:], two[1:])
    np.testing.assert_array_equal(status(np.array([1.0, 9.0, 1.0, 1.0, 5.0, 6.0])), [1, 1, 1, 1, 1, 5])
    np.testing.assert_array_equal(status(np.array([3.0])), [-np.inf])
