"""A step that ``--resume`` names and of which a file is damaged: all ranks begin with the newest older one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.recovery.checkpoint.catalog import Age, ResumeSource
from mainstay.recovery.controller.state_replication import capture_state
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import RankReport, RankReports
from mainstay.recovery.protocol.worker_messages import Joined
from mainstay.recovery.recovery_plan import RestoreSource
from tests.recovery.launcher.earlier_run import EARLIER, earlier_step
from tests.recovery.launcher.test_coordinator_takeover import three, won

LATER = "01997c4e-8f00-7000-8000-000000000002"


@pytest.fixture
def disk(options: RunOptions, tmp_path: Path) -> RunOptions:
    return dataclasses.replace(
        options, disk_every=5, checkpoint_dir=tmp_path / "checkpoints", resume="latest", max_restarts=0
    )


@contextlib.asynccontextmanager
async def resuming(new_world: Any, options: RunOptions, *damaged: int) -> AsyncIterator[Any]:
    """A job whose launchers come, and cannot load the ``damaged`` steps."""
    world = new_world(options)
    await world.start()
    try:
        for number in range(options.nnodes):
            (await world.connect(number)).damaged = set(damaged)
        yield world
    finally:
        await world.close()


def orders(world: Any) -> dict[int, set[tuple[int, int]]]:
    """Generation -> (rank, step) of all orders of it."""
    found: dict[int, set[tuple[int, int]]] = {}
    for node in world.nodes:
        for order in node.orders:
            restore = order.order.restore
            found.setdefault(order.order.generation, set()).add((order.rank, restore.epoch if restore else -1))
    return found


def all_at(epoch: int) -> set[tuple[int, int]]:
    return {(rank, epoch) for rank in range(4)}


def test_it_is_passed_over_once_however_many_ranks_say_so(
    new_world: Any, disk: RunOptions, play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    directory = disk.checkpoint_dir or Path()
    for epoch in (20, 30, 40):
        earlier_step(directory, epoch)

    async def scenario() -> None:
        async with resuming(new_world, disk, 40) as world:
            await world.until_state("running", 2)
            assert orders(world) == {1: all_at(40), 2: all_at(30)}
            job = world.coordinator.job
            assert (job.state.recoveries, job.state.formed_once) == (0, True)
            replicated = capture_state(job, 1)
            assert (replicated.resumed, replicated.begun_at) == (EARLIER, 30)
            told = await world.until(lambda: [c for c in world.nodes[0].runs if c.generation == 2])
            assert told[-1].resumed == (EARLIER, 30)
            (line,) = [record.message for record in caplog.records if "is passed over" in record.message]
            assert line.startswith("step 40 is passed over: rank ")
            assert line.endswith("cannot continue from step 40: the bytes are gone")

    play(scenario())
    assert len(list(directory.glob("*/step-*/manifest.json"))) == 3, "nothing is deleted"


def test_ranks_that_could_load_it_go_back_with_the_others(
    new_world: Any, disk: RunOptions, play: Callable[..., None]
) -> None:
    """Not only to an older step: to one of another run, which has a higher number."""
    earlier_step(disk.checkpoint_dir or Path(), 70)
    earlier_step(disk.checkpoint_dir or Path(), 40, run_id=LATER)

    async def scenario() -> None:
        async with resuming(new_world, disk, 40) as world:
            world.nodes[0].damaged = set()
            await world.until_state("running", 2)
            assert orders(world) == {1: all_at(40), 2: all_at(70)}

    play(scenario())


def test_several_are_passed_over_down_to_step_zero_and_none_counts_as_a_restart(
    new_world: Any, disk: RunOptions, play: Callable[..., None]
) -> None:
    for epoch in (0, 20, 30, 40):
        earlier_step(disk.checkpoint_dir or Path(), epoch)

    async def scenario() -> None:
        async with resuming(new_world, disk, 20, 30, 40) as world:
            await world.until_state("running", 4)
            assert orders(world) == {1: all_at(40), 2: all_at(30), 3: all_at(20), 4: all_at(0)}
            assert world.coordinator.job.state.recoveries == 0

    play(scenario())


@pytest.mark.parametrize("resume", ["auto", "latest", EARLIER])
def test_where_all_are_damaged_the_error_names_the_first(
    new_world: Any, disk: RunOptions, play: Callable[..., None], resume: str
) -> None:
    for epoch in (30, 40):
        earlier_step(disk.checkpoint_dir or Path(), epoch)

    async def scenario() -> None:
        async with resuming(new_world, dataclasses.replace(disk, resume=resume), 30, 40) as world:
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert stopped.exit_code == 1
            assert "cannot continue from step 40: the bytes are gone; " in stopped.reason
            assert "has no older complete step of" in stopped.reason

    play(scenario())


def test_an_older_step_of_another_shape_is_not_taken(
    new_world: Any, disk: RunOptions, play: Callable[..., None]
) -> None:
    earlier_step(disk.checkpoint_dir or Path(), 30, run_id=EARLIER, pp=4)
    earlier_step(disk.checkpoint_dir or Path(), 40, run_id=LATER)

    async def scenario() -> None:
        async with resuming(new_world, disk, 40) as world:
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert "cannot continue from step 40: the bytes are gone; " in stopped.reason
            assert "pp=4" in stopped.reason

    play(scenario())


def test_a_disk_that_refuses_is_no_damage(new_world: Any, disk: RunOptions, play: Callable[..., None]) -> None:
    for epoch in (30, 40):
        earlier_step(disk.checkpoint_dir or Path(), epoch)

    async def scenario() -> None:
        async with resuming(new_world, disk) as world:
            for node in world.nodes:
                node.broken = {RestoreSource.DISK}
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert stopped.reason.endswith("cannot continue from step 40: the bytes are gone")
            assert orders(world).keys() == {1}

    play(scenario())


def test_a_rank_that_dies_while_an_older_step_is_looked_for_changes_nothing(
    new_world: Any, disk: RunOptions, play: Callable[..., None]
) -> None:
    """The search continues in its thread when the recovery is cancelled, but what it finds no longer counts."""
    for epoch in (30, 40):
        earlier_step(disk.checkpoint_dir or Path(), epoch)

    async def scenario() -> None:
        async with resuming(new_world, dataclasses.replace(disk, max_restarts=1), 40) as world:
            checkpoints, asked, goes = world.coordinator.checkpoints, list[Age](), threading.Event()
            find = checkpoints.find

            def late(before: Age) -> ResumeSource:
                asked.append(before)
                assert goes.wait(60.0)
                found: ResumeSource = find(before)
                return found

            checkpoints.find = late
            await world.until(lambda: asked)
            source = checkpoints.named
            world.node_of(3).kill(3)
            await world.until(lambda: len(asked) == 2)
            assert world.coordinator.job.source is source
            goes.set()
            await world.until_state("running", 3)
            assert asked == [(EARLIER, 40)] * 2
            assert orders(world) == {1: all_at(40), 3: all_at(30)}

    play(scenario())


@pytest.mark.parametrize("formed_once", [False, True])
def test_a_coordinator_that_takes_over_keeps_the_older_step(
    new_world: Any, disk: RunOptions, play: Callable[..., None], formed_once: bool
) -> None:
    """``--resume`` of its own would give the damaged one."""
    for epoch in (20, 30, 40):
        earlier_step(disk.checkpoint_dir or Path(), epoch, dp=3)

    async def scenario() -> None:
        world = new_world(dataclasses.replace(three(disk), resume=EARLIER, max_restarts=10))
        world.coordinator.job.new_store = lambda: ("127.0.0.1", 2)
        try:
            result = won(asyncio.get_running_loop().time())
            state = msgspec.structs.replace(
                result.coordinator_state, resumed=EARLIER, begun_at=30, formed_once=formed_once, returns=()
            )
            result = dataclasses.replace(result, coordinator_state=state)
            world.port = await world.coordinator.succeed(result, "127.0.0.1")
            assert world.coordinator.job.begun_at == 30
            assert world.coordinator.checkpoints.named is world.coordinator.job.source
            if formed_once:
                return
            for number in (0, 1):
                node = await world.connect(number)
                reports = []
                for rank in (2 * number, 2 * number + 1):
                    node.pids[rank] = 100 + rank
                    said = (Joined(generation=1, dp=3, pp=2, tp=1),)
                    reports.append(RankReport(rank=rank, pid=100 + rank, words=said))
                node.stream.send(RankReports(ranks=tuple(reports)))
            await world.until_state("running", 7)
            assert orders(world) == {7: {(rank, 30) for rank in range(6)}}
        finally:
            await world.close()

    play(scenario())
