"""Which run a job is, what it continues from, and what is saved before it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.quantization_bound import QuantizationBound
from mainstay.recovery.controller.workflows.reshape_controller import ReshapeController
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import Saved
from mainstay.recovery.recovery_plan import RestoreSource
from tests.recovery.checkpoint.test_unreadable_runs import refuse
from tests.recovery.launcher.earlier_run import EARLIER, earlier_step


@pytest.fixture
def disk(options: RunOptions, tmp_path: Path) -> RunOptions:
    return dataclasses.replace(options, disk_every=5, checkpoint_dir=tmp_path / "checkpoints")


def test_agents_are_told_of_the_run_and_of_what_was_gone_back_from(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, checkpoint_encoding="exact"), steps=7) as world:
            first = world.nodes[0].runs[-1]
            assert first.encoding == "exact"
            assert (first.every, first.dp, first.pp, first.generation, first.returns) == (5, 2, 2, 1, ())
            assert first.run == world.coordinator.job.state.run == world.events("job_started")[0]["data"]["run"]
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            told = await world.until(lambda: [c for c in world.nodes[1].runs if c.generation == 2])
            assert (told[0].run, told[0].returns) == (first.run, ((7, 2),))

    play(scenario())


def finish(world: Any) -> None:
    for node in world.nodes:
        for rank in list(node.pids):
            node.kill(rank, exit_code=0, signal=None)


def test_the_last_steps_are_saved_before_anybody_is_told_to_stop(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            for node in world.nodes:
                node.saves_with = None
            finish(world)
            await world.until(lambda: all(node.saves == [7] for node in world.nodes))
            await asyncio.sleep(0.05)
            assert all(node.stopped is None for node in world.nodes)
            for node in world.nodes:
                node.stream.send(Saved(epoch=7))
            await world.until(lambda: all(node.stopped for node in world.nodes))
            assert [node.stopped.exit_code for node in world.nodes] == [0, 0]
            assert world.coordinator.job.state.phase == "finished"

    play(scenario())


def test_a_job_that_is_stopped_saves_the_newest_step_that_all_ranks_have(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            for rank in (0, 2):  # the others were about to
                world.node_of(rank).commit(rank, 8)
            await world.until(lambda: world.coordinator.job.state.committed == 8)
            world.coordinator.stopped(143)
            assert world.coordinator.job.state.over
            await world.until(lambda: all(node.stopped for node in world.nodes))
            assert [node.saves for node in world.nodes] == [[7], [7]]
            assert {rank for node in world.nodes for fence in node.fences for rank in fence.kill} == {0, 1, 2, 3}
            assert await world.coordinator.outcome == 143
            assert world.coordinator.job.state.phase == "failed"

    play(scenario())


def test_when_no_restart_is_possible_the_healthy_replica_saves_at_once(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    """Just in time: node 1 is gone with its replica, no node has room for its ranks, and node 0 holds the same."""

    async def scenario() -> None:
        async with running(dataclasses.replace(disk, spares=0), steps=7) as world:
            assert world.coordinator.job.state.replicated
            world.nodes[1].stream.close()
            await world.until(lambda: world.nodes[0].stopped)
            assert world.nodes[0].saves == [7]
            assert "nowhere to run" in world.nodes[0].stopped.reason

    play(scenario())


def test_replicas_that_differ_do_not_stand_for_one_another(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, spares=0), steps=7) as world:
            world.coordinator.job.state.replicated = False
            world.nodes[1].stream.close()
            await world.until(lambda: world.nodes[0].stopped)
            assert world.nodes[0].saves == []
            assert "nothing was saved at the end" in caplog.text

    play(scenario())


def test_equal_replicas_share_the_writing_and_stand_in_when_all_is_lost(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, checkpoint_replicas=1), steps=7) as world:
            assert world.nodes[0].runs[0].copies == 0  # nothing is known of replicas before the first step
            told = await world.until(lambda: [c for c in world.nodes[0].runs if c.copies == 1])
            assert [told[-1].share(rank) for rank in range(4)] == [(0, 2), (0, 2), (1, 2), (1, 2)]
            for node in world.nodes:
                node.disk = [PartFile(rank=rank, epoch=5, nbytes=100, generation=1) for rank in (0, 3)]
                node.slots.clear()
            for rank in range(4):
                world.node_of(rank).kill(rank)
            await world.until(
                lambda: [e for e in world.events("recovery_planned") if e["data"]["plan"]["chosen"] == "disk_restart"]
            )
            orders = await world.until(
                lambda: len(o := [o for n in world.nodes for o in n.orders if o.order.generation > 1]) >= 4 and o
            )
            newest = max(order.order.generation for order in orders)
            assert {o.rank: o.order.restore.from_rank for o in orders if o.order.generation == newest} == {
                0: 0, 1: 3, 2: 0, 3: 3,
            }  # fmt: skip

    play(scenario())


def test_copies_of_a_lost_node_are_saved_by_whoever_keeps_them(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    """Sharded over replicas, so that nothing stands for the lost ranks but their copies."""

    async def scenario() -> None:
        async with running(dataclasses.replace(disk, spares=0), steps=7) as world:
            world.coordinator.job.state.replicated = False
            lost = set(world.nodes[1].pids)
            world.nodes[0].slots |= dict.fromkeys(lost, 6)
            world.nodes[1].stream.close()
            await world.until(lambda: world.nodes[0].stopped)
            assert world.nodes[0].saves == [6]
            assert set(world.nodes[0].saved_copies) == lost

    play(scenario())


def test_what_could_not_be_saved_is_said_and_the_job_ends_all_the_same(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            world.nodes[1].saves_with = "disk level of rank 2: the disk is full"
            world.coordinator.stopped(143)
            await world.until(lambda: all(node.stopped for node in world.nodes))
            assert "step 7 is perhaps not whole on disk: node-1: disk level of rank 2: the disk is full" in caplog.text

    play(scenario())


def test_a_node_that_is_lost_during_the_last_save_is_not_waited_for(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            world.nodes[1].saves_with = None
            world.coordinator.stopped(143)
            await world.until(lambda: world.nodes[1].saves)
            world.nodes[1].stream.close()
            await world.until(lambda: world.nodes[0].stopped)

    play(scenario())


def test_without_a_disk_level_a_job_ends_at_once(
    running: Callable[..., Any], options: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(options, steps=7) as world:
            world.coordinator.stopped(143)
            await world.until(lambda: all(node.stopped for node in world.nodes))
            assert all(node.saves == [] and node.runs == [] for node in world.nodes)

    play(scenario())


# Resuming


def test_the_first_order_of_every_rank_is_the_step_of_the_earlier_run(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    earlier_step(disk.checkpoint_dir or Path(), 40)

    async def scenario() -> None:
        async with running(dataclasses.replace(disk, resume="latest"), steps=0) as world:
            orders = {o.rank: o.order.restore for node in world.nodes for o in node.orders}
            for rank, restore in orders.items():
                assert (restore.epoch, restore.source) == (40, RestoreSource.DISK)
                assert (restore.run, restore.from_rank, restore.part) == (EARLIER, rank, 3)
            assert {rank.epoch for rank in world.coordinator.job.members.ranks} == {40}
            await world.until(lambda: world.nodes[0].runs)
            assert world.nodes[0].runs[-1].resumed == (EARLIER, 40)
            assert world.nodes[0].runs[-1].run > EARLIER

    play(scenario())


def test_who_loses_everything_before_a_step_of_its_own_goes_back_to_the_earlier_run(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    earlier_step(disk.checkpoint_dir or Path(), 40)

    async def scenario() -> None:
        async with running(dataclasses.replace(disk, resume=EARLIER), steps=0) as world:
            for node in world.nodes:
                node.slots.clear()
            for rank in range(4):
                world.node_of(rank).kill(rank)
            await world.until(
                lambda: [e for e in world.events("recovery_planned") if e["data"]["plan"]["chosen"] == "disk_restart"]
            )
            order = (await world.until(lambda: [o for o in world.nodes[0].orders if o.order.generation > 1]))[-1]
            assert (order.order.restore.run, order.order.restore.epoch) == (EARLIER, 40)

    play(scenario())


def test_a_step_that_cannot_be_read_is_one_clear_line(
    new_world: Any, disk: RunOptions, play: Callable[..., None]
) -> None:
    earlier_step(disk.checkpoint_dir or Path(), 40)

    async def scenario() -> None:
        world = new_world(dataclasses.replace(disk, resume="latest"))
        await world.start()
        try:
            for number in range(2):
                (await world.connect(number)).broken = {RestoreSource.DISK}
            await world.until(lambda: world.nodes[0].stopped)
            assert "cannot continue from step 40: the bytes are gone" in world.nodes[0].stopped.reason
        finally:
            await world.close()

    play(scenario())


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"pp": 4}, "pp=4 tp=1, this job has pp=2"),
        ({"dp": 4, "replicated": False}, "made with dp=4, this job has dp=2; its state is sharded"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_in_one_line(
    new_world: Any, disk: RunOptions, play: Callable[..., None], step: dict[str, Any], words: str
) -> None:
    earlier_step(disk.checkpoint_dir or Path(), 40, **step)

    async def scenario() -> None:
        world = new_world(dataclasses.replace(disk, resume="latest"))
        await world.start()
        try:
            for number in range(2):
                await world.connect(number)
            await world.until(lambda: world.nodes[0].stopped)
            assert words in world.nodes[0].stopped.reason
        finally:
            await world.close()

    play(scenario())


def test_auto_begins_anew_where_there_is_nothing_but_not_where_the_disk_refuses_to_say(
    running: Callable[..., Any],
    disk: RunOptions,
    play: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with running(dataclasses.replace(disk, resume="auto"), steps=1) as world:
            assert world.coordinator.job.source is None
            assert "nothing to resume" in caplog.text
        with pytest.raises(CheckpointError, match=r"--resume latest: .* is not a directory"):
            type(world)(dataclasses.replace(disk, resume="latest", nnodes=1, nproc=4))
        refuse(monkeypatch, "iterdir", disk.checkpoint_dir or Path())
        with pytest.raises(CheckpointError, match=r"--resume auto: .*: Input/output error"):
            type(world)(dataclasses.replace(disk, resume="auto", nnodes=1, nproc=4))

    play(scenario())


def test_a_quantized_step_is_continued_from_only_if_that_is_accepted(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    bound = QuantizationBound(bits=8, absolute=0.25, relative=0.03)
    earlier_step(disk.checkpoint_dir or Path(), 40, quantized=bound)

    async def scenario() -> None:
        async with running(dataclasses.replace(disk, resume="latest", accept_quantized=True), steps=0) as world:
            assert world.coordinator.job.begun_at == 40
            assert f"resuming after step 40 of run {EARLIER}, from near values: {bound}" in caplog.text
        near = r"is quantized \(8 bits a value, with errors of at most 0.25, or 0.03 of the value\)"
        for wanted in ("latest", "auto", EARLIER):
            said = f"--resume {wanted}: step 40 of run {EARLIER} {near}: .* --accept-quantized"
            with pytest.raises(CheckpointError, match=said):
                type(world)(dataclasses.replace(disk, resume=wanted))

    play(scenario())


def test_a_job_that_runs_never_goes_back_to_near_values(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, checkpoint_encoding="8bit"), steps=7) as world:
            for node in world.nodes:
                node.disk = [PartFile(rank=rank, epoch=5, nbytes=100, generation=1) for rank in range(4)]
                node.slots.clear()
            for rank in range(4):
                world.node_of(rank).kill(rank)
            await world.until(lambda: world.nodes[0].stopped)
            assert not [e for e in world.events("recovery_planned") if e["data"]["plan"]["chosen"] == "disk_restart"]
            assert "--resume --accept-quantized continues from a quantized step" in caplog.text
            assert world.coordinator.job.state.phase == "failed"

    play(scenario())


def test_another_shape_does_not_begin_with_near_values(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, checkpoint_encoding="4bit"), steps=7) as world:
            job = world.coordinator.job
            nobody: Any = None
            reshaping = ReshapeController(job, world.coordinator.checkpoints, participation=nobody, requests=nobody)
            near = QuantizationBound(bits=4, absolute=0.25, relative=0.03)
            earlier_step(disk.checkpoint_dir or Path(), 5, quantized=near, run_id=job.state.run)
            assert reshaping.adopt(MeshShape(dp=2, pp=2)).startswith("step 5 is quantized")
            assert job.source is None

    play(scenario())


def test_the_newest_step_that_can_be_made_whole() -> None:
    shape = MeshShape(dp=2, pp=2)
    even = {rank: {6, 7} for rank in range(4)}
    assert shape.newest_common(even, replicated=False) == 7
    uneven = even | {0: {7, 8}, 2: {7, 8}}
    assert shape.newest_common(uneven, replicated=True) == 7
    lost = {0: {7, 8}, 1: {6, 7}}
    assert shape.newest_common(lost, replicated=True) == 7
    assert shape.newest_common(lost, replicated=False) is None
    assert shape.newest_common({0: {7}, 2: {7}}, replicated=True) is None
    ahead = {0: {8}, 1: {8}, 2: {7, 8}, 3: {7}}
    assert shape.newest_common(ahead, replicated=True) == 8
