"""A job never trains on with replicas that differ, nor with a state that is not that of the epoch it went back to."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.controller.failure import ReplayTrigger
from mainstay.recovery.options import NumericAnomalyPolicy, RunOptions
from mainstay.recovery.protocol.worker_messages import RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource

ASKED = ReplayTrigger(reason="an operator asks", asked=True)
Story = Callable[[Any], Any]


@pytest.fixture
def run_scenario(running: Any, play: Any, options: RunOptions) -> Callable[..., None]:
    """Play a scenario in a job of two replicas of two stages on two nodes, five steps in: slots of steps 4 and 5."""

    def run(scenario: Story, **changed: Any) -> None:
        async def work() -> None:
            async with running(dataclasses.replace(options, **changed)) as world:
                await scenario(world)

        play(work())

    return run


def restores(world: Any, generation: int) -> dict[int, RestoreOrder]:
    orders = [order for node in world.nodes for order in node.orders if order.order.generation == generation]
    return {order.rank: order.order.restore for order in orders}


def epochs(world: Any) -> list[int]:
    """What rank 0 has restored, in order."""
    found = [order.order for order in world.nodes[0].orders if order.rank == 0]
    return [order.restore.epoch for order in found if order.restore is not None]


def set_digests(world: Any, digest: Callable[[int, RestoreOrder], int]) -> None:
    """Have every rank tell such a digest of its parameters when it has restored."""
    for node in world.nodes:
        for rank in node.pids:
            node.digests[rank] = lambda order, rank=rank: digest(rank, order)


def right(rank: int, order: RestoreOrder) -> int:
    """What healthy ranks hold: a stage's parameters of that epoch."""
    return 100 * (order.epoch - 1) + 7 + rank % 2


async def once_more_to_seven(world: Any) -> None:
    """Steps 5 and 7 went to disk; the job went back to 5; now all have step 6 again, and all but rank 3 step 7."""
    for epoch in (6, 7):
        world.commit_all(epoch)
    await committed(world, [7, 7, 7, 7])
    for node in world.nodes:
        node.disk = [
            PartFile(rank=rank, epoch=epoch, nbytes=100, generation=1) for rank in node.pids for epoch in (5, 7)
        ]
    assert world.coordinator.workflows.replays.request_replay(ReplayTrigger(reason="gradients are wrong", before=5))
    await world.until_state("running", 4)
    assert {order.source for order in restores(world, 2).values()} == {RestoreSource.DISK}
    world.commit_all(6)
    await world.until_event("recovery_completed")
    for rank in (0, 1, 2):
        world.node_of(rank).commit(rank, 7)
    await committed(world, [7, 7, 7, 6])


async def committed(world: Any, epochs: list[int]) -> None:
    await world.until(lambda: [rank.epoch for rank in world.coordinator.job.members.ranks] == epochs)


@pytest.mark.parametrize("again", ["replay", "loss"])
def test_a_file_of_a_future_that_was_given_up_is_not_taken_for_the_step_made_again(
    run_scenario: Callable[..., None], again: str
) -> None:
    async def scenario(world: Any) -> None:
        await once_more_to_seven(world)
        if again == "loss":
            world.node_of(0).kill(0)
        else:
            assert world.coordinator.workflows.replays.request_replay(ASKED)
        await world.until(lambda: len(restores(world, 5)) == 4)
        assert {order.epoch for order in restores(world, 5).values()} == {6}
        assert RestoreSource.DISK not in {order.source for order in restores(world, 5).values()}

    run_scenario(scenario)


