"""Which checkpoint agents read while ranks start, and between which nodes they divide it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.agent.messages import GatherParts
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import AgentUp
from tests.recovery.launcher.earlier_run import EARLIER, earlier_step


@pytest.fixture
def resuming(options: RunOptions, tmp_path: Path) -> Callable[..., RunOptions]:
    """Options of a job of two nodes with two ranks each that continues from a step of the shape that is given."""

    def make(**step: Any) -> RunOptions:
        earlier_step(tmp_path / "checkpoints", 40, **step)
        return dataclasses.replace(options, disk_every=5, checkpoint_dir=tmp_path / "checkpoints", resume="latest")

    return make


def prefetches(world: Any) -> dict[int, Any]:
    return {message.rank: message.order for node in world.nodes for message in node.prefetches}


def test_agents_read_what_ranks_will_restore_before_any_has_called_init(
    new_world: Any, resuming: Callable[..., RunOptions], play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        world = new_world(resuming())
        await world.start()
        try:
            nodes = [await world.connect(number, agent_endpoint="") for number in range(2)]
            for node in nodes:
                node.slow = True
            await world.until(lambda: len(world.starts) == 4)
            nodes[0].stream.send(AgentUp(endpoint="127.0.0.1:9000"))
            members = world.coordinator.job.members
            await world.until(lambda: members.nodes["node-0"].endpoint)
            assert prefetches(world) == {}  # the other agent is not there yet
            nodes[1].stream.send(AgentUp(endpoint="127.0.0.1:9001"))
            orders = await world.until(lambda: len(found := prefetches(world)) == 4 and found)
            assert world.coordinator.job.members.shape is None
            for rank, order in orders.items():
                assert (order.epoch, order.run, order.from_rank, order.part) == (40, EARLIER, rank, 3)
                assert [member.rank % 2 for member in order.group] == [rank % 2] * 2  # two stages, two replicas of each
                assert [member.endpoint for member in order.group] == ["127.0.0.1:9000", "127.0.0.1:9001"]
            for node in nodes:
                for rank in list(node.pids):
                    node.join(rank)
            await world.until_state("running", 1)
            told = {o.rank: o.order.restore for node in nodes for o in node.orders}
            assert told == orders
            nodes[1].stream.send(AgentUp(endpoint="127.0.0.1:9002"))  # it was started again: not once more
            await world.until(lambda: members.nodes["node-1"].endpoint == "127.0.0.1:9002")
            assert [len(node.prefetches) for node in nodes] == [2, 2]
        finally:
            await world.close()

    play(scenario())


@pytest.mark.parametrize(
    ("step", "changed", "expected"),
    [
        ({"dp": 4, "pp": 1}, {"dp": 4, "pp": 1}, 4),
        ({"dp": 4, "pp": 2}, {}, 4),  # fewer replicas
        ({"dp": 1, "pp": 3}, {"dp": 1, "pp": 4}, 0),  # four ranks are no pipelines of three stages
        ({}, {"shard_snapshots": True}, 0),
        ({"replicated": False}, {}, 4),
    ],
)
def test_the_shape_is_taken_to_be_that_of_the_step(
    forming: Any,
    resuming: Callable[..., RunOptions],
    play: Callable[..., None],
    *,
    step: dict[str, Any],
    changed: dict[str, Any],
    expected: int,
) -> None:
    async def scenario() -> None:
        async with forming(dataclasses.replace(resuming(**step), **changed)) as world:
            await world.until(lambda: len(world.starts) == 4)
            await world.until(lambda: len(prefetches(world)) == expected)
            alike = step.get("replicated", True)
            assert all(bool(order.disk_request(rank).group) == alike for rank, order in prefetches(world).items())

    play(scenario())


def test_ranks_that_restore_from_memory_are_not_waited_for(
    running: Callable[..., Any], resuming: Callable[..., RunOptions], play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(resuming(), steps=0) as world:
            manager = world.coordinator.checkpoints
            assert [member.rank for member in manager.order(0, 40, {0, 1, 2, 3}, manager.disks()).group] == [0, 2]
            assert manager.order(0, 40, {0, 1}, manager.disks()).group == ()

    play(scenario())


def test_a_step_of_another_shape_is_divided_by_replicas_that_gather_it(
    running: Callable[..., Any], resuming: Callable[..., RunOptions], play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(resuming(dp=4, pp=1), steps=0) as world:
            order = world.coordinator.checkpoints.first(1)
            assert order.parts  # two stages here, one there
            gather = GatherParts(parts=order.parts, slices={}, stages=2, replica=1)
            assert [member.rank for member in order.disk_request(1, gather=gather).group] == [1, 3]

    play(scenario())
