"""One failure, one action, one price: by hand, at the edges, and against sampling."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest

from mainstay.recovery.cost_model.failure_cost import (
    BUDGET,
    MEASURED,
    Downtime,
    RecoveryAction,
    Repair,
    action_threshold,
    estimate_cost,
    last_copy_risk,
    price_over,
    until_back,
)


def test_the_parts_sum_to_the_price() -> None:
    action = RecoveryAction(
        downtime_s=20.0, repeated_s=5.0, rate=0.9, back_after_s=1000.0, rejoin_probability=0.5, rejoin_s=8.0,
        copies_at_risk=3, exposed_s=1000.0,
    )  # fmt: skip
    found = estimate_cost(action, job_rate=1e-4, worker_rate=1e-6, restart_s=600.0)
    degraded = 0.1 * (1.0 - math.exp(-0.1)) / 1e-4
    risk = 1.0 - math.exp(-3e-3)
    assert found.risk_s == pytest.approx(risk * 600.0)
    assert found.total_s == pytest.approx(20.0 + 5.0 + degraded + 4.0 + risk * 600.0)


def test_the_wait_is_the_mean_of_what_comes_first() -> None:
    gaps = np.random.default_rng(3).exponential(5000.0, 200_000)
    assert until_back(2000.0, 1 / 5000.0) == pytest.approx(np.minimum(gaps, 2000.0).mean(), rel=0.01)
    assert until_back(math.inf, 1 / 5000.0) == 5000.0
    assert until_back(7.0, 0.0) == 7.0


def test_a_full_rate_costs_nothing_however_long_the_repair() -> None:
    action = RecoveryAction(downtime_s=1.0, repeated_s=0.0, back_after_s=math.inf)
    assert estimate_cost(action, job_rate=0.0, worker_rate=0.0, restart_s=1.0).total_s == 1.0


def test_being_ready_costs_its_share_of_all_time_between_failures() -> None:
    ready = RecoveryAction(downtime_s=1.0, repeated_s=0.0, readiness_share=0.02)
    assert estimate_cost(ready, job_rate=1e-4, worker_rate=0.0, restart_s=1.0).readiness_s == pytest.approx(200.0)
    assert estimate_cost(ready, job_rate=0.0, worker_rate=0.0, restart_s=1.0).total_s == 1.0
    plain = RecoveryAction(downtime_s=1.0, repeated_s=0.0)
    assert estimate_cost(plain, job_rate=1e-4, worker_rate=0.0, restart_s=1.0).total_s == 1.0


def test_risk_grows_with_copies_and_time() -> None:
    assert last_copy_risk(1e-6, 0, 1e9) == 0.0
    assert 0.0 < last_copy_risk(1e-6, 1, 60.0) < last_copy_risk(1e-6, 8, 60.0) < last_copy_risk(1e-6, 8, 600.0) < 1.0


def test_when_to_act_on_a_doubtful_alarm() -> None:
    assert action_threshold(10.0, 90.0) == pytest.approx(0.1)
    assert action_threshold(0.0, 0.0) == 0.0


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lie in 0\.\.1"):
        RecoveryAction(downtime_s=0.0, repeated_s=0.0, rate=1.5)
    with pytest.raises(ValueError, match="at least 0"):
        RecoveryAction(downtime_s=-1.0, repeated_s=0.0)
    with pytest.raises(ValueError, match="at least 0 times a second"):
        estimate_cost(RecoveryAction(downtime_s=0.0, repeated_s=0.0), job_rate=-1.0, worker_rate=0.0, restart_s=0.0)


def test_stated_downtimes_are_sums() -> None:
    assert MEASURED.total_s == pytest.approx(0.147)
    assert 10.0 < BUDGET.total_s < 60.0


def test_a_clusters_downtime_is_made_of_the_middles_of_published_spans() -> None:
    """0.3-5 s, 1-3 s, 1-20 s, 2-5 s, and a step of ten seconds; the live one is in milliseconds."""
    spans = [(0.3 + 5) / 2, (1 + 3) / 2, (1 + 20) / 2, (2 + 5) / 2, 10.0]
    assert astuple(BUDGET) == pytest.approx(spans)
    assert astuple(MEASURED) == pytest.approx([0.026, 0.001, 0.031, 0.044, 0.045])
    assert Downtime().total_s == 0.0
    assert BUDGET.total_s == pytest.approx(28.65)


@pytest.mark.parametrize("rates", [{"job_rate": 0.0, "worker_rate": -1e-9}, {"job_rate": -1e-9, "worker_rate": 0.0}])
def test_rates_are_at_least_zero(rates: dict[str, float]) -> None:
    idle = RecoveryAction(downtime_s=3.0, repeated_s=0.0, rate=0.0, back_after_s=7.0)
    assert estimate_cost(idle, job_rate=0.0, worker_rate=0.0, restart_s=0.0).total_s == 10.0
    with pytest.raises(ValueError, match="at least 0 times a second"):
        estimate_cost(idle, **rates, restart_s=0.0)


def test_a_price_of_several_repairs_is_the_mean_of_every_part() -> None:
    """Half of the repairs take 100 s, half 300 s; a worker in ten thousand seconds, one last copy."""
    waits = RecoveryAction(
        downtime_s=2.0, repeated_s=3.0, rate=0.25, rejoin_probability=0.5, rejoin_s=8.0, copies_at_risk=2,
        until_repair=True, readiness_share=0.01,
    )  # fmt: skip
    found = price_over(waits, (Repair(0.5, 100.0), Repair(0.5, 300.0)), job_rate=1e-3, worker_rate=1e-4, restart_s=50.0)
    back = [(1 - math.exp(-0.1)) / 1e-3, (1 - math.exp(-0.3)) / 1e-3]
    risk = (2 - math.exp(-0.02) - math.exp(-0.06)) / 2
    expected = [2.0, 3.0, 0.75 * sum(back) / 2, 4.0, 50 * risk, 10.0]
    assert astuple(found) == pytest.approx(expected)
    assert found.total_s == pytest.approx(sum(expected))
