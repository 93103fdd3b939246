"""Every number of single actions in the small job of ``test_by_hand``, and why others cannot be."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from mainstay.recovery.cost_inputs import FailureOdds, FaultKind, RollbackCosts, SpareCapacity
from mainstay.recovery.cost_model.allocation import Tenant
from mainstay.recovery.cost_model.ettr import SaveSchedule, exact_ettr
from mainstay.recovery.cost_model.failure_cost import RecoveryAction, Repair, last_copy_risk, price_over
from mainstay.recovery.cost_model.iteration import IterationShape, rerouted, spread_rate
from mainstay.recovery.cost_model.redundancy import RedundancyScheme, group_loss, torn_rate
from mainstay.recovery.cost_model.resources import ScalingSample
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.degrade import split_slot_s
from tests.recovery.strategies.test_by_hand import action, job, masked

W, F = RecoveryStrategyName, FaultKind
ALONE = RollbackCosts(disk_s=600.0)
"""No snapshot on another node."""
TENANT = Tenant(name="other", workers=2, achieved=(0.0, 1.0, 1.0), transition_s=0.0)
SAMPLES = tuple(ScalingSample(n, 2.0 + 100.0 / n) for n in (2, 4, 8, 12))
SAVED_FAST = RedundancyScheme(data=1, extra=1, every_s=2.0, save_s=1.0)
SAVED_FREE = RedundancyScheme(data=1, extra=1, every_s=20.0)
BACK = {"rejoin_probability": 1.0, "rejoin_s": 3.0 + 11.0 + 0.5, "until_repair": True}
"""Regroup, a state over the network, warm-up; at the end of the repair."""


def kept(*schemes: RedundancyScheme) -> SpareCapacity:
    return SpareCapacity(standbys=1, schemes=schemes)


def odds(rate: float = 0.0, repair_s: float = 900.0, notice_s: float = 0.0) -> FailureOdds:
    return FailureOdds(worker_rate=rate, repairs=(Repair(1.0, repair_s),), notice_s=notice_s)


@pytest.mark.parametrize(
    ("name", "over", "expected"),
    [
        (W.DROP_AND_HEAL, {}, {"downtime_s": 5.0, "repeated_s": 13.5, "rate": 0.75, **BACK}),
        (W.DROP_AND_HEAL, {"fault": F.NOTICE}, {"downtime_s": 3.5, "repeated_s": 0.0, "rate": 0.75, **BACK}),
        (W.DROP_AND_HEAL, {"held": ALONE}, {"downtime_s": 5.0, "repeated_s": 13.5, "rate": 0.75, **BACK}),
        (W.DROP_AND_HEAL, {"held": ALONE, "lost": (0, 1, 1, 0)},
         {"downtime_s": 5.0, "repeated_s": 13.5, "rate": 9 / 21, "copies_at_risk": 4, **BACK}),
        (W.DROP_AND_HEAL, {"held": RollbackCosts(parity_s=1.0), "lost": (0, 1, 1, 0)},
         {"downtime_s": 5.0, "repeated_s": 13.5, "rate": 9 / 21, **BACK}),
        (W.DROP_AND_HEAL, {"held": RollbackCosts(peer_s=1.0), "lost": (0, 1, 1, 0)},
         {"downtime_s": 5.0, "repeated_s": 13.5, "rate": 9 / 21, **BACK}),
        (W.DROP_AND_HEAL, {"fault": F.PROCESS},
         {"downtime_s": 5.0, "repeated_s": 13.5, "rate": 0.75, **BACK, "until_repair": False, "back_after_s": 30.0,
          "exposed_s": 30.0}),
        (W.REROUTE_COUPLED, {"fault": F.NOTICE}, {"downtime_s": 3.5, "repeated_s": 0.0, "rate": 0.75, **BACK}),
        (W.REROUTE_COUPLED, {"held": ALONE}, {"downtime_s": 5.0, "repeated_s": 13.5, "rate": 0.75, **BACK}),
        # two of three gone: twelve more micro-batches of 3 s
        (W.REROUTE_COUPLED, {"held": ALONE, "lost": (0, 2, 2, 0)},
         {"downtime_s": 5.0, "repeated_s": 13.5, "rate": 27 / 63, "copies_at_risk": 2, **BACK}),
        (W.POOL_REBALANCE, {},
         {"downtime_s": 0.5 + 3.0, "repeated_s": 0.0, "rate": 2 / 3, **BACK, "rejoin_s": 11.5}),
        (W.POOL_REBALANCE, {"fault": F.SLOW},
         {"downtime_s": 3.0, "repeated_s": 0.0, "rate": 2 / 3, **BACK, "rejoin_s": 11.5}),
        # a pool of one takes a worker from another, and its state, while it runs at a third
        (W.POOL_REBALANCE, {"lost": (0, 0, 2, 0), "held": ALONE},
         {"downtime_s": 3.5, "repeated_s": 11.0 * 2 / 3, "rate": 2 / 3, **BACK, "rejoin_s": 11.5, "copies_at_risk": 1}),
        (W.REDUNDANT_COMPUTE, {},
         {"downtime_s": 1.5 + 13.5, "repeated_s": 0.0, "rate": 0.6, "readiness_share": 0.803, **BACK}),
        (W.REDUNDANT_COMPUTE, {"fault": F.NOTICE},
         {"downtime_s": 0.0, "repeated_s": 0.0, "rate": 0.6, "readiness_share": 0.803, **BACK}),
        (W.REPLAN_RESOURCES, {"pool": SpareCapacity(samples=SAMPLES, standbys=1)},
         {"downtime_s": 16.0, "repeated_s": 13.5, "rate": 1.0, **BACK}),
        (W.REPLAN_RESOURCES, {"pool": SpareCapacity(samples=SAMPLES, standbys=5), "fault": F.NOTICE},
         {"downtime_s": 14.5, "repeated_s": 0.0, "rate": 1.0, **BACK}),
        (W.BORROW_WORKERS, {"pool": SpareCapacity(others=(TENANT,))}, {"downtime_s": 46.0, "repeated_s": 13.5}),
        (W.BORROW_WORKERS, {"pool": SpareCapacity(others=(TENANT,)), "fault": F.NOTICE},
         {"downtime_s": 44.5, "repeated_s": 0.0}),
        (W.BORROW_WORKERS, {"pool": SpareCapacity(others=(TENANT,)), "fault": F.SLOW},
         {"downtime_s": 44.5, "repeated_s": 0.0}),
        (W.IN_PROCESS, {"fault": F.ERROR, "held": ALONE}, {"downtime_s": 16.0, "repeated_s": 13.5}),
        (W.LOCAL_SLOT, {"fault": F.PROCESS, "held": RollbackCosts(local_s=0.0)},
         {"downtime_s": 8.0, "repeated_s": 0.0}),
        (W.PEER_COPY, {"held": RollbackCosts(peer_s=0.0)}, {"downtime_s": 18.0, "repeated_s": 0.0}),
        (W.PARITY_REBUILD, {"held": RollbackCosts(parity_s=0.0, parity_losses=2)},
         {"downtime_s": 20.0, "repeated_s": 0.0}),
        # five pipelines of two stages take (4 + 1) x 6 s, two of four 36 s: worth a move over a wait of 900 s
        (W.PROACTIVE, {"fault": F.NOTICE, "odds": odds()},
         {"downtime_s": 14.5, "repeated_s": 0.0, "rate": 0.9, **BACK}),
        (W.PROACTIVE, {"fault": F.NOTICE, "odds": odds(notice_s=4.0)},
         {"downtime_s": 10.5, "repeated_s": 0.0, "rate": 0.9, **BACK}),
        (W.PROACTIVE, {"fault": F.NOTICE, "odds": odds(notice_s=60.0)},
         {"downtime_s": 3.5, "repeated_s": 0.0, "rate": 0.9, **BACK}),
        (W.PROACTIVE, {"fault": F.NOTICE, "odds": odds(repair_s=10.0)},
         {"downtime_s": 3.5, "repeated_s": 0.0, "rate": 0.75, **BACK}),
        # at half speed: 33 s by assignment; a layer for the slow one, and seven over three: 4.5 s a slot, 31.5 s
        (W.DEGRADE, {"fault": F.SLOW, "speed": 0.5},
         {"downtime_s": 14.5, "repeated_s": 0.0, "rate": 27 / 31.5, **BACK, "rejoin_s": 14.0}),
        (W.DEGRADE, {"fault": F.SLOW}, {"downtime_s": 3.5, "repeated_s": 0.0, "rate": 1.0, **BACK, "rejoin_s": 3.0}),
        (W.LEAST_REDUNDANCY, {"pool": kept(SAVED_FREE, SAVED_FAST)},
         {"downtime_s": 18.0, "repeated_s": 1.0, "readiness_share": 1 / 3}),
        (W.LEAST_REDUNDANCY, {"pool": kept(SAVED_FREE, SAVED_FAST), "odds": odds(1e-4, 0.0)},
         {"downtime_s": 18.0, "repeated_s": 10.0}),  # a third of 833 s between failures
        # six groups of two lose both within 900 s; 690 s of restart and repetition each
        (W.LEAST_REDUNDANCY, {"pool": kept(SAVED_FREE), "odds": odds(1e-6)},
         {"downtime_s": 18.0, "repeated_s": 10.0,
          "readiness_share": 6 * (1 - math.exp(-9e-4)) ** 2 / 900 * 690}),
        (W.LEAST_REDUNDANCY,
         {"pool": kept(RedundancyScheme(data=4, extra=2, every_s=11.0))},
         {"downtime_s": 5.0 + 2.0 + 40.0 + 8.0 + 1.0, "repeated_s": 5.5}),
    ],
)  # fmt: skip
def test_actions(name: RecoveryStrategyName, over: dict[str, Any], expected: dict[str, Any]) -> None:
    assert asdict(action(name, job(**over))) == pytest.approx(asdict(RecoveryAction(**expected)))


def test_state_through_a_disk_is_written_and_read_by_processes_that_start() -> None:
    found = action(W.REINSTANTIATE, job(through_disk=True, fault=F.NOTICE))
    assert (found.downtime_s, found.repeated_s) == (3.5 + 2 * 20.0 + 30.0, 0.0)
    assert found.rejoin_s == 3.5 + 70.0
    assert action(W.REINSTANTIATE, job()).repeated_s == 13.5


@pytest.mark.parametrize(
    ("name", "over", "why"),
    [
        (W.LOCAL_SLOT, {"fault": F.NODE}, "Nodes are lost, and with them the snapshots in their memory."),
        (W.LOCAL_SLOT, {"fault": F.PROCESS, "held": ALONE}, "No snapshot is in the memory of the node."),
        (W.LOCAL_SLOT, {"fault": F.SLOW}, "Nothing is lost: the workers concerned still hold their state."),
        (W.PARITY_REBUILD, {"held": ALONE}, "No parity is kept."),
        (W.PARITY_REBUILD, {"lost": (1, 1, 0, 0)}, "2 workers are lost, and a group bears 1."),
        (W.PEER_COPY, {"held": ALONE}, "No other node holds a snapshot of the state that is lost."),
        (W.PEER_COPY, {"lost": (1, 1, 1, 0)}, "3 workers are to be replaced, and 2 standbys and spares are there."),
        (W.IN_PROCESS, {}, "The process is gone or was never in error, so that there is nothing to enter again."),
        (W.IN_PROCESS, {"fault": F.ERROR, "able": frozenset()},
         "The training program cannot enter its loop again within a process."),
        (W.IN_PROCESS, {"fault": F.ERROR, "held": RollbackCosts(replicated=False)},
         "This job shards its state among data-parallel peers: what is lost, no peer holds."),
        (W.BORROW_WORKERS, {"fault": F.PROCESS}, "No worker is lost, so that none is to be borrowed."),
        (W.BORROW_WORKERS, {}, "No other job shares this cluster."),
        (W.BORROW_WORKERS, {"lost": (0, 3, 0, 0)}, "No worker of stage 1 is left, so no worker holds its state."),
        (W.REDUNDANT_COMPUTE, {"lost": (1, 0, 0, 1)},
         "Neighbouring stages 3 and 0 lost workers: no shadow may be left."),
        (W.REDUNDANT_COMPUTE, {"lost": (0, 1, 1, 0)},
         "Neighbouring stages 1 and 2 lost workers: no shadow may be left."),
        (W.REDUNDANT_COMPUTE, {"shape": IterationShape(dp=3, pp=1, micro_batches=6), "lost": (1,)},
         "A pipeline of one stage has no neighbor to compute for."),
        (W.REROUTE_DECOUPLED, {"able": frozenset()},
         "The training program cannot do this: it lacks decoupled, reroute."),
        (W.STANDBY_SWAP, {"lost": (1, 1, 0, 0)}, "2 workers are to be swapped, and 1 standbys are warm."),
        (W.LEAST_REDUNDANCY, {"pool": kept(RedundancyScheme(data=11, extra=2, every_s=1.0))},
         "No scheme fits into the memory that there is and bears 1 losses in one group."),
        (W.REINSTANTIATE, {"pool": SpareCapacity(least_stages=6)},
         "11 workers are left, and two replicas of the model need 12."),
        (W.REPLAN_RESOURCES, {"pool": SpareCapacity(samples=SAMPLES, least_stages=12)},
         "11 workers cannot hold the model."),
    ],
)  # fmt: skip
def test_why_not(name: RecoveryStrategyName, over: dict[str, Any], why: str) -> None:
    assert masked(name, job(**over)) == why


def test_a_process_needs_no_other_place() -> None:
    for fault in (F.PROCESS, F.ERROR):
        assert action(W.PEER_COPY, job(fault=fault, pool=SpareCapacity())).downtime_s == 5.0 + 30.0 + 11.0
    assert "0 standbys and spares" in masked(W.PEER_COPY, job(pool=SpareCapacity()))


def test_a_slow_stage_that_stands_alone_keeps_its_layers() -> None:
    assert split_slot_s(job(fault=F.SLOW, speed=0.5)) == 4.5
    alone = job(shape=IterationShape(dp=3, pp=1, micro_batches=6), lost=(1,), fault=F.SLOW, speed=0.5)
    assert split_slot_s(alone) == 6.0


# the formulas of the cost model at their edges


def test_a_price_is_the_mean_over_repairs_where_it_waits_for_one() -> None:
    made = RecoveryAction(downtime_s=1.0, repeated_s=2.0, rate=0.5, until_repair=True)
    repairs, rates = (Repair(0.25, 100.0), Repair(0.75, 20.0)), {"job_rate": 0.0, "worker_rate": 0.0, "restart_s": 0.0}
    assert price_over(made, repairs, **rates).total_s == pytest.approx(3.0 + 0.5 * (25.0 + 15.0))
    fixed = RecoveryAction(downtime_s=1.0, repeated_s=2.0, rate=0.5, back_after_s=8.0)
    assert price_over(fixed, repairs, **rates).total_s == pytest.approx(3.0 + 4.0)
    assert last_copy_risk(0.0, 3, float("inf")) == last_copy_risk(1.0, 0, float("inf")) == 0.0


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (RecoveryAction, {"downtime_s": 0.0, "repeated_s": 0.0, "rate": 0.0},
         {"rate": -0.1, "rejoin_probability": 1.1, "readiness_share": -0.5, "back_after_s": -0.1,
          "copies_at_risk": -1}),
        (SaveSchedule, {"interval_s": 0.5, "save_s": 0.0, "restart_s": 0.0},
         {"interval_s": 0.0, "save_s": -0.5, "restart_s": -0.5}),
        (Tenant, {"name": "t", "workers": 0, "achieved": (0.0,), "transition_s": 0.0, "weight": 0.0},
         {"workers": -1, "achieved": (-1.0,), "transition_s": -0.5, "weight": -0.5}),
        (RedundancyScheme, {"data": 1, "extra": 1, "every_s": 0.5, "save_s": 0.0},
         {"data": 0, "extra": 0, "every_s": 0.0, "save_s": -0.5}),
    ],
)  # fmt: skip
def test_each_number_has_its_edge(kind: Any, good: dict[str, Any], bad: dict[str, Any]) -> None:
    kind(**good)
    for name, value in bad.items():
        with pytest.raises(ValueError, match=r"at least|lie in"):
            kind(**good | {name: value})


def test_formulas_at_their_edges() -> None:
    pair = RedundancyScheme(data=1, extra=1, every_s=1.0)
    p = 1.0 - math.exp(-0.5)
    assert group_loss(pair, 0.5, 1.0) == pytest.approx(p * p)
    assert torn_rate(pair, workers=6, worker_rate=0.5, window_s=0.5) == pytest.approx(
        3 * (1.0 - math.exp(-0.25)) ** 2 / 0.5
    )
    assert exact_ettr(SaveSchedule(interval_s=1.0, save_s=0.0, restart_s=1000.0), 1.0) == 0.0
    shape = IterationShape(dp=3, pp=4, micro_batches=6)
    found = rerouted(shape, 6.0, [0, 0, 0, 2])  # 18 slots of the one that is left, begun by the forwards of three
    assert found is not None
    assert (found.coupled_s, found.decoupled_s, found.staggered_s) == (54.0 + 72.0, 108.0 + 6.0, 108.0)
    assert rerouted(shape, 6.0, [4, 0, 0, 0]) is None
    assert spread_rate(shape, 8) == pytest.approx(9 / 18)
