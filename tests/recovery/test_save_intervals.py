"""Intervals between saves: against the literature, against a search, and when they change."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.recovery.save_intervals import FailureRate, SaveCosts, daly, level, levels, young


def test_young_and_daly_at_a_textbook_point() -> None:
    """A save of 5 minutes and a failure a day: 2 h in round numbers."""
    assert young(300.0, 86_400.0) == pytest.approx(math.sqrt(2 * 300 * 86_400))
    assert daly(300.0, 86_400.0) == pytest.approx(7200.0 - 300.0 + 100.0, rel=0.02)
    assert daly(300.0, 100.0) == 100.0
    for cost, mtbf in ((-1.0, 1.0), (1.0, 0.0)):
        with pytest.raises(ValueError, match="failures are apart"):
            daly(cost, mtbf)


def wasted(interval: float, cost: float, mtbf: float) -> float:
    """Expected time per unit of work, with exponential failures and immediate restarts (Daly 2006, equation 13)."""
    return mtbf * math.expm1((interval + cost) / mtbf) / interval


@given(cost=st.floats(0.01, 600.0), mtbf=st.floats(3600.0, 1e7))
def test_no_other_interval_is_noticeably_better(cost: float, mtbf: float) -> None:
    chosen = wasted(daly(cost, mtbf), cost, mtbf)
    best = min(wasted(young(cost, mtbf) * 2 ** (power / 8), cost, mtbf) for power in range(-32, 33))
    assert chosen <= best * 1.001


def test_no_save_begins_before_the_last_has_ended() -> None:
    assert level("disk", "", takes_s=60.0, mtbf_s=20.0, step_s=2.0).every == 30
    assert level("disk", "", takes_s=0.0, mtbf_s=3600.0, step_s=2.0).every == 1


def test_what_failures_say_of_nodes() -> None:
    assert FailureRate(nodes=10).node_hours() == 6000.0
    assert FailureRate(nodes=10, hours=600.0).node_hours() == 12_000.0  # 6,000 node hours without a failure
    assert FailureRate(nodes=10, hours=600.0, failures=11).node_hours() == 1000.0
    assert FailureRate(nodes=100, mtbf_hours=1000.0).job_seconds() == 36_000.0
    assert FailureRate(nodes=100, mtbf_hours=1000.0).job_seconds(0.5) == 72_000.0


def test_the_levels_of_a_large_job() -> None:
    prices = SaveCosts(state_bytes=10_000_000_000, ranks_per_node=8, step_s=10.0, parity_Bps=2e9, disk_Bps=2e9)
    found = {made.name: made for made in levels(prices, FailureRate(nodes=512))}
    assert list(found) == ["local slot", "parity", "disk"]
    assert found["parity"].takes_s == 5.0
    assert found["disk"].takes_s == 40.0
    assert found["local slot"].every < found["parity"].every < found["disk"].every
    for made in found.values():
        seconds = made.every * 10.0
        assert made.lost_share == pytest.approx(made.cost_s / seconds + seconds / (2 * made.mtbf_s))
    worse = {made.name: made for made in levels(prices, FailureRate(nodes=512, failures=15))}
    assert worse["disk"].every == pytest.approx(found["disk"].every / 4, rel=0.1)


def test_a_level_that_is_free_is_used_every_step() -> None:
    made = level("local slot", "", takes_s=0.0, mtbf_s=1000.0, step_s=5.0)
    assert (made.every, made.lost_share) == (1, 5.0 / 2000.0)
