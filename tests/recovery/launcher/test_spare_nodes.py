"""``--nnodes MIN:MAX`` with simulated launchers: who may join, who gets ranks, and what is waited for."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import Any

import pytest

from bench.lib_node_warnings import Warner
from mainstay.recovery.controller import admission_gate, participation
from mainstay.recovery.controller.state_replication import capture_state
from mainstay.recovery.membership.members import Members, NodeMember, RankMember, surplus_nodes
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import FenceNode, LauncherHello
from mainstay.recovery.work_assignment import LossPolicy

QUARANTINED = [{"code": "state", "decision": "deny", "text": "its state is quarantined"}]


@pytest.fixture
def two_of_three(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    """Two nodes of two ranks without standbys, and one node more; what is waited for is looked at often."""
    monkeypatch.setattr(participation, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(admission_gate, "VALIDATION_SECONDS", 0.01)
    return dataclasses.replace(options, spare_nodes=1, spares=0)


def homes(world: Any) -> list[str]:
    return [rank.node for rank in world.coordinator.job.members.ranks]


async def join(world: Any, number: int, **changed: Any) -> Any:
    """Another launcher whose standbys are warm."""
    node = await world.connect(number, standbys=world.options.nproc, **changed)
    await world.until(lambda: (f"node-{number}" in world.coordinator.job.members.nodes) or node.stopped)
    return node


async def refusal(world: Any, number: int, **changed: Any) -> str:
    """Why the coordinator turns this launcher away."""
    node = await world.connect(number, **changed)
    return str((await world.until(lambda: node.stopped)).reason)


def test_a_node_that_joins_waits_without_ranks_and_takes_those_of_a_lost_node(
    two_of_three: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(two_of_three) as world:
            spare = await join(world, 2)
            assert world.coordinator.job.state.generation == 1
            assert not spare.pids
            assert world.coordinator.job.members.standbys() == {"node-0": 0, "node-1": 0, "node-2": 2}
            assert [elector.node for elector in capture_state(world.coordinator.job, 9).electors][2:] == ["node-2"]
            world.lose(1)
            await world.until_state("running", 2)
            assert homes(world) == ["node-0", "node-0", "node-2", "node-2"]

    play(work())


def test_ranks_of_a_lost_node_stay_together(two_of_three: RunOptions, play: Any, running: Any) -> None:
    """Also where two spare nodes and a standby on another node have room."""

    async def work() -> None:
        async with running(dataclasses.replace(two_of_three, spare_nodes=2, spares=1)) as world:
            for number in (2, 3):
                await join(world, number)
            world.coordinator.job.members.nodes["node-0"].standbys = 1
            world.lose(1)
            await world.until_state("running", 2)
            assert homes(world) == ["node-0", "node-0", "node-2", "node-2"]

    play(work())


def test_living_nodes_have_names_and_numbers_of_their_own(two_of_three: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(two_of_three) as world:
            assert "a node named node-1 is here already" in await refusal(world, 1, node_rank=2)
            assert "a node with --node-rank 1 is here already" in await refusal(world, 2, node_rank=1)
            assert "the coordinator has --nnodes 2:3 --nproc-per-node 2, this node 2:4 and 2" in await refusal(
                world, 2, spare_nodes=2
            )
            await join(world, 2)
            assert "the job has all its nodes" in await refusal(world, 3)
            world.lose(1)
            await world.until_state("running", 2)
            replacement = await join(world, 3, node_rank=1)
            assert replacement.stopped is None
            assert "the job has all its nodes" in await refusal(world, 1)

    play(work())


def test_losing_a_spare_node_stops_no_rank(two_of_three: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(two_of_three) as world:
            await join(world, 2)
            world.lose(2)
            await world.until_event("node_lost")
            assert (world.coordinator.job.state.phase, world.coordinator.job.state.generation) == ("running", 1)

    play(work())


def test_ranks_without_a_place_wait_for_a_node(two_of_three: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(two_of_three) as world:
            world.lose(1)
            await world.until(lambda: world.nodes[0].fences)
            assert (world.coordinator.job.state.phase, world.coordinator.job.state.generation) == ("recovering", 2)
            await join(world, 2)
            await world.until_state("running", 3)
            assert homes(world) == ["node-0", "node-0", "node-2", "node-2"]
            assert world.coordinator.job.state.recoveries == 1
            world.commit_all(6)
            seconds = (await world.until_event("recovery_completed"))["data"]["seconds"]
            assert 0.0 < seconds["wait"] <= seconds["total"]

    play(work())


@pytest.mark.parametrize("spare_nodes", [0, 1])
def test_a_job_without_room_ends_when_no_node_comes(
    two_of_three: RunOptions, play: Any, running: Any, spare_nodes: int
) -> None:
    async def work() -> None:
        brief = dataclasses.replace(two_of_three, spare_nodes=spare_nodes, join_seconds=0.2)
        async with running(brief) as world:
            world.lose(1)
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert "(ranks [2, 3] have nowhere to run)" in stopped.reason

    play(work())


def test_ranks_that_the_job_goes_on_without_get_a_process_on_a_new_node(
    two_of_three: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(two_of_three, on_loss=LossPolicy.DROP)) as world:
            world.lose(1)
            await world.until_state("running", 2)
            assert world.coordinator.job.members.absent == (2, 3)
            spare = await join(world, 2)
            await world.until(lambda: spare.pids.keys() == {2, 3})
            for epoch in itertools.count(6):
                for rank in tuple(world.nodes[0].pids):
                    world.nodes[0].commit(rank, epoch, digest=40 + epoch)
                await world.until(
                    lambda e=epoch: (
                        world.coordinator.job.state.committed >= e or world.coordinator.job.state.generation > 2
                    )
                )
                if world.coordinator.job.state.generation > 2:
                    break
            await world.until_state("running", 3)
            assert world.coordinator.job.members.absent == ()

    play(work())


def test_a_recovery_does_not_wait_for_a_node_that_joins_meanwhile(
    two_of_three: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(two_of_three) as world:
            slow, held = world.nodes[1], list[FenceNode]()
            confirm, slow._fence = slow._fence, held.append
            world.nodes[0].kill(0)
            await world.until(lambda: held)
            await join(world, 2)
            confirm(held[0])
            async with asyncio.timeout(10.0):  # an agent gets 30 s to confirm a fence
                await world.until_state("running", 2)

    play(work())


def test_a_job_whose_node_is_refused_starts_on_a_spare_node(
    two_of_three: RunOptions, play: Any, new_world: Any
) -> None:
    async def work() -> None:
        with Warner() as service:
            service.admission = [{"node": "node-1", "reasons": QUARANTINED}]
            world = new_world(dataclasses.replace(two_of_three, service=service.url))
            await world.start()
            try:
                for number in (0, 1):
                    await world.connect(number)
                await world.until(lambda: service.asked)
                await world.connect(2)
                await world.until_state("running", 1)
                assert homes(world) == ["node-0", "node-0", "node-2", "node-2"]
                assert service.asked[-1]["nodes"] == ["node-0", "node-1", "node-2"]
            finally:
                await world.close()

    play(work())


def test_a_job_whose_node_is_refused_ends_when_no_spare_node_comes(
    two_of_three: RunOptions, play: Any, new_world: Any
) -> None:
    async def work() -> None:
        with Warner() as service:
            service.admission = [{"node": "node-1", "reasons": QUARANTINED}]
            world = new_world(dataclasses.replace(two_of_three, service=service.url, join_seconds=0.5))
            await world.start()
            try:
                for number in (0, 1):
                    await world.connect(number)
                stopped = await world.until(lambda: world.nodes[0].stopped)
                assert "the service refuses node-1 (its state is quarantined)" in stopped.reason
            finally:
                await world.close()

    play(work())


def test_a_spare_node_that_is_refused_takes_no_rank(two_of_three: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        with Warner() as service:
            async with running(dataclasses.replace(two_of_three, service=service.url)) as world:
                service.admission = [{"node": "node-2", "reasons": QUARANTINED}]
                await join(world, 2)
                await world.until(lambda: {"job": "job", "nodes": ["node-2"]} in service.asked)
                world.lose(1)
                await world.until(lambda: world.coordinator.job.state.generation == 2)
                assert world.coordinator.job.state.phase == "recovering"
                assert "node-2" not in homes(world)

    play(work())


def test_lost_nodes_are_forgotten_when_others_have_their_places() -> None:
    members, heard = Members(2, 1, 1), dict[str, float]()

    def add_node(number: int, *, heard_at: float, alive: bool = True) -> None:
        hello = LauncherHello(
            job="j", node=f"n{number}", node_rank=number, nnodes=2, nproc=1, spares=0, standbys=0, pid=1,
            agent_endpoint="",
        )  # fmt: skip
        members.nodes[hello.node], heard[hello.node] = NodeMember(hello, "", 0, alive=alive), heard_at

    add_node(0, heard_at=100.0)
    add_node(1, heard_at=20.0, alive=False)
    add_node(2, heard_at=10.0, alive=False)
    members.ranks = [RankMember(0, "n0"), RankMember(1, "n3")]
    assert surplus_nodes(members, heard, 50.0) == [], "no other node has come yet"
    add_node(3, heard_at=100.0)
    assert surplus_nodes(members, heard, 5.0) == [], "its launcher may still look for a coordinator"
    assert surplus_nodes(members, heard, 50.0) == ["n2"]
    del members.nodes["n2"]
    members.ranks[1].node = "n1"
    add_node(4, heard_at=100.0)
    assert surplus_nodes(members, heard, 50.0) == []
    assert "n1" in members.nodes, "a rank has no other place yet"
