"""A machine's model sees unusual levels, restlessness and signals that go together unusually; and names signals."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.multivariate import MachineModel, ewma, filled

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


def test_healthy_days_stay_below_the_threshold(model: MachineModel) -> None:
    over = model.score_samples(healthy(1, 8 * DAYS)) > model.threshold_
    assert np.count_nonzero(np.diff(over.astype(int)) == 1) <= 8


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
    stream = model.stream()
    parts = [stream.update(x[start : start + step]) for start, step in ((0, 1), (1, 1), (2, 7), (9, 0), (9, 491))]
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


def test_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="too few to learn from"):
        MachineModel().fit(healthy(0, 100))


def test_constant_and_silent_signals_are_no_trouble() -> None:
    x = healthy(4, DAYS)
    x[:, 0] = 0.5
    x[:, 1] = np.nan
    score = MachineModel().fit(x).score_samples(x)
    assert np.isfinite(score).all()