def test_a_file_of_the_step_made_again_is_as_good_as_any(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        await once_more_to_seven(world)
        world.node_of(3).disk.append(PartFile(rank=3, epoch=7, nbytes=100, generation=4))
        world.coordinator.job.state.replicated = False  # so that it takes no replica's
        assert world.coordinator.workflows.replays.request_replay(ASKED)
        await world.until(lambda: len(restores(world, 5)) == 4)
        assert {order.epoch for order in restores(world, 5).values()} == {7}
        assert restores(world, 5)[3].source is RestoreSource.DISK

    run_scenario(scenario)


def test_replicas_that_restored_different_states_go_back_to_where_they_agree(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        set_digests(world, lambda rank, order: right(rank, order) + (order.epoch == 5 and rank == 3))
        world.node_of(0).kill(0)
        await world.until_state("running", 3)
        world.commit_all(5, digest=7)
        assert epochs(world) == [5, 4]
        assert (await world.until_event("recovery_completed"))["data"]["epoch"] == 4

    run_scenario(scenario)


def test_a_majority_is_right_and_the_job_still_does_not_go_on_with_the_odd_one(
    run_scenario: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: Any) -> None:
        set_digests(world, lambda rank, order: 100 * order.epoch + (order.epoch == 5 and rank == 2))
        world.node_of(0).kill(0)
        await world.until_state("running", 3)
        assert epochs(world) == [5, 4]

    run_scenario(scenario, nnodes=3, nproc=1)
    assert "step 5: what ranks [2] have restored" in caplog.text


def test_a_state_that_is_not_what_it_was_is_not_used_though_replicas_agree(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        world.commit_all(6, digest=60)
        await world.until(lambda: min(rank.epoch for rank in world.coordinator.job.members.ranks) == 6)
        set_digests(
            world, lambda rank, order: 60 + rank % 2 if order.epoch == 6 and rank % 2 == 0 else right(rank, order)
        )
        world.node_of(0).kill(0)  # stage 1 comes back with other parameters of step 6 in both replicas
        await world.until_state("running", 3)
        assert epochs(world) == [6, 5]

    run_scenario(scenario)


def test_where_no_epoch_is_left_at_which_they_agree_they_take_a_replicas_state(
    run_scenario: Callable[..., None],
) -> None:
    async def scenario(world: Any) -> None:
        def digest(rank: int, order: RestoreOrder) -> int:
            own = order.source is not RestoreSource.PEER_COPY
            return right(rank, order) + 50 * (rank == 3 and own)

        set_digests(world, digest)
        world.node_of(0).kill(0)
        await world.until_state("running", 8)
        assert epochs(world) == [5, 4, 3, 2, 1, 0, 0]
        assert restores(world, 8)[3].from_rank == 1
        assert RestoreSource.PEER_COPY not in {restores(world, 8)[rank].source for rank in (0, 1, 2)}

    run_scenario(scenario)


def test_what_never_agrees_ends_the_job_with_a_reason(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        set_digests(world, lambda rank, order: rank)
        world.node_of(0).kill(0)
        finished = await world.until_event("job_finished")
        assert finished["data"]["state"] == "failed"
        assert "have restored of it is not what they held" in finished["data"]["reason"]

    run_scenario(scenario, max_restarts=4)


def test_a_replay_begins_with_replicas_that_agree(run_scenario: Callable[..., None]) -> None:
    """Else it would say ``no_majority`` of healthy devices, and train on."""

    async def scenario(world: Any) -> None:
        set_digests(world, lambda rank, order: right(rank, order) + (order.epoch == 5 and rank == 3))
        assert world.coordinator.workflows.replays.request_replay(ASKED)
        event = await world.until_event("step_replay_finished")
        assert (event["data"]["outcome"], event["data"]["epoch"]) == ("clean", 4)
        await world.until_state("running", 5)  # two tries, two cuts, and training
        assert epochs(world) == [5, 4, 4, 4]
        assert world.coordinator.job.state.recoveries == 1  # no silent matter: something was wrong
        world.commit_all(5)
        assert (await world.until_event("recovery_completed"))["data"]["epoch"] == 4

    run_scenario(scenario)


def test_a_state_that_changes_between_replay_and_training_is_noticed(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        set_digests(
            world,
            lambda rank, order: right(rank, order) + (order.epoch == 5 and world.coordinator.job.state.generation == 4),
        )
        assert world.coordinator.workflows.replays.request_replay(ASKED)
        await world.until_state("running", 5)
        assert epochs(world) == [5, 5, 5, 4]  # both cuts, training refused, one step further back

    run_scenario(scenario)


@pytest.mark.parametrize("on_numeric_anomaly", [NumericAnomalyPolicy.REPORT, NumericAnomalyPolicy.REPLAY])
def test_replicas_that_part_right_after_a_recovery_go_back_to_where_they_agreed(
    run_scenario: Callable[..., None], on_numeric_anomaly: NumericAnomalyPolicy
) -> None:
    async def scenario(world: Any) -> None:
        world.node_of(0).kill(0)
        await world.until_state("running", 2)
        for epoch in (6, 7, 8):
            for node in world.nodes:
                for rank in node.pids:
                    if epoch == 6:  # an older slot than the fakes', which hold two
                        node.disk.append(PartFile(rank=rank, epoch=5, nbytes=100, generation=1))
                    node.commit(rank, epoch, digest=rank)
        assert (await world.until_event("recovery_verified"))["data"]["digest_match"] is False
        await world.until(lambda: world.coordinator.job.state.generation >= 3)
        assert (await world.until(lambda: epochs(world)[1:]))[0] == 5
        replays = [
            order.order for node in world.nodes for order in node.orders if order.order.replay_request is not None
        ]
        assert bool(replays) is (on_numeric_anomaly is NumericAnomalyPolicy.REPLAY)
        await asyncio.sleep(0)

    run_scenario(scenario, on_numeric_anomaly=on_numeric_anomaly)
