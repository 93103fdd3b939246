"""Single ways in one small job, with what a pencil says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainstay.recovery.cost_inputs import (
    CostInputs,
    FailureOdds,
    FaultKind,
    ProgramCapability,
    RollbackCosts,
    SpareCapacity,
)
from mainstay.recovery.cost_model.allocation import Tenant
from mainstay.recovery.cost_model.failure_cost import RecoveryAction, Repair
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.cost_model.redundancy import RedundancyScheme
from mainstay.recovery.cost_model.resources import ScalingSample
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies import WAYS
from mainstay.recovery.strategies.recovery_strategy import estimate_action

W = RecoveryStrategyName
COSTS = MachineCosts(fence_s=1.0, spawn_warm_s=2.0, spawn_cold_s=30.0, regroup_s=3.0, copy_Bps=100.0, net_Bps=10.0,
              xor_Bps=50.0, disk_Bps=5.0)  # fmt: skip


def job(**over: Any) -> CostInputs:
    """Three pipelines of four stages, six micro-batches each of three slots of 1 s: a step of 27 s. 100 bytes a worker.

    Down: 0.5 + 1 + 3 + 0.5 = 5 s. A state takes 11 s over the network, 1 s within a node, 20 s from disk.
    """
    made: dict[str, Any] = {
        "shape": IterationShape(dp=3, pp=4, micro_batches=6),
        "slot_s": 3.0,
        "layers": 8, "state_bytes": 100.0, "fault": FaultKind.NODE, "lost": (0, 0, 1, 0),
        "odds": FailureOdds(worker_rate=0.0, repairs=(Repair(1.0, 900.0),)),
        "held": RollbackCosts(local_s=4.0, peer_s=6.0, parity_s=8.0, disk_s=600.0), "costs": COSTS,
        "pool": SpareCapacity(standbys=1, spares=1, least_stages=2), "detect_s": 0.5, "warm_up_s": 0.5,
        "restart_s": 40.0, "able": frozenset(ProgramCapability),
    }  # fmt: skip
    return CostInputs(**(made | over))


def action(name: RecoveryStrategyName, one: CostInputs) -> RecoveryAction:
    found = estimate_action(next(way for way in WAYS if way.way is name), one)
    assert isinstance(found, RecoveryAction), found
    return found


def masked(name: RecoveryStrategyName, one: CostInputs) -> str:
    found = estimate_action(next(way for way in WAYS if way.way is name), one)
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("name", "fault", "down", "repeated"),
    [
        (W.LOCAL_SLOT, FaultKind.PROCESS, 5.0 + 2.0 + 1.0, 4.0),
        (W.PEER_COPY, FaultKind.NODE, 5.0 + 2.0 + 11.0, 6.0),
        (W.PARITY_REBUILD, FaultKind.NODE, 5.0 + 2.0 + 11.0 + 2.0, 8.0),
        (W.DISK_RESTART, FaultKind.NODE, 5.0 + 40.0 + 30.0 + 20.0, 600.0),
        (W.JUST_IN_TIME, FaultKind.NODE, 5.0 + 20.0 + 40.0 + 30.0 + 20.0, 13.5),
        (W.IN_PROCESS, FaultKind.ERROR, 5.0 + 1.0, 4.0),
        (W.STANDBY_SWAP, FaultKind.NODE, 5.0 + 2.0 + 11.0, 13.5),
        (W.STANDBY_SWAP, FaultKind.NOTICE, 3.0 + 0.5 + 2.0 + 11.0, 0.0),
    ],
)
def test_the_whole_rate_comes_back(name: RecoveryStrategyName, fault: FaultKind, down: float, repeated: float) -> None:
    found = action(name, job(fault=fault))
    assert (found.downtime_s, found.repeated_s, found.rate) == (pytest.approx(down), pytest.approx(repeated), 1.0)


@pytest.mark.parametrize(
    ("name", "step_s"),
    [
        (W.DROP_AND_HEAL, 36.0),  # nine micro-batches in two pipelines: (9 + 3) x 3
        (W.REROUTE_COUPLED, 36.0),  # the talk on ReCycle: 27/36/29/27
        (W.REROUTE_DECOUPLED, 29.0),
        (W.REROUTE_STAGGERED, 27.0),
        (W.POOL_REBALANCE, 40.5),  # two of three workers in the pool
        (W.REDUNDANT_COMPUTE, 45.0),  # one worker runs two stages: (2 x 6 + 3) x 3
    ],
)
def test_the_rate_until_a_worker_is_back(name: RecoveryStrategyName, step_s: float) -> None:
    found = action(name, job())
    assert found.rate == pytest.approx(27.0 / step_s)
    assert found.until_repair
    assert action(name, job(fault=FaultKind.PROCESS)).back_after_s == 30.0


def test_workers_of_one_pipeline_break_one() -> None:
    whole = job(lost=(1, 1, 1, 1), broken=1)
    assert action(W.DROP_AND_HEAL, whole).rate == pytest.approx(27.0 / 36.0)
    assert "3 of 3 pipelines" in masked(W.DROP_AND_HEAL, job(lost=(1, 1, 1, 1)))


def test_eleven_nodes_form_pipelines_of_unlike_depth() -> None:
    # 18 micro-batches of 8 layers, 1.5 s a layer. Two of two (6 s), and so on: the mix is what enumeration finds.
    found = action(W.REINSTANTIATE, job())
    assert found.downtime_s == pytest.approx(5.0 + 11.0)
    assert 27.0 / 36.0 <= found.rate <= 1.0
    assert "two replicas" in masked(W.REINSTANTIATE, job(pool=SpareCapacity(least_stages=6)))


def test_a_slow_worker_gets_fewer_micro_batches_or_fewer_layers() -> None:
    # At half speed: assigned, 14 slots of 3 s beside one of 6 s; split, a layer for it and 7 over 3 stages: 4.5 s.
    found = action(W.DEGRADE, job(fault=FaultKind.SLOW, speed=0.5))
    assert 27.0 / 45.0 < found.rate < 1.0  # a pipeline at half speed alone takes 27 + 6 x 3 s
    assert found.repeated_s == 0.0
    assert action(W.DEGRADE, job(fault=FaultKind.SLOW, speed=1.0)).rate == 1.0
    assert "No worker is slow" in masked(W.DEGRADE, job())


def test_notice_hides_the_move_of_state() -> None:
    late, early = (
        job(fault=FaultKind.NOTICE, lost=(1, 1, 1, 1), odds=replace(job().odds, notice_s=s)) for s in (0.0, 60.0)
    )
    assert action(W.PROACTIVE, early).downtime_s <= action(W.PROACTIVE, late).downtime_s
    assert action(W.PROACTIVE, early).rate == pytest.approx(27.0 / 36.0)
    assert action(W.MORPH, early).repeated_s == 0.0
    assert action(W.MORPH, job()).repeated_s == 600.0


def test_a_morph_grows_again_by_a_save_and_a_restart() -> None:
    restart = 40.0 + 30.0 + 20.0
    found = action(W.MORPH, job())
    assert (found.rejoin_probability, found.rejoin_s) == (1.0, restart + 20.0 + 3.0 + 0.5)
    assert found.downtime_s == 5.0 + restart
    assert action(W.MORPH, job(fault=FaultKind.NOTICE)).downtime_s == 0.5 + 1.0 + 3.0 + 0.5 + restart + 20.0
    assert masked(W.MORPH, job(pool=SpareCapacity(least_stages=12))) == "11 workers cannot hold the model."
    assert masked(W.MORPH, job(able=frozenset())) == "The training program cannot continue at another (dp, pp)."
    assert masked(W.MORPH, job(held=RollbackCosts())) == "No checkpoint is on disk."
    assert action(W.MORPH, job(held=RollbackCosts(), fault=FaultKind.NOTICE)).repeated_s == 0.0


def test_a_donor_counts_in_this_jobs_seconds() -> None:
    rich = Tenant(name="rich", workers=4, achieved=(0.0, 1.0, 1.9, 2.7, 2.7), transition_s=0.0)
    poor = Tenant(name="poor", workers=2, achieved=(0.0, 1.0, 2.0), transition_s=60.0)
    found = action(W.BORROW_WORKERS, job(pool=SpareCapacity(others=(poor, rich))))
    assert found.downtime_s == pytest.approx(5.0 + 30.0 + 11.0)  # rich loses nothing by one worker less
    expensive = action(W.BORROW_WORKERS, job(pool=SpareCapacity(others=(poor,))))
    assert expensive.downtime_s == pytest.approx(46.0 + (900.0 * 1.0 + 60.0 * 2.0) / 12.0)
    assert "No other job has 3" in masked(W.BORROW_WORKERS, job(lost=(1, 1, 1, 0), pool=SpareCapacity(others=(poor,))))


def test_resources_are_replanned_by_what_was_seen() -> None:
    samples = tuple(ScalingSample(n, 2.0 + 100.0 / n) for n in (2, 4, 8, 12))
    found = action(W.REPLAN_RESOURCES, job(pool=SpareCapacity(samples=samples)))
    assert found.rate == pytest.approx((2.0 + 100.0 / 12) / (2.0 + 100.0 / 11))
    assert "fewer than three" in masked(W.REPLAN_RESOURCES, job(pool=SpareCapacity(samples=samples[:2])))


def test_redundancy_is_chosen_by_cost_and_bears_what_was_lost() -> None:
    copy = RedundancyScheme(data=1, extra=1, every_s=20.0)
    code = RedundancyScheme(data=4, extra=2, every_s=10.0)
    pool = SpareCapacity(standbys=2, schemes=(copy, code))
    assert action(W.LEAST_REDUNDANCY, job(pool=pool)).repeated_s == 10.0  # the code would fetch four states: 40 s
    assert action(W.LEAST_REDUNDANCY, job(pool=pool, lost=(1, 1, 0, 0))).repeated_s == 5.0
    tight = replace(pool, room_bytes=160.0)
    assert action(W.LEAST_REDUNDANCY, job(pool=tight)).repeated_s == 5.0  # 200 bytes for a copy do not fit
    assert "bears 3" in masked(W.LEAST_REDUNDANCY, job(pool=replace(pool, spares=9), lost=(1, 1, 1, 0)))
