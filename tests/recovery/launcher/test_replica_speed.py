"""``--micro-batch-assignment proportional``: when work is assigned again, and to whom, by what steps took."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mainstay.recovery.controller.replica_speed import STEPS, ReplicaSpeeds
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import StepRecord
from mainstay.recovery.work_assignment import AssignmentPolicy, WorkAssignment

SHAPE = MeshShape(dp=2, pp=2)


def record(epoch: int, seconds: float, count: int = 4, generation: int = 1) -> StepRecord:
    """``seconds`` are those of all ``count`` micro-batches together."""
    return StepRecord(
        generation=generation, epoch=epoch, step_time=1.0, compute_time=seconds, snapshot_blocked=0.0, end_ns=epoch,
        micro_batches=count,
    )  # fmt: skip


def speeds_of(seconds: dict[int, float], steps: int = STEPS, count: int = 4) -> ReplicaSpeeds:
    paces = ReplicaSpeeds()
    for epoch in range(1, steps + 1):
        whole = [paces.step(rank, record(epoch, took, count), len(seconds)) for rank, took in seconds.items()]
        assert whole == [False] * (len(seconds) - 1) + [True]
    return paces


def test_a_replica_with_a_slow_stage_gets_less() -> None:
    shares = speeds_of({0: 1.0, 1: 1.0, 2: 1.0, 3: 3.0}).better(SHAPE)
    assert shares[0] == pytest.approx(3 * shares[1])
    assert WorkAssignment(replicas=(0, 1), shares=tuple(shares.values())).micro_batches(8, 2)[1] == (4, 5)


@pytest.mark.parametrize(
    ("seconds", "steps", "count"),
    [
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.1}, STEPS, 4),  # nothing to gain with whole micro-batches
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 3.0}, STEPS - 1, 4),  # not known yet
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 3.0}, STEPS, 0),  # the script does not ask
        ({0: 1.0, 1: 1.0, 2: 1.0}, STEPS, 4),  # a rank says nothing
        ({0: 0.0, 1: 0.0, 2: 1.0, 3: 1.0}, STEPS, 4),  # no time is no speed
    ],
)
def test_otherwise_nobody_is_stopped(seconds: dict[int, float], steps: int, count: int) -> None:
    assert speeds_of(seconds, steps, count).better(SHAPE) == {}


def test_one_that_was_slow_for_a_single_step_is_not_slow() -> None:
    paces = speeds_of({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, STEPS - 1)
    for rank in range(4):
        paces.step(rank, record(STEPS, 50.0 if rank == 3 else 1.0), 4)
    assert paces.better(SHAPE) == {}


def test_every_change_asks_for_more_steps_before_the_next() -> None:
    paces = speeds_of({0: 1.0, 1: 1.0, 2: 1.0, 3: 3.0})
    paces.propose_assignment(paces.better(SHAPE))
    paces.restart()
    for wanted, steps in ((False, 2 * STEPS - 1), (True, 1)):
        for epoch in range(steps):
            for rank, count in ((0, 6), (1, 6), (2, 2), (3, 2)):
                paces.step(rank, record(epoch, count * 1.0, count), 4)
        assert bool(paces.better(SHAPE)) is wanted, "it is as fast as the others again"


def test_work_is_assigned_anew_at_a_step_and_nobody_is_replaced(options: RunOptions, play: Any, running: Any) -> None:
    options = dataclasses.replace(options, micro_batch_assignment=AssignmentPolicy.PROPORTIONAL)

    async def work() -> None:
        async with running(options, steps=1) as world:
            pids = {rank: node.pids[rank] for node in world.nodes for rank in node.pids}
            for epoch in range(2, STEPS + 2):
                for node in world.nodes:
                    for rank in node.pids:
                        node.live[rank] = node.slots[rank] = epoch
                        node.send_report(rank, record(epoch, 3.0 if rank == 3 else 1.0))
            await world.until_state("running", 2)
            orders = [order for node in world.nodes for order in node.orders if order.order.generation == 2]
            assert {order.order.restore.source.value for order in orders} == {"live"}
            (assignment,) = {order.order.assignment for order in orders}
            assert assignment.micro_batches(8, 2) == {0: (0, 1, 2, 3, 6, 7), 1: (4, 5)}
            assert {rank: node.pids[rank] for node in world.nodes for rank in node.pids} == pids
            assert world.coordinator.job.state.recoveries == 0

    play(work())


def test_without_the_option_nobody_is_assigned_less(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options, steps=1) as world:
            for epoch in range(2, STEPS + 4):
                for node in world.nodes:
                    for rank in node.pids:
                        node.send_report(rank, record(epoch, 3.0 if rank == 3 else 1.0))
            await world.until(lambda: world.coordinator.job.state.committed == STEPS + 3)
            assert world.coordinator.job.state.generation == 1

    play(work())
