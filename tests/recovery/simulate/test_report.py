"""A scenario in, a report out: seeded, fair between policies, and near the closed form where that holds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mainstay.recovery.simulate.report import CAUSES, POINTS, Recorded, simulate
from mainstay.recovery.simulate.scenario import HOUR, POLICIES, USUAL, PolicyName, Scenario, SweepOver

# A day of failures in ten days: 240 a run.
JOB = Scenario(
    nodes=24, gpus_per_node=8, dp=6, pp=4, tp=8, mtbf_hours=24.0, repair_hours=6.0, spares=24, days=10.0, seeds=30
)


def test_with_spares_enough_every_policy_is_near_dalys_formula() -> None:
    found = simulate(JOB)
    assert found.failures == pytest.approx(240.0, rel=0.05)
    for row in found.policies:
        assert row.ettr is not None
        assert row.waits == 0.0
        assert row.lost_gpu_hours["waiting"] == row.lost_gpu_hours["degraded"] == 0.0
        # Five standard errors: one of two million such tests would fail, and the seed is fixed.
        assert abs(row.ettr.mean - row.exact) < 5.0 * (row.ettr.high - row.ettr.mean) / 1.96 + 1e-3


def test_all_gpu_hours_are_useful_or_lost_to_a_cause() -> None:
    for spares in (0, 2):
        for row in simulate(replace(JOB, spares=spares, seeds=3)).policies:
            assert set(row.lost_gpu_hours) == set(CAUSES)
            assert row.useful_gpu_hours + sum(row.lost_gpu_hours.values()) == pytest.approx(240.0 * 192)


def test_the_same_scenario_gives_the_same_report() -> None:
    scenario = replace(JOB, seeds=2, sweep_over=SweepOver.SPARES)
    assert simulate(scenario).as_json() == simulate(scenario).as_json()
    assert simulate(replace(scenario, seed=1)).as_json() != simulate(scenario).as_json()


def test_a_policy_meets_the_same_failures_whoever_else_is_compared() -> None:
    alone = simulate(replace(JOB, seeds=2, policies=(POLICIES[PolicyName.REROUTE],)))
    among = simulate(replace(JOB, seeds=2))
    (row,) = alone.policies
    assert row == among.policies[-1]


def test_more_spares_never_lose_time() -> None:
    found = simulate(replace(JOB, seeds=5, sweep_over=SweepOver.SPARES, sweep_values=(0, 2, 4, 8, 24)))
    for policy in USUAL:
        ratios = [point.ettr[policy.name].mean for point in found.sweep]
        assert [point.value for point in found.sweep] == [0, 2, 4, 8, 24]
        # Continuing degraded can beat a swap that restarts: those two gain little, waiting gains all.
        assert ratios[-1] >= ratios[0] - 0.01
        if not policy.from_peer:
            assert ratios[0] < 0.5 < ratios[-1]


def test_nodes_that_fail_less_often_keep_more() -> None:
    found = simulate(replace(JOB, seeds=5, sweep_over=SweepOver.MTBF_HOURS))
    for policy in USUAL:
        ratios = [point.ettr[policy.name].mean for point in found.sweep]
        assert ratios == sorted(ratios)
    own = next(point for point in found.sweep if point.value == JOB.mtbf_hours)
    assert own.ettr == {row.policy.name: row.ettr for row in found.policies}


def test_an_interval_does_not_leave_what_a_share_can_be() -> None:
    # One run of five meets a failure and stands for 100 h; a save costs nothing, so that the others lose no second.
    policy = replace(POLICIES[PolicyName.OWN], save_s=0.0)
    rare = replace(JOB, nodes=1, gpus_per_node=4, dp=1, tp=1, mtbf_hours=1200.0, repair_hours=100.0, spares=0)
    (row,) = simulate(replace(rare, seeds=5, seed=0, policies=(policy,))).policies
    assert (row.interruptions, row.waits) == (0.2, 0.2)
    assert row.ettr.mean + 1.96 * row.ettr.spread / 5**0.5 > 1.0
    assert row.ettr.low < row.ettr.mean < row.ettr.high == 1.0


def test_the_curve_ends_at_the_ratio() -> None:
    found = simulate(replace(JOB, seeds=4, spares=2))
    assert len(found.curve_days) == POINTS
    assert found.curve_days[-1] == pytest.approx(10.0)
    for row in found.policies:
        assert row.curve[-1] == pytest.approx(row.ettr.mean)
        assert all(0.0 <= value <= 1.0 for value in row.curve)


def test_what_cannot_be_followed_has_a_reason_and_no_figures() -> None:
    lone = replace(JOB, dp=1, pp=24, seeds=2, sweep_over=SweepOver.SPARES, sweep_values=(1,))
    found = simulate(lone)
    rows = {row.policy.name: row for row in found.policies}
    assert rows[PolicyName.DISK_RESTART].ettr is not None
    swap = rows[PolicyName.STANDBY_SWAP]
    assert "no live peer" in (swap.impossible or "")
    assert (swap.ettr, swap.useful_gpu_hours, swap.lost_gpu_hours, swap.curve) == (None, None, {}, ())
    assert set(found.sweep[0].ettr) == {PolicyName.DISK_RESTART, PolicyName.MEMORY_RESTORE}


def test_spares_are_paid_for() -> None:
    row = simulate(replace(JOB, seeds=2)).policies[0]
    assert row.of_all_gpus == pytest.approx(row.ettr.mean / 2.0)  # 24 nodes and 24 spares


def test_recorded_failures_take_the_place_of_chance() -> None:
    own = replace(POLICIES[PolicyName.OWN], save_s=0.0, restart_s=10.0, every_s=30.0)
    asked = replace(JOB, iteration_s=1.0, seeds=1, policies=(own,))
    found = simulate(asked, recorded=Recorded((100.0, 200.0), 300.0))
    (row,) = found.policies
    assert row.ettr.mean == pytest.approx(270.0 / 300.0)
    assert (row.exact, found.failures, found.days) == (None, 2.0, 300.0 / (24.0 * HOUR))
    with pytest.raises(ValueError, match="how often nodes fail is recorded"):
        simulate(replace(asked, sweep_over=SweepOver.MTBF_HOURS), recorded=Recorded((), 300.0))


def test_progress_is_told_after_every_run_and_reaches_the_end() -> None:
    told: list[tuple[int, int]] = []
    scenario = replace(JOB, seeds=3, days=1.0, sweep_over=SweepOver.SPARES, sweep_values=(0, 1))
    simulate(scenario, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 9) for done in range(1, 10)]


def test_a_report_is_json() -> None:
    told = json.loads(json.dumps(simulate(replace(JOB, seeds=2, sweep_over=SweepOver.SPARES)).as_json()))
    assert told["policies"][0]["policy"]["name"] == "disk_restart"
    assert set(told["sweep"][0]["ettr"]) == {policy.name.value for policy in USUAL}
