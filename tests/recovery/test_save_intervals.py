"""Intervals between saves: all levels together against every schedule, at their limits, and when failures change."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstay.recovery.cost_model.ettr import best_interval
from mainstay.recovery.save_intervals import (
    DIRECTORY_SHARE,
    LONGEST_S,
    FailureRate,
    ProtectionTier,
    SaveCosts,
    levels,
    slowdown,
)

LARGE = SaveCosts(
    state_bytes=10_000_000_000,
    ranks_per_node=8,
    step_s=10.0,
    copy_Bps=5e9,
    parity_Bps=2e9,
    disk_Bps=2e9,
    read_Bps=4e9,
    upload_s=300.0,
)
FLEET = FailureRate(nodes=512)


def chosen(costs: SaveCosts, hazard: FailureRate = FLEET) -> dict[str, ProtectionTier]:
    return {tier.name: tier for tier in levels(costs, hazard)}


def kept(tiers: tuple[ProtectionTier, ...] | list[ProtectionTier]) -> float:
    return math.prod(1.0 - tier.lost_share for tier in tiers)


def test_what_failures_say_of_nodes() -> None:
    assert FailureRate(nodes=10).node_hours() == 6000.0
    assert FailureRate(nodes=10, hours=600.0).node_hours() == 12_000.0  # 6,000 node hours without a failure
    assert FailureRate(nodes=10, hours=600.0, failures=11).node_hours() == 1000.0
    assert FailureRate(nodes=100, mtbf_hours=1000.0).job_seconds() == 36_000.0
    assert FailureRate(nodes=100, mtbf_hours=1000.0).job_seconds(0.5) == 72_000.0


def test_the_levels_of_a_large_job() -> None:
    found = chosen(LARGE)
    assert list(found) == ["local slot", "parity", "disk", "upload"]
    assert [tier.takes_s for tier in found.values()] == [0.0, 5.0, 40.0, 300.0]
    assert [tier.restore_s for tier in found.values()] == [2.0, 5.0, 20.0, 300.0]
    assert [tier.lag_s for tier in found.values()] == [0.0, 5.0, 40.0, 340.0]
    assert found["local slot"].every == 1 < found["parity"].every < found["disk"].every
    for name in ("parity", "disk"):
        tier = found[name]
        seconds = tier.every * 10.0
        assert seconds == pytest.approx(math.sqrt(2.0 * tier.cost_s * tier.mtbf_s), rel=0.1), "Young's, to first order"
        first_order = tier.cost_s / seconds + (seconds / 2.0 + tier.lag_s + tier.restore_s) / tier.mtbf_s
        assert tier.lost_share == pytest.approx(first_order, rel=0.02)
    worse = chosen(LARGE, FailureRate(nodes=512, failures=15))
    assert worse["disk"].every == pytest.approx(found["disk"].every / 4, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(
    step_s=st.floats(0.5, 30.0),
    rate=st.floats(1e8, 1e10),
    upload_s=st.floats(1.0, 3000.0),
    costs=st.lists(st.floats(0.0, 2.0), min_size=3, max_size=3),
    nodes=st.integers(1, 20_000),
)
def test_no_nested_schedule_is_noticeably_better(
    step_s: float, rate: float, upload_s: float, costs: list[float], nodes: int
) -> None:
    names = ("parity", "disk", "upload")
    share = dict(zip(names, costs, strict=True))
    prices = replace(LARGE, step_s=step_s, parity_Bps=rate, disk_Bps=rate, upload_s=upload_s, slowdown=share)
    tiers = levels(prices, FailureRate(nodes))
    every = [tier.every for tier in tiers]
    assert all(outer % inner == 0 for inner, outer in pairwise(every))
    assert all(tier.every * step_s >= tier.takes_s * (1.0 - 1e-9) for tier in tiers), "the last save has ended"
    assert all(tier.every * step_s <= max(LONGEST_S, 2.0 * tier.takes_s + tiers[1].every * step_s) for tier in tiers)
    grid = [2.0 ** (power / 3.0) for power in range(-4, 5)]
    best = kept(tiers)
    for p, d, u in product(grid, repeat=3):
        parity = max(1, round(every[1] * p), math.ceil(tiers[1].takes_s / step_s))
        disk = parity * max(1, round(every[2] * d / parity), math.ceil(tiers[2].takes_s / step_s / parity))
        upload = disk * max(1, round(every[3] * u / disk), math.ceil(tiers[3].takes_s / step_s / disk))
        if upload * step_s <= LONGEST_S:
            other = [tier.saved_every(n, step_s) for tier, n in zip(tiers, (1, parity, disk, upload), strict=True)]
            assert kept(other) <= best * 1.0005 + 1e-12


def test_a_level_that_is_off_leaves_its_failures_to_the_next() -> None:
    whole, without = chosen(LARGE), chosen(replace(LARGE, parity_Bps=None))
    assert list(without) == ["local slot", "disk", "upload"]
    rate = sum(1.0 / whole[name].mtbf_s for name in ("parity", "disk"))
    assert 1.0 / without["disk"].mtbf_s == pytest.approx(rate)
    assert without["disk"].every < whole["disk"].every / 3
    assert list(chosen(replace(LARGE, parity_Bps=None, disk_Bps=None, upload_s=None))) == ["local slot"]
    alone = chosen(replace(LARGE, parity_Bps=None, upload_s=None))["disk"]
    assert alone.every * 10.0 == pytest.approx(best_interval(alone.cost_s, alone.mtbf_s), abs=10.0), "Daly's, alone"


def test_limits_of_cost() -> None:
    free = chosen(replace(LARGE, parity_Bps=1e18, disk_Bps=1e18, upload_s=1e-6))
    assert [tier.every for tier in free.values()] == [1, 1, 1, 1]
    hidden = chosen(replace(LARGE, slowdown={"parity": 0.0, "disk": 0.0}))
    assert [tier.every for tier in hidden.values()] == [1, 1, 4, 32], "back to back: 5, 40, and 300 s; steps of 10 s"
    huge = chosen(replace(LARGE, disk_Bps=1e4, upload_s=1e8))
    assert huge["disk"].every * 10.0 >= huge["disk"].takes_s == 8e6
    assert huge["upload"].every * 10.0 >= 1e8


def test_limits_of_failures() -> None:
    never = chosen(LARGE, FailureRate(nodes=1, mtbf_hours=math.inf))
    assert {never[name].every * 10.0 for name in ("parity", "disk")} == {LONGEST_S}
    assert all(0.0 <= tier.lost_share < 1e-4 for tier in never.values())
    always = chosen(LARGE, FailureRate(nodes=10_000_000, mtbf_hours=1e-3))
    assert always["disk"].every == 4
    assert always["disk"].lost_share == 1.0
    assert DIRECTORY_SHARE < 0.6 * 0.05, "what takes memory and the directory is part of what takes memory"


def test_intervals_that_are_given_stay() -> None:
    fixed = chosen(replace(LARGE, given={"parity": 7}))
    assert fixed["parity"].every == 7
    assert fixed["disk"].every % 7 == 0
    prime = chosen(replace(LARGE, given={"disk": 97}))
    assert prime["disk"].every == 97
    assert prime["parity"].every == pytest.approx(chosen(LARGE)["parity"].every, rel=0.1), "no divisor of 97 is forced"
    often = chosen(replace(LARGE, given={"disk": 5}))
    assert often["parity"].every <= 5, "parity older than the disk restores nothing"


def test_uploads_are_free_until_they_are_measured_to_slow_training() -> None:
    free, slow = chosen(LARGE)["upload"], chosen(replace(LARGE, slowdown={"upload": 0.05}))["upload"]
    assert free.cost_s == 0.0
    assert free.every == chosen(LARGE)["disk"].every, "each step on disk"
    assert slow.cost_s == pytest.approx(15.0)
    assert slow.every > 5 * free.every


def test_a_slowdown_is_a_difference_of_medians_with_its_error() -> None:
    others = [1.0 + 0.01 * (number % 3 - 1) for number in range(300)]
    beside = [1.1 * value for value in others[:60]]
    found = slowdown([*beside, 50.0], [*others, 50.0])  # one step that waited for something else
    assert found is not None
    share, error = found
    assert share == pytest.approx(0.1, abs=0.005)
    assert 0.0 < error < 0.01
    assert slowdown(beside[:15], others) is None
    assert slowdown(beside, others[:15]) is None
