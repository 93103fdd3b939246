"""Daly's exact formula, the best interval, and the closed form of a shrinking job."""

from __future__ import annotations

import math

import pytest

from bench.lib_rates import average_rate, falling_throughput
from mainstay.recovery.cost_model.ettr import SaveSchedule, best_interval, exact_ettr

DAY = 86400.0


@pytest.mark.parametrize(
    ("mtbf", "save", "restart", "interval", "expected"),
    [
        (11135.0, 60.0, 900.0, 1156.0, 0.8298),
        (11135.0, 5.0, 900.0, 334.0, 0.8950),
        (3600.0, 30.0, 300.0, 465.0, 0.8062),
        (1800.0, 30.0, 300.0, 329.0, 0.7010),
    ],
)
def test_exact_ettr_equals_known_values(mtbf, save, restart, interval, expected) -> None:
    cadence = SaveSchedule(interval_s=interval, save_s=save, restart_s=restart)
    assert exact_ettr(cadence, mtbf) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("save", [0.001, 5.0, 60.0, 3600.0, 50000.0])
@pytest.mark.parametrize("mtbf", [600.0, 11135.0, 30 * DAY])
def test_the_best_interval_beats_its_neighbors(save, mtbf) -> None:
    best = best_interval(save, mtbf)
    assert 0.0 < best <= mtbf

    def at(interval: float) -> float:
        return exact_ettr(SaveSchedule(interval_s=interval, save_s=save, restart_s=300.0), mtbf)

    assert at(best) >= at(best * 1.01)
    assert at(best) >= at(best * 0.99)


def test_the_best_interval_tends_to_youngs_where_saves_are_cheap() -> None:
    assert best_interval(0.001, DAY) == pytest.approx(math.sqrt(2 * 0.001 * DAY), rel=1e-3)
    assert best_interval(1e-9, 1e9) == pytest.approx(math.sqrt(2.0), rel=1e-6)
    assert best_interval(0.0, DAY) == best_interval(5e-324, DAY) == 0.0


def test_what_never_ends_is_worth_nothing() -> None:
    assert exact_ettr(SaveSchedule(interval_s=1e9, save_s=1.0, restart_s=1.0), 1.0) == 0.0


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="interval above 0"):
        SaveSchedule(interval_s=0.0, save_s=1.0, restart_s=1.0)
    with pytest.raises(ValueError, match="more than 0 s apart"):
        best_interval(1.0, 0.0)
    with pytest.raises(ValueError, match="at least 0 s"):
        best_interval(-1.0, 1.0)


def test_a_shrinking_job_loses_a_regroup_and_half_a_step_a_period() -> None:
    # Two periods of 100 s at 10 and 5 samples/s, batch 20, regroup 10 s: (1000 - 10) + (5 * 90 - 10) over 200 s.
    assert falling_throughput((10.0, 5.0), 100.0, 10.0, 20.0) == pytest.approx(1430.0 / 200.0)


def test_a_rate_is_averaged_over_losses_and_returns() -> None:
    # Losses at 10 and 20 of 30 s. Never back: 1, 1/2, 1/3 for 10 s each. Back after 5 s: 10 of the 30 s at 1/2.
    assert average_rate(lambda lost: 1.0 / (1 + lost), 10.0, 30.0, math.inf) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert average_rate(lambda lost: 1.0 / (1 + lost), 10.0, 30.0, 5.0) == pytest.approx((20 + 10 / 2) / 30)
