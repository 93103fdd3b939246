"""Requests to a running job with launchers that only pretend: ranks are restored, a node is left, a step is saved."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.controller.monitors.snapshot_inventory import SnapshotInventory
from mainstay.recovery.controller.state_replication import capture_state
from mainstay.recovery.job_request import JobRequest, JobRequestResult, RequestKind, RequestState
from mainstay.recovery.memory.records import NO_EPOCH
from mainstay.recovery.node_warning import NodeWarning
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import Attached
from mainstay.recovery.work_assignment import LossPolicy
from tests.recovery.launcher.test_participation import commit, sources, trained_until


@pytest.fixture
def tight(options: RunOptions) -> RunOptions:
    """Two nodes, each with a replica of two stages; no standby anywhere."""
    return dataclasses.replace(options, spares=0)


def send_request(world: Any, kind: RequestKind, **about: Any) -> str:
    """Request something; its id."""
    name = f"{kind}-{len(world.coordinator.workflows.requests.results())}"
    world.coordinator.workflows.requests.submit([JobRequest(id=name, kind=kind, reason="it is slow", **about)])
    world.coordinator.run_once()
    return name


def result(world: Any, name: str) -> JobRequestResult | None:
    return next((one for one in world.coordinator.workflows.requests.results() if one.id == name), None)


async def ended(world: Any, name: str) -> JobRequestResult:
    def final() -> JobRequestResult | None:
        found = result(world, name)
        return found if found is not None and found.state is not RequestState.ACCEPTED else None

    found: JobRequestResult = await world.until(final)
    return found


async def settled(world: Any, ranks: tuple[int, ...], first: int) -> None:
    """These ranks commit steps until the recovery is verified."""
    commit(world, ranks, first, first + 1, first + 2, first + 3)
    await world.until(lambda: not world.coordinator.job.active)


def test_one_rank_gets_another_process_and_no_failure_is_counted(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            before = dict(world.node_of(3).pids)
            name = send_request(world, RequestKind.RESTORE, rank=3)
            await world.until_state("running", 2)
            await settled(world, (0, 1, 2, 3), 6)
            found = await ended(world, name)
            assert found.state is RequestState.COMPLETED, found
            assert found.detail == "ranks [3] are restored on node-1"
            assert (found.step, found.steps_lost) == (5, 0)
            assert found.seconds is not None
            after = world.node_of(3).pids
            assert after[3] != before[3]
            assert after[2] == before[2], "no other rank was stopped"
            assert world.coordinator.job.state.recoveries == 0
            assert world.events("recovery_completed"), "what was done is reported all the same"

    play(work())


def test_a_node_is_left_and_used_again(tight: RunOptions, play: Any, running: Any) -> None:
    """Started with ``--on-loss wait``: from the request on the job may continue without ranks."""

    async def work() -> None:
        async with running(tight) as world:
            job, node = world.coordinator.job, world.nodes[1]
            first = send_request(world, RequestKind.DEGRADE, node="node-1")
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live"}
            assert node.fences[-1].kill == (2, 3), "no process may stay on a node that is left"
            assert not node.pids
            commit(world, (0, 1), 6)
            found = await ended(world, first)
            assert (found.state, found.detail) == (RequestState.COMPLETED, "ranks [2, 3] stay away")
            assert job.state.on_loss is LossPolicy.AUTO
            assert capture_state(job, 1).on_loss is LossPolicy.AUTO, "the next coordinator knows"
            commit(world, (0, 1), 7, 8, 9)
            second = send_request(world, RequestKind.RESTORE, node="node-1")
            await world.until(lambda: {2, 3} <= node.pids.keys())
            await trained_until(world, (0, 1), 10, 3)
            assert sources(world, 3) == {0: "live", 1: "live", 2: "peer_copy", 3: "peer_copy"}
            (epoch,) = {order.order.restore.epoch for order in node.orders if order.order.generation == 3}
            await settled(world, (0, 1, 2, 3), epoch + 1)
            found = await ended(world, second)
            assert (found.state, found.detail) == (RequestState.COMPLETED, "ranks [2, 3] are restored on node-1")

    play(work())


@pytest.mark.parametrize("out", [True, False])
def test_a_node_that_is_out_of_service_is_used_again_when_it_is_back(
    out: bool, tight: RunOptions, play: Any, running: Any
) -> None:
    """A mere finding may clear because no rank is there any more: the node stays left until an operator restores it."""
    found = NodeWarning(reason="hot", factor=10.0, since=1.0, cordoned=out)

    async def work() -> None:
        async with running(tight) as world:
            job = world.coordinator.job
            world.coordinator.durability.set_warnings({"node-1": found})
            name = send_request(world, RequestKind.DEGRADE, node="node-1", finding="f")
            await world.until_state("running", 2)
            commit(world, (0, 1), 6, 7, 8, 9)
            assert (await ended(world, name)).detail == "ranks [2, 3] stay away"
            assert not job.members.can_run("node-1")
            world.coordinator.durability.set_warnings({})
            assert job.members.can_run("node-1") is out
            if out:
                await world.until(lambda: {2, 3} <= world.nodes[1].pids.keys())
                await trained_until(world, (0, 1), 10, 3)

    play(work())


def test_standbys_take_the_ranks_of_a_node_that_is_left(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.coordinator.job.members.nodes["node-0"].standbys = 2
            world.coordinator.job.members.nodes["node-0"].excluded = -1  # room for two
            name = send_request(world, RequestKind.DEGRADE, node="node-1")
            await world.until_state("running", 2)
            assert {rank.node for rank in world.coordinator.job.members.ranks} == {"node-0"}
            assert world.coordinator.job.state.on_loss is LossPolicy.WAIT, "no rank has to be left out"
            await settled(world, (0, 1, 2, 3), 6)
            assert (await ended(world, name)).detail == "ranks [2, 3] are restored on node-0"

    play(work())


def test_what_the_others_cannot_do_without_is_not_given_up(tight: RunOptions, play: Any, running: Any) -> None:
    """One pipeline of four stages; two nodes."""

    async def work() -> None:
        async with running(dataclasses.replace(tight, dp=1, pp=4)) as world:
            found = await ended(world, send_request(world, RequestKind.DEGRADE, node="node-1"))
            assert found.state is RequestState.REJECTED
            assert "There is no other replica that could continue." in found.detail
            assert (
                await ended(world, send_request(world, RequestKind.DEGRADE, node="node-7"))
            ).state is RequestState.REJECTED
            assert not any(node.fences for node in world.nodes)
            assert not world.coordinator.job.members.warnings.current()

    play(work())


def test_a_node_without_ranks_is_only_kept_out(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(options, nnodes=1, spare_nodes=1)) as world:
            await world.connect(1)
            await world.until(lambda: "node-1" in world.coordinator.job.members.nodes)
            found = await ended(world, send_request(world, RequestKind.DEGRADE, node="node-1"))
            assert found.detail == "no rank is on node-1; it takes none from now on"
            assert world.coordinator.job.members.rooms()["node-1"] == 0
            found = await ended(world, send_request(world, RequestKind.RESTORE, node="node-1"))
            assert found.detail == "no rank is on node-1; it takes ranks from now on"
            assert world.coordinator.job.members.rooms()["node-1"] > 0

    play(work())


# Save


@pytest.fixture
def disk(options: RunOptions, tmp_path: Path) -> RunOptions:
    return dataclasses.replace(options, checkpoint_dir=tmp_path / "checkpoints")


async def three_slots(world: Any) -> None:
    for node in world.nodes:
        for rank in node.pids:
            node.send_report(rank, Attached(state_bytes=100, slots=3, protected=True))
    await world.until(lambda: all(rank.attached.slots == 3 for rank in world.coordinator.job.members.ranks))


def on_disk(world: Any, *epochs: int) -> None:
    """What the agents have said last."""
    inventory = SnapshotInventory(
        holding=None, unknown=(), newest=epochs[-1], protected=None, on_disk=frozenset(epochs)
    )
    world.coordinator.durability.kept = inventory


def test_with_three_slots_a_step_is_written_while_training_continues(disk: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(disk) as world:
            await three_slots(world)
            name = send_request(world, RequestKind.SAVE)
            # Steps take 0.1 s: agents have a second until the slot of this one could be overwritten.
            await world.until(lambda: all(node.runs and node.runs[-1].once == 15 for node in world.nodes))
            again = await ended(world, send_request(world, RequestKind.SAVE))
            assert (again.state, again.detail) == (
                RequestState.REJECTED,
                "step 15 is being written on another request",
            )
            for epoch in range(6, 17):
                world.commit_all(epoch)
            on_disk(world, 5, 16)
            await asyncio.sleep(0.02)
            found = result(world, name)
            assert found is not None
            assert found.state is RequestState.ACCEPTED, "a newer step is on disk, and this one is not known to be"
            on_disk(world, 5, 15, 16)
            world.commit_all(17)
            found = await ended(world, name)
            run = world.coordinator.job.state.run
            assert (found.state, found.step) == (RequestState.COMPLETED, 15)
            assert found.detail == f"step 15 is on disk: continue from it with --resume {run}"
            assert world.coordinator.job.state.generation == 1
            assert [node.saves for node in world.nodes] == [[15], [15]], "asked to complete it once all parts are there"

    play(work())


@pytest.mark.parametrize("problem", ["", "the disk is full"])
def test_with_two_slots_all_stop_until_it_is_written(problem: str, disk: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(disk) as world:
            world.nodes[1].saves_with = problem
            name = send_request(world, RequestKind.SAVE)
            await world.until(lambda: result(world, name))
            world.commit_all(6)
            await world.until_state("running", 2)
            assert [node.saves for node in world.nodes] == [[6], [6]]
            assert not any(fence.kill for node in world.nodes for fence in node.fences)
            assert all(config.once == NO_EPOCH for node in world.nodes for config in node.runs)
            for epoch in range(7, 12):
                world.commit_all(epoch)
            found = await ended(world, name)
            if problem:
                assert (found.state, found.detail) == (RequestState.FAILED, "node-1: the disk is full")
            else:
                assert (found.state, found.step) == (RequestState.COMPLETED, 6)
                assert found.seconds is not None
                assert found.seconds > 0

    play(work())


def test_what_a_job_cannot_do_is_said_and_stops_nobody(
    options: RunOptions, disk: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(options) as world:
            obstacles = world.coordinator.workflows.requests.obstacles()
            assert obstacles["save"] == "there is no --checkpoint-dir"
            assert obstacles["reshape"].startswith("there is no --checkpoint-dir")
            assert obstacles["restore"] == obstacles["degrade"] == ""
            found = await ended(world, send_request(world, RequestKind.SAVE))
            assert (found.state, found.detail) == (RequestState.REJECTED, "there is no --checkpoint-dir")
        async with running(dataclasses.replace(disk, state_dir=disk.state_dir / "other"), steps=5) as world:
            world.coordinator.job.state.steps_total = 6
            found = await ended(world, send_request(world, RequestKind.SAVE))
            assert "saves it then" in found.detail
            assert not any(node.fences for node in world.nodes)

    play(work())


def test_a_migration_waits_while_ranks_are_away_and_a_restore_does_not(
    tight: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(tight) as world:
            first = send_request(world, RequestKind.DEGRADE, node="node-1")
            await world.until_state("running", 2)
            commit(world, (0, 1), 6, 7, 8, 9)
            await ended(world, first)
            moving = JobRequest(id="moving", kind=RequestKind.MIGRATE, rank=0)
            world.coordinator.workflows.requests.submit([moving])
            world.coordinator.run_once()
            assert result(world, "moving") is None
            again = send_request(world, RequestKind.RESTORE, rank=0)
            await world.until_state("running", 3)
            commit(world, (0, 1), 10, 11, 12, 13)
            assert (await ended(world, again)).detail == "ranks [0] are restored on node-0"

    play(work())
