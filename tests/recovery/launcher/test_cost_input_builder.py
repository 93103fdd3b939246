"""A running job as cost inputs, and what follows from it: unknown is never taken for good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainstay.recovery.controller.planning.cost_input_builder import (
    CARRIED,
    LEAVES,
    JobFacts,
    cost_inputs_of,
    executed,
    held_of,
)
from mainstay.recovery.cost_inputs import FaultKind, ProgramCapability, RollbackCosts, SpareCapacity
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.recovery_plan import RecoveryStrategyName, RestoreStrategyName
from mainstay.recovery.strategy_choice import ExecutionCapabilities, StrategyDecision, choose_strategy

STEP_S = 2.0
WAITS = {*RestoreStrategyName, RecoveryStrategyName.STANDBY_SWAP}


def job(**changed: object) -> JobFacts:
    """Three replicas of two stages on six nodes; processes take half a minute to start, and nothing stands by."""
    known = JobFacts(
        shape=MeshShape(dp=3, pp=2),
        nodes=tuple(f"n{rank}" for rank in range(6)),
        state_bytes=(10**9,) * 6,
        micro_batches=12,
        step_s=STEP_S,
        node_rate=1e-7,
        held=RollbackCosts(local_s=1.0, peer_s=1.0, disk_s=60.0),
        costs=MachineCosts(spawn_cold_s=30.0),
        warm_up_s=0.1,
    )
    return replace(known, **changed)  # type: ignore[arg-type]


def judged(
    known: JobFacts, victims: tuple[int, ...] = (3,), fault: FaultKind = FaultKind.PROCESS, **means: object
) -> StrategyDecision:
    chosen = ExecutionCapabilities(carried=CARRIED, **means)  # type: ignore[arg-type]
    return choose_strategy(cost_inputs_of(known, victims, fault, 0.03), means=chosen)


def reason(decision: StrategyDecision, way: RecoveryStrategyName) -> str:
    return next(option.reason for option in decision.options if option.strategies == (way,) and not option.feasible)


def test_a_job_is_told_by_workers_and_stages() -> None:
    known = job(
        shape=MeshShape(dp=2, pp=3, tp=2), nodes=("a",) * 6 + ("b",) * 6, state_bytes=(100,) * 12, micro_batches=8
    )
    cost_inputs = cost_inputs_of(known, (6, 7, 10), FaultKind.NODE, 0.5)
    assert (cost_inputs.lost, cost_inputs.broken, cost_inputs.workers, cost_inputs.gpus) == ((1, 0, 1), 1, 6, 2)
    assert cost_inputs.shape.micro_batches == 4, "of a pipeline"
    assert cost_inputs.step_s == pytest.approx(STEP_S)
    assert cost_inputs.state_bytes == 300.0, "ranks of one node share its network"
    assert cost_inputs.odds.worker_rate == pytest.approx(1e-7 * 2 / 6), "two nodes of three workers each"
    assert cost_inputs.detect_s == 0.5


def test_ages_of_what_is_held_come_from_what_was_seen() -> None:
    held = held_of(
        step_s=2.0, committed=40, slots=True, replicas=True, protected=38, tolerance=2, copies=False, disk=20
    )
    assert held == RollbackCosts(
        local_s=1.0, peer_s=1.0, parity_s=5.0, parity_losses=2, disk_s=41.0, replicated=True
    )  # fmt: skip
    copied = held_of(
        step_s=2.0, committed=40, slots=True, replicas=False, protected=38, tolerance=1, copies=True, disk=None
    )
    assert (copied.peer_s, copied.parity_s, copied.disk_s, copied.replicated) == (5.0, None, None, False)
    nothing = held_of(
        step_s=2.0, committed=40, slots=False, replicas=False, protected=None, tolerance=0, copies=False, disk=None
    )
    assert (nothing.local_s, nothing.peer_s, nothing.parity_s, nothing.disk_s) == (None,) * 4


def test_a_warm_standby_is_waited_for_however_long_a_cold_process_takes() -> None:
    decision = judged(job(pool=SpareCapacity(standbys=1)))
    assert decision.chosen is not None
    assert decision.chosen[0] in WAITS


def test_without_a_standby_the_others_go_on_where_processes_take_long() -> None:
    decision = judged(job())
    assert decision.chosen == (RecoveryStrategyName.DROP_AND_HEAL,)
    quick = judged(job(costs=MachineCosts(spawn_cold_s=0.01)))
    assert quick.chosen is not None
    assert quick.chosen[0] in WAITS, "to take a replica back costs more than such a process"


def test_a_lost_node_without_room_elsewhere_leaves_only_to_go_on_without_it() -> None:
    decision = judged(job(), fault=FaultKind.NODE)
    assert decision.chosen == (RecoveryStrategyName.DROP_AND_HEAL,)
    assert "0 standbys and spares" in reason(decision, RecoveryStrategyName.PEER_COPY)
    with_room = judged(job(pool=SpareCapacity(spares=1)), fault=FaultKind.NODE)
    assert with_room.chosen == (RecoveryStrategyName.DROP_AND_HEAL, RecoveryStrategyName.STANDBY_SWAP), (
        "and swap when the spare has started"
    )
    assert next(option for option in with_room.options if option.strategies == with_room.chosen).executable


def test_what_the_job_cannot_do_is_never_chosen() -> None:
    barred = judged(job(), barred=dict.fromkeys(LEAVES, "The script does not ask."))
    assert barred.chosen == (RecoveryStrategyName.LOCAL_SLOT,)
    assert reason(barred, RecoveryStrategyName.DROP_AND_HEAL) == "The script does not ask."
    sharded = judged(job(held=RollbackCosts(local_s=1.0, replicated=False)))
    assert sharded.chosen == (RecoveryStrategyName.LOCAL_SLOT,)
    unknown = judged(job(held=RollbackCosts(replicated=False)), fault=FaultKind.NODE)
    assert unknown.chosen is None
    assert unknown.explanation.startswith("Nothing brings the job back automatically")


def test_what_nobody_carries_out_is_weighed_and_not_chosen() -> None:
    """No running job saves only when it is struck; the cost is reported all the same."""
    decision = judged(job())
    saved = next(option for option in decision.options if option.strategies == (RecoveryStrategyName.JUST_IN_TIME,))
    assert saved.feasible
    assert not saved.executable
    alone = choose_strategy(
        cost_inputs_of(job(), (3,), FaultKind.PROCESS, 0.03),
        means=ExecutionCapabilities(carried=frozenset({RecoveryStrategyName.DISK_RESTART})),
    )
    assert alone.chosen == (RecoveryStrategyName.DISK_RESTART,)
    assert "would cost less" in alone.explanation


def test_where_pipelines_may_be_of_unlike_depth_a_long_repair_is_better_spent_so() -> None:
    """Six workers as 3+3 stages, one gone for a quarter of an hour at least: 3+2 keep more of the rate than 3 do."""
    six = job(
        shape=MeshShape(dp=2, pp=3),
        held=RollbackCosts(local_s=1.0, peer_s=1.0, disk_s=60.0),
        able=frozenset({ProgramCapability.TEMPLATES}),
    )
    decision = judged(six, (4,), FaultKind.NODE)
    assert decision.chosen == (RecoveryStrategyName.REINSTANTIATE,)
    dropped = next(option for option in decision.options if option.strategies == (RecoveryStrategyName.DROP_AND_HEAL,))
    best = next(option for option in decision.options if option.strategies == decision.chosen)
    assert best.rate is not None
    assert dropped.rate is not None
    assert best.rate > dropped.rate
    costs = six.costs
    through = costs.spawn_cold_s + 2 * 10**9 / costs.disk_Bps
    assert best.parts["downtime"] == pytest.approx(0.03 + costs.fence_s + costs.regroup_s + 0.1 + through)
    assert judged(job(shape=MeshShape(dp=2, pp=3)), (4,), FaultKind.NODE).chosen == (
        RecoveryStrategyName.DROP_AND_HEAL,
    )


def test_several_losses_of_one_pipeline_cost_one_pipeline() -> None:
    assert judged(job(), (2, 3), FaultKind.NODE).chosen == (RecoveryStrategyName.DROP_AND_HEAL,)
    everywhere = judged(job(), (0, 3, 4), FaultKind.NODE)
    assert everywhere.chosen is None, "no pipeline is whole, and nothing stands by"


def test_what_was_learned_of_a_way_counts() -> None:
    slow = judged(job(), factors={RecoveryStrategyName.DROP_AND_HEAL: 1000.0})
    assert slow.chosen is not None
    assert slow.chosen[0] in WAITS


def test_the_way_that_is_carried_out_has_a_name() -> None:
    assert executed(RestoreStrategyName.PEER_COPY, away=True, warm=False) is RecoveryStrategyName.DROP_AND_HEAL
    assert executed(RestoreStrategyName.PEER_COPY, away=False, warm=True) is RecoveryStrategyName.STANDBY_SWAP
    assert executed(RestoreStrategyName.PARITY_REBUILD, away=False, warm=True) is RecoveryStrategyName.PARITY_REBUILD
    assert executed(RestoreStrategyName.LOCAL_SLOT, away=False, warm=False) is RecoveryStrategyName.LOCAL_SLOT
    assert (
        executed(RestoreStrategyName.LOCAL_SLOT, away=True, warm=False, lives=True) is RecoveryStrategyName.IN_PROCESS
    )
