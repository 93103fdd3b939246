"""Forecasts of how many nodes there will be: by pencil, and what all of them keep."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from bench import lib_forecast as forecast
from bench.lib_forecast import FORECASTS, best, error

EVERY = pytest.mark.parametrize("name", FORECASTS)


def walk(seed: int, length: int = 40) -> list[int]:
    rng = random.Random(seed)
    counts = [16]
    for _ in range(length - 1):
        counts.append(min(32, max(0, counts[-1] + rng.choice((-4, -1, 0, 0, 0, 1, 3)))))
    return counts


@EVERY
@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_paths_are_counts_that_there_have_been_and_always_the_same(name: str, length: int) -> None:
    for seed in range(5):
        counts = walk(seed, length)
        paths = FORECASTS[name](counts, 7)
        assert paths.shape[0] >= 1
        assert paths.shape[1:] == (7,)
        assert np.isfinite(paths).all()
        assert 0.0 <= paths.min() <= paths.max() <= max(counts)
        assert (FORECASTS[name](counts, 7) == paths).all()


@EVERY
def test_where_nothing_ever_changes_nothing_will(name: str) -> None:
    assert (FORECASTS[name]([9] * 20, 5) == 9.0).all()


def test_levels_by_pencil() -> None:
    assert forecast.last_value([3, 8], 2).tolist() == [[8.0, 8.0]]
    assert forecast.smoothed([4, 8, 8], 2).tolist() == [[7.0, 7.0]]


def test_a_damped_trend_by_pencil() -> None:
    # level 10, then 0.5 * 8 + 0.5 * 10 = 9 with trend 0.5 * -1 = -0.5; ahead: 9 - 0.5 * (0.8 + 0.64)
    assert forecast.damped_trend([10, 8], 2)[0].tolist() == pytest.approx([9.0 - 0.4, 9.0 - 0.4 - 0.32])


def test_the_last_change_goes_on_by_the_fitted_factor() -> None:
    # changes -8, -4, -2: each half the one before; then -1, -0.5
    assert forecast.arima([30, 22, 18, 16], 2)[0].tolist() == pytest.approx([15.0, 14.5])


def test_what_is_above_its_mean_falls_back_to_it() -> None:
    counts = [8, 12] * 10
    deviations = np.array(counts) - 10.0
    factor = max(-0.95, float(deviations[:-1] @ deviations[1:] / (deviations[:-1] @ deviations[:-1])))
    assert factor == -0.95
    assert forecast.reverting(counts, 2)[0].tolist() == pytest.approx([10.0 - 2.0 * 0.95, 10.0 + 2.0 * 0.95**2])


def test_sampled_futures_repeat_stretches_of_the_past() -> None:
    counts = [20, 20, 17, 20, 20, 20, 17, 20]
    paths = forecast.resampled(counts, 3)
    assert set(np.diff(paths, axis=1).ravel()) <= {0.0, -3.0, 3.0}
    assert len({tuple(path) for path in paths}) > 1, "the future is not sure"


def test_an_error_by_pencil() -> None:
    # From [5]: 5, 5 against 7, 4; from [5, 7]: 7 against 4.
    assert error(forecast.last_value, [5, 7, 4], 2) == pytest.approx((2 + 1 + 3) / 3)
    assert error(forecast.last_value, [5, 7, 4], 2, first=2) == 3.0


def test_the_best_is_the_one_that_erred_least() -> None:
    falling = [30 - round(10 * (1 - math.exp(-i / 8))) for i in range(40)]
    assert best(falling, 6) == min(FORECASTS, key=lambda name: error(FORECASTS[name], falling, 6))
    assert best([12] * 10, 4) == "last value", "on a tie the plainest"


@pytest.mark.parametrize(("counts", "first"), [([5], 1), ([5, 6], 2), ([5, 6], 0)])
def test_too_little_to_judge_by_is_refused(counts: list[int], first: int) -> None:
    with pytest.raises(ValueError, match=f"{len(counts)} counts leave nothing"):
        error(forecast.last_value, counts, 3, first)
