"""Many runs of one policy at once: counted by hand, and against Daly's exact formula."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_monte_carlo import Kind, ettr, scattered, useful, useful_until_end
from mainstay.recovery.cost_model.ettr import SaveSchedule, best_interval, exact_ettr
from mainstay.recovery.simulate.failure_processes import estimate, exponential


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


CADENCE = SaveSchedule(interval_s=10.0, save_s=2.0, restart_s=5.0)


def test_whole_intervals_alone_survive_a_failure() -> None:
    assert useful(np.array([4.0, 5.0, 16.9, 17.0, 41.5]), CADENCE).tolist() == [0.0, 0.0, 0.0, 10.0, 30.0]


def test_a_run_that_ends_keeps_what_it_has_begun() -> None:
    assert useful_until_end(np.array([4.0, 8.0, 16.0, 20.0]), CADENCE).tolist() == [0.0, 3.0, 10.0, 13.0]


def test_a_run_counted_by_hand() -> None:
    # 0..24 without a restart: 2 intervals; 24..48: (24 - 5) / 12 = 1; 48..60: 12 - 5 = 7 to the end.
    kept = ettr(np.array([[24.0, 48.0, np.inf]]), 60.0, (Kind(1.0, CADENCE),), rng())
    assert kept.tolist() == [pytest.approx((20.0 + 10.0 + 7.0) / 60.0)]


def test_kinds_of_failure_have_restarts_of_their_own() -> None:
    quick = SaveSchedule(interval_s=10.0, save_s=2.0, restart_s=0.0)
    failures = np.arange(1, 1000)[None, :] * 1000.0
    slow_only = ettr(failures, 1e6, (Kind(1.0, CADENCE),), rng())[0]
    quick_only = ettr(failures, 1e6, (Kind(1.0, quick),), rng())[0]
    both = ettr(failures, 1e6, (Kind(0.5, CADENCE), Kind(0.5, quick)), rng())[0]
    assert slow_only <= both <= quick_only


@pytest.mark.parametrize("mtbf", [1800.0, 11135.0])
def test_monte_carlo_agrees_with_the_exact_formula(mtbf) -> None:
    cadence = SaveSchedule(interval_s=best_interval(30.0, mtbf), save_s=30.0, restart_s=300.0)
    horizon = 2000.0 * mtbf
    source = rng()
    found = estimate(ettr(exponential(mtbf, horizon, 200, source), horizon, (Kind(1.0, cadence),), source))
    assert found.mean == pytest.approx(exact_ettr(cadence, mtbf), rel=0.003)
    assert found.low < found.mean < found.high


def test_the_same_seed_gives_the_same_figures() -> None:
    runs = [ettr(scattered(50, 1e5, 8, r), 1e5, (Kind(0.3, CADENCE), Kind(0.7, CADENCE)), r) for r in (rng(), rng())]
    assert np.array_equal(*runs)


def test_shares_must_be_whole() -> None:
    with pytest.raises(ValueError, match=r"sum to 1, not 0\.5"):
        ettr(np.array([[1.0, 2.0]]), 10.0, (Kind(0.5, CADENCE),), rng())


def test_processes_have_the_mean_that_was_asked_for() -> None:
    instants = exponential(100.0, 100_000.0, 50, rng())
    counts = np.isfinite(instants).sum(axis=1)
    assert counts.mean() == pytest.approx(1000.0, rel=0.02)
    assert np.all(np.diff(np.where(np.isfinite(instants), instants, 1e9), axis=1) >= 0.0)
    assert scattered(466, 54.0, 3, rng()).shape == (3, 466)


@pytest.mark.parametrize(
    ("mtbf", "horizon", "runs"), [(0.0, 1.0, 1), (1.0, 0.0, 1), (1.0, float("inf"), 1), (1.0, 1.0, 0)]
)
def test_impossible_processes_are_refused(mtbf, horizon, runs) -> None:
    with pytest.raises(ValueError, match="above 0 s and at least one run"):
        exponential(mtbf, horizon, runs, rng())


def test_one_run_has_no_spread() -> None:
    lone = estimate(np.array([0.5]))
    assert (lone.low, lone.high, lone.spread, lone.runs) == (0.5, 0.5, 0.0, 1)
