"""A coordinator acts only while no other can have been chosen: leases run out, launchers end, the store dies."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from typing import Any

from mainstay.recovery.membership.coordinator_election import EXIT_LOST
from mainstay.recovery.options import RunOptions


def three(options: RunOptions, **changed: Any) -> RunOptions:
    """Three nodes, any one of which has room for all ranks."""
    return dataclasses.replace(options, nnodes=3, quorum=2, spares=4, **changed)


def test_without_a_quorum_it_resigns_and_says_nothing_of_the_job(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(three(options, node_seconds=1.0)) as world:
            for node in world.nodes[1:]:
                node.quiet = True
            assert await asyncio.wait_for(world.coordinator.outcome, 60.0) == EXIT_LOST
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert stopped.exit_code == EXIT_LOST
            assert "node-1, node-2: 2 of 3 launchers may have chosen another coordinator" in stopped.reason
            assert [node.stopped for node in world.nodes[1:]] == [None, None]
            await asyncio.to_thread(world.reporter.close)
            assert world.events("job_finished", "recovery_planned") == []

    play(work())


def test_one_silent_node_of_three_is_lost_and_the_job_goes_on(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(three(options, node_seconds=4.0)) as world:
            world.nodes[2].quiet = True
            await world.until_state("running", 2)
            assert {rank.node for rank in world.coordinator.job.members.ranks} == {"node-0", "node-1"}

    play(work())


def test_launchers_that_have_ended_choose_nobody(options: RunOptions, play: Any, new_world: Any) -> None:
    """Their election endpoints refuse: the coordinator may continue alone, and all ranks move to it."""

    async def work() -> None:
        world = new_world(three(options))
        await world.start()
        with socket.create_server(("127.0.0.1", 0)) as unused:
            election_endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
        try:
            for number in range(3):
                await world.connect(number, election_endpoint=election_endpoint)
            await world.until_state("running", 1)
            world.commit_all(1, digest=7)
            await world.until(lambda: min(rank.epoch for rank in world.coordinator.job.members.ranks) == 1)
            for number in (1, 2):
                world.lose(number)
            await world.until(
                lambda: world.coordinator.job.state.phase == "running" and world.coordinator.job.state.generation > 1
            )
            assert {rank.node for rank in world.coordinator.job.members.ranks} == {"node-0"}
            connections = world.coordinator.job.connections
            assert all(connection.ended for name, connection in connections.items() if name != "node-0")
        finally:
            await world.close()

    play(work())


def test_a_store_that_ends_is_replaced_and_nobody_is_lost(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            before = {rank: node.pids[rank] for node in world.nodes for rank in node.pids}
            world.coordinator.job.new_store = lambda: ("127.0.0.1", 2)
            world.coordinator.store_ended("killed by signal 9")
            await world.until_state("running", 2)
            orders = [o.order for node in world.nodes for o in node.orders if o.order.generation == 2]
            assert {order.store_port for order in orders} == {2}
            assert before == {rank: node.pids[rank] for node in world.nodes for rank in node.pids}

    play(work())
