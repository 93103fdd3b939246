"""A trace followed by one policy, by pencil; and the planner against every way alone on traces that are made up."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from bench.lib_strategy_comparison import BY_NAME, always, follow_policy, planned
from mainstay.recovery.cost_inputs import (
    CostInputs,
    FailureOdds,
    FaultKind,
    ProgramCapability,
    RollbackCosts,
    SpareCapacity,
)
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.simulate.traces import TraceChange
from mainstay.recovery.strategies import WAYS
from mainstay.recovery.strategies.recovery_strategy import estimate_action

JOB = CostInputs(
    shape=IterationShape(dp=3, pp=2, micro_batches=6), slot_s=0.3,
    layers=12,
    state_bytes=1e9, fault=FaultKind.NODE, lost=(1, 0), odds=FailureOdds(worker_rate=0.0),
    held=RollbackCosts(local_s=5.0, peer_s=5.0, disk_s=300.0), pool=SpareCapacity(least_stages=2),
    costs=MachineCosts(fence_s=1.0, spawn_cold_s=30.0, regroup_s=5.0), detect_s=1.0, warm_up_s=3.0, restart_s=30.0,
    able=frozenset(ProgramCapability) - {ProgramCapability.REDUNDANT},
)  # fmt: skip
GRID = [TraceChange(0.0, "add", f"node{i}") for i in range(6)]


def action(name: RecoveryStrategyName, missing: tuple[int, ...], standbys: int = 0, **more: Any) -> RecoveryAction:
    found = estimate_action(
        BY_NAME[name], replace(JOB, lost=missing, pool=replace(JOB.pool, standbys=standbys), **more)
    )
    assert isinstance(found, RecoveryAction)
    return found


def test_a_loss_costs_its_downtime_and_then_its_rate() -> None:
    drop = action(RecoveryStrategyName.DROP_AND_HEAL, (1, 0))
    trace = [*GRID, TraceChange(1000.0, "remove", "node0"), TraceChange(3000.0, "remove", "node1")]
    kept = follow_policy(trace, JOB, always(BY_NAME[RecoveryStrategyName.DROP_AND_HEAL]))
    down = drop.downtime_s + drop.repeated_s
    assert kept.useful_s == pytest.approx(1000.0 + (2000.0 - down) * drop.rate)
    assert kept.seconds == 3000.0
    assert kept.picked == {RecoveryStrategyName.DROP_AND_HEAL: 2}


def test_a_spare_replaces_what_is_lost_and_a_lost_spare_costs_nothing() -> None:
    swap = action(RecoveryStrategyName.STANDBY_SWAP, (1, 0), standbys=1)
    trace = [
        *GRID,
        TraceChange(0.0, "add", "spare"),
        TraceChange(500.0, "remove", "node0"),
        TraceChange(900.0, "remove", "node9"),
    ]
    trace[-1:] = [
        TraceChange(800.0, "add", "node9"),
        TraceChange(900.0, "remove", "node9"),
        TraceChange(1000.0, "add", "last"),
    ]
    kept = follow_policy(trace, JOB, always(BY_NAME[RecoveryStrategyName.STANDBY_SWAP]))
    assert kept.useful_s == pytest.approx(1000.0 - swap.downtime_s - swap.repeated_s)
    assert kept.picked == {RecoveryStrategyName.STANDBY_SWAP: 1}


def test_where_the_one_way_cannot_be_the_job_restarts_on_what_is_left() -> None:
    kept = follow_policy([*GRID, TraceChange(10.0, "remove", "node0"), TraceChange(5000.0, "remove", "node1")], JOB,
                         always(BY_NAME[RecoveryStrategyName.STANDBY_SWAP]))  # fmt: skip
    assert kept.picked == {RecoveryStrategyName.MORPH: 2}


def test_a_node_that_comes_back_is_taken_in_where_that_pays() -> None:
    drop = action(RecoveryStrategyName.DROP_AND_HEAL, (1, 0))
    back = [
        *GRID,
        TraceChange(1000.0, "remove", "node0"),
        TraceChange(2000.0, "add", "new"),
        TraceChange(4000.0, "remove", "new"),
    ]
    kept = follow_policy(back, JOB, always(BY_NAME[RecoveryStrategyName.DROP_AND_HEAL]))
    down = drop.downtime_s + drop.repeated_s
    assert kept.useful_s == pytest.approx(1000.0 + (1000.0 - down) * drop.rate + 2000.0 - drop.rejoin_s)


def test_a_job_that_cannot_go_on_stands_still_until_nodes_come() -> None:
    stuck = replace(JOB, held=RollbackCosts(replicated=False), able=frozenset())
    trace = [
        *GRID,
        TraceChange(100.0, "remove", "node0"),
        TraceChange(200.0, "add", "new"),
        TraceChange(400.0, "remove", "new"),
    ]
    kept = follow_policy(trace, stuck, planned(WAYS))
    restart = 30.0 + 30.0 + 2.0
    assert kept.useful_s == pytest.approx(100.0 + 200.0 - restart)


def test_who_is_told_in_time_repeats_nothing_and_moves_state_beside_training() -> None:
    trace = [*GRID, TraceChange(1000.0, "remove", "node0"), TraceChange(3000.0, "remove", "node1")]
    told = action(
        RecoveryStrategyName.PROACTIVE, (1, 0), fault=FaultKind.NOTICE, odds=FailureOdds(worker_rate=0.0, notice_s=20.0)
    )
    kept = follow_policy(trace, JOB, always(BY_NAME[RecoveryStrategyName.PROACTIVE]), notice_s=20.0)
    assert kept.useful_s == pytest.approx(1000.0 + (2000.0 - told.downtime_s) * told.rate)
    assert kept.picked == {RecoveryStrategyName.PROACTIVE: 2}
    untold = follow_policy(trace, JOB, always(BY_NAME[RecoveryStrategyName.PROACTIVE]))
    assert untold.picked == {RecoveryStrategyName.MORPH: 2}
    assert untold.useful_s < kept.useful_s


def test_a_spare_that_is_about_to_go_is_not_taken_in() -> None:
    trace = [
        *GRID,
        TraceChange(0.0, "add", "spare"),
        TraceChange(500.0, "remove", "node0"),
        TraceChange(510.0, "remove", "spare"),
    ]
    swap = always(BY_NAME[RecoveryStrategyName.STANDBY_SWAP])
    end = [TraceChange(4000.0, "remove", "node1")]
    assert follow_policy([*trace, *end], JOB, swap, notice_s=5.0).picked == {
        RecoveryStrategyName.STANDBY_SWAP: 1,
        RecoveryStrategyName.MORPH: 2,
    }
    assert follow_policy([*trace, *end], JOB, swap, notice_s=60.0).picked == {RecoveryStrategyName.MORPH: 2}


def test_a_notice_never_comes_before_the_node() -> None:
    late = [
        *GRID,
        TraceChange(100.0, "add", "visitor"),
        TraceChange(110.0, "remove", "visitor"),
        TraceChange(900.0, "remove", "node0"),
    ]
    follow = partial(follow_policy, late, JOB, always(BY_NAME[RecoveryStrategyName.DROP_AND_HEAL]))
    assert follow(notice_s=600.0) == follow()


def churn(seed: int) -> list[TraceChange]:
    """Nodes that go every half hour or so and come back after an hour or so."""
    rng = random.Random(seed)
    trace, alive, t = list(GRID), [f"node{i}" for i in range(6)], 0.0
    for i in range(30):
        t += rng.expovariate(1.0 / 1200.0)
        if len(alive) > 3 and (rng.random() < 0.5 or len(alive) >= 8):
            trace.append(TraceChange(t, "remove", alive.pop(rng.randrange(len(alive)))))
        else:
            alive.append(f"new{i}")
            trace.append(TraceChange(t, "add", alive[-1]))
    return [*trace, TraceChange(t + 1.0, "remove", alive[0])]


@pytest.mark.parametrize("seed", range(4))
def test_the_planner_is_not_worse_than_the_best_way_alone_by_more_than_a_hundredth(seed: int) -> None:
    follow = partial(follow_policy, churn(seed), JOB)
    alone = {way.way: follow(always(way)).share for way in WAYS}
    assert follow(planned(WAYS)).share >= 0.99 * max(alone.values())
    assert follow(planned(WAYS), notice_s=30.0).share >= 0.99 * follow(planned(WAYS)).share
