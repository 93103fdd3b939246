"""One run, failure by failure: by hand, against the arrays of gaps, and every second counted once."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.lib_monte_carlo import Kind, ettr
from mainstay.recovery.cost_model.iteration import IterationShape, dropped_rate, spread_rate
from mainstay.recovery.simulate import node_simulation
from mainstay.recovery.simulate.node_simulation import follow_places, pipelines_on
from mainstay.recovery.simulate.scenario import HOUR, POLICIES, PolicyName, Scenario, SimulatedPolicy

DISK = POLICIES[PolicyName.DISK_RESTART]
# 4 nodes of 2 GPUs; a pipeline is 2 stages x 2 ranks = 2 nodes; a step takes 10 s, a repair 1,000 s.
JOB = Scenario(
    nodes=4, gpus_per_node=2, dp=2, pp=2, tp=2, micro_batches=3, iteration_s=10.0, spares=1, repair_hours=1000.0 / HOUR
)
WAIT = replace(DISK, save_s=5.0, restart_s=100.0, every_s=45.0)


def test_a_spare_takes_the_place_and_what_was_not_saved_is_done_again() -> None:
    run = follow_places(JOB, WAIT, [(120.0, 0)], 1000.0)
    # 0..120: two periods of 45 + 5 s, then 20 s that are lost; 100 s of restart; 780 s: 15 periods and 30 s more.
    assert run.useful_s == pytest.approx(90.0 + 15 * 45.0 + 30.0)
    assert (run.lost.saving_s, run.lost.repeated_s) == pytest.approx((10.0 + 75.0, 20.0))
    assert (run.lost.downtime_s, run.lost.waiting_s, run.lost.degraded_s) == pytest.approx((100.0, 0.0, 0.0))
    assert (run.interruptions, run.waits) == (1, 0)


def test_without_a_spare_the_job_stands_until_a_node_is_repaired() -> None:
    run = follow_places(replace(JOB, spares=0), WAIT, [(50.0, 0)], 2000.0)
    assert run.lost.waiting_s == pytest.approx(1000.0)
    assert run.lost.downtime_s == pytest.approx(100.0)
    # 50 s are one whole period; then 850 s: 17 periods.
    assert run.useful_s == pytest.approx(45.0 + 17 * 45.0)
    assert (run.interruptions, run.waits) == (1, 1)


def test_a_repaired_node_is_the_next_spare() -> None:
    failures = [(50.0, 0), (1100.0, 1)]
    assert follow_places(JOB, WAIT, failures, 3000.0).waits == 0
    assert follow_places(JOB, WAIT, [(50.0, 0), (1000.0, 1)], 3000.0).waits == 1


def test_an_empty_place_cannot_fail_again() -> None:
    bare = replace(JOB, spares=0)
    once = follow_places(bare, WAIT, [(50.0, 2)], 2000.0)
    assert follow_places(bare, WAIT, [(50.0, 2), (60.0, 2)], 2000.0) == once


def test_a_failure_during_a_restart_begins_it_anew() -> None:
    run = follow_places(replace(JOB, spares=2), WAIT, [(50.0, 0), (110.0, 1)], 400.0)
    assert run.lost.downtime_s == pytest.approx(60.0 + 100.0)
    assert run.interruptions == 2


def test_a_second_loss_while_the_job_stands_is_no_interruption_and_both_must_come_back() -> None:
    run = follow_places(replace(JOB, spares=0), WAIT, [(50.0, 0), (300.0, 1)], 2000.0)
    assert (run.interruptions, run.waits) == (1, 2)
    assert run.lost.waiting_s == pytest.approx(1250.0)  # until 1,300 s


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        (PolicyName.DROP_REPLICA, dropped_rate(IterationShape(dp=2, pp=2, tp=2, micro_batches=3), 1)),
        (PolicyName.REROUTE, spread_rate(IterationShape(dp=2, pp=2, tp=2, micro_batches=3), 1)),
    ],
)
def test_a_job_goes_on_without_a_node_and_takes_it_back(name, rate) -> None:
    assert 0.5 <= rate < 1.0
    policy = replace(POLICIES[name], restart_s=50.0, rejoin_s=20.0)
    run = follow_places(replace(JOB, spares=0), policy, [(100.0, 0)], 2000.0)
    # Downtime 100..150 and, when the node is back at 1,100 s, 20 s: degraded for 950 s in between.
    assert run.lost.downtime_s == pytest.approx(70.0)
    assert run.lost.degraded_s == pytest.approx((1.0 - rate) * 950.0)
    assert run.lost.waiting_s == 0.0
    assert run.useful_s == pytest.approx(100.0 + 950.0 * rate + 880.0)


def test_a_job_that_lost_every_replica_stands() -> None:
    policy = POLICIES[PolicyName.DROP_REPLICA]
    run = follow_places(replace(JOB, spares=0), policy, [(100.0, 0), (200.0, 2)], 5000.0)
    assert run.lost.waiting_s == pytest.approx(900.0)  # from the second loss until the first node is back


def test_a_node_breaks_every_pipeline_that_it_has_a_rank_of() -> None:
    assert [[*pipelines_on(JOB, place)] for place in range(3)] == [[0], [0], [1]]
    wide = Scenario(nodes=2, gpus_per_node=6, dp=3, pp=2, tp=2)
    assert [[*pipelines_on(wide, place)] for place in (0, 1)] == [[0, 1], [1, 2]]


def test_with_spares_enough_it_is_the_closed_forms_run() -> None:
    """Two programs, one written over arrays of gaps and one over events, on the same 400 failures."""
    scenario = Scenario(spares=100_000)
    horizon = scenario.horizon_s
    at = np.sort(np.random.default_rng(1).random(400)) * horizon
    for policy in (DISK, POLICIES[PolicyName.MEMORY_RESTORE], POLICIES[PolicyName.STANDBY_SWAP]):
        kinds = (Kind(1.0, scenario.cadence(policy)),)
        (expected,) = ettr(at[None], horizon, kinds, np.random.default_rng(0))
        run = follow_places(scenario, policy, [(t, i) for i, t in enumerate(at.tolist())], horizon)
        assert run.useful_s / horizon == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, derandomize=True)
@given(
    failures=st.lists(st.tuples(st.floats(0.0, 4999.0), st.integers(0, 3)), max_size=25),
    spares=st.integers(0, 3),
    policy=st.sampled_from(list(POLICIES.values())),
    repair_s=st.floats(0.0, 3000.0),
    save_s=st.floats(0.0, 50.0),
)
def test_every_second_is_counted_once(
    failures: list[tuple[float, int]], spares: int, policy: SimulatedPolicy, repair_s: float, save_s: float
) -> None:
    scenario = replace(JOB, spares=spares, repair_hours=repair_s / HOUR)
    run = follow_places(scenario, replace(policy, save_s=save_s, every_s=45.0), sorted(failures), 5000.0)
    assert run.useful_s + sum(dataclasses.astuple(run.lost)) == pytest.approx(5000.0)
    parts = (run.lost.saving_s, run.lost.downtime_s, run.lost.repeated_s, run.lost.waiting_s, run.lost.degraded_s)
    assert min(parts) >= -1e-6
    assert run.at_s == sorted(run.at_s)
    assert run.kept_s == sorted(run.kept_s)
    assert (run.at_s[-1], run.kept_s[-1]) == (5000.0, run.useful_s)
    assert run.waits <= len(failures)


def test_a_run_counts_the_pipelines_of_each_place_and_not_of_all_that_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []

    def count(scenario: Scenario, place: int) -> range:
        counted.append(place)
        return pipelines_on(scenario, place)

    monkeypatch.setattr(node_simulation, "pipelines_on", count)
    large = Scenario(nodes=4096, gpus_per_node=8, dp=256, spares=0)
    failures = [(float(i), i) for i in range(1000)]
    assert follow_places(large, POLICIES[PolicyName.DROP_REPLICA], failures, 1e7).waits == 1000
    assert len(counted) == 2 * 1000, "once when it fails, once when it is back"
