"""A planned change of (dp, pp): who is asked, what is saved before anything is given up, and what a failure leaves."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.controller.recovery_executor import VERIFY_STEPS
from mainstay.recovery.job_request import JobRequest, JobRequestResult, RequestKind, RequestState, write_request
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.option_values import OptionsError
from mainstay.recovery.options import RunOptions, parse
from mainstay.recovery.protocol.messages import Saved
from mainstay.recovery.recovery_plan import RestoreSource
from tests.recovery.launcher.adapting import adapt, whole_step


@pytest.fixture
def disk(options: RunOptions, tmp_path: Path) -> RunOptions:
    return dataclasses.replace(options, disk_every=5, checkpoint_dir=tmp_path / "checkpoints")


SHAPE = MeshShape(dp=2, pp=2)
"""That the job is started in."""


def request(world: Any, dp: int, pp: int, tp: int = 0) -> None:
    """Asked for, and seen by the coordinator."""
    write_request(world.options.state_dir, JobRequest(id="request", kind=RequestKind.RESHAPE, dp=dp, pp=pp, tp=tp))
    world.coordinator.run_once()


def go_on(world: Any) -> None:
    """Steps are committed until what was begun counts as verified."""
    for epoch in range(9, 9 + VERIFY_STEPS):
        world.commit_all(epoch)


async def the_answer(world: Any) -> JobRequestResult:
    def final() -> JobRequestResult | None:
        found = world.coordinator.workflows.requests.results()
        return found[-1] if found and found[-1].state is not RequestState.ACCEPTED else None

    given: JobRequestResult = await world.until(final)
    return given


def test_all_ranks_start_anew_from_the_step_that_was_saved(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            await adapt(world)
            old = world.coordinator.job.state.run
            whole_step(world, 8, SHAPE)
            request(world, 1, 4)
            await asyncio.sleep(0.02)
            assert not any(node.fences for node in world.nodes)  # it waits for the end of a step
            world.dp, world.pp = 1, 4
            world.commit_all(8)
            await world.until_state("running", 3)
            assert [node.saves for node in world.nodes] == [[8], [8]]
            assert {rank for node in world.nodes for rank in node.fences[-1].kill} == {0, 1, 2, 3}
            orders = {m.rank: m.order.restore for node in world.nodes for m in node.orders if m.order.generation == 3}
            assert {order.source for order in orders.values()} == {RestoreSource.DISK}
            assert {rank: order.parts for rank, order in orders.items()} == {
                0: ((0, 1), (1, 1)), 1: ((0, 1), (1, 1)), 2: ((1, 1), (0, 1)), 3: ((1, 1), (0, 1)),
            }  # fmt: skip
            assert {order.run for order in orders.values()} == {old}
            config = world.nodes[0].runs[-1]
            assert (config.dp, config.pp, config.resumed) == (1, 4, (old, 8))
            assert config.run == world.coordinator.job.state.run != old
            go_on(world)
            given = await the_answer(world)
            assert (given.state, given.step, given.steps_lost) == (RequestState.COMPLETED, 8, 0)
            assert world.coordinator.job.state.recoveries == 0

    play(scenario())


def test_the_page_of_the_job_shows_the_steps_of_the_new_run(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            monitor = world.coordinator.checkpoint_monitor

            async def shown() -> tuple[str, list[int]]:
                await monitor.refresh()
                monitor._sent = None
                told = monitor.report()["checkpoints"]
                return told["run"], [step["step"] for step in told["steps"]]

            await adapt(world)
            state = world.coordinator.job.state
            whole_step(world, 8, SHAPE)
            assert await shown() == (state.run, [8])
            request(world, 1, 4)
            world.dp, world.pp = 1, 4
            world.commit_all(8)
            await world.until_state("running", 3)
            whole_step(world, 10, MeshShape(dp=1, pp=4))
            assert await shown() == (state.run, [10])

    play(scenario())


def test_what_cannot_be_saved_is_not_given_up(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            await adapt(world)
            world.nodes[1].saves_with = "the disk is full"
            request(world, 1, 4)
            world.commit_all(8)
            await world.until_state("running", 2)
            go_on(world)
            given = await the_answer(world)
            assert (given.state, given.detail) == (RequestState.FAILED, "node-1: the disk is full")
            assert not any(fence.kill for node in world.nodes for fence in node.fences)
            assert world.coordinator.job.members.shape == MeshShape(dp=2, pp=2)

    play(scenario())


@pytest.mark.parametrize("model_names", [False, True])
def test_a_step_that_no_other_shape_can_read_is_not_gone_on_from(
    model_names: bool, running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    """Written, but with names of each stage's own; or an older step is the newest whole one: nodes share no disk."""

    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            await adapt(world)
            whole_step(world, 5 if model_names else 8, SHAPE, model_names=model_names)
            request(world, 1, 4)
            world.commit_all(8)
            await world.until_state("running", 2)
            go_on(world)
            given = await the_answer(world)
            assert given.state is RequestState.FAILED
            assert ("is not whole in" if model_names else "its names are each stage's own") in given.detail
            assert world.coordinator.job.source is None

    play(scenario())


def test_a_rank_that_is_lost_meanwhile_comes_first(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(disk, steps=7) as world:
            await adapt(world)
            for node in world.nodes:
                node.saves_with = None
            request(world, 1, 4)
            world.commit_all(8)
            await world.until(lambda: all(node.saves for node in world.nodes))
            world.node_of(3).kill(3)
            given = await the_answer(world)
            assert (given.state, given.detail) == (
                RequestState.FAILED,
                "something failed meanwhile, which came first",
            )
            for node in world.nodes:
                node.stream.send(Saved(epoch=8))
            await world.until_state("running", 3)
            go_on(world)
            assert (await world.until_event("recovery_completed"))["data"]["epoch"] in {7, 8}
            assert world.coordinator.job.members.shape == MeshShape(dp=2, pp=2)

    play(scenario())


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 1), "dp=3 pp=1 needs 3 ranks, and the job has 4"),
        ((2, 2), "the job has dp=2 pp=2 already"),
        ((0, 0, 2), "dp=2 pp=2 tp=2 needs 8 ranks, and the job has 4"),
        ((1, 0, 2), "another tp needs a script that says how it cuts tensors: give mainstay.attach sharding="),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    shape: tuple[int, ...], words: str, running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(disk) as world:
            await adapt(world)
            request(world, *shape)
            given = await the_answer(world)
            assert (given.state, given.detail) == (RequestState.REJECTED, words)
            assert world.coordinator.job.state.generation == 1

    play(scenario())


def test_what_a_job_lacks_is_said(
    running: Callable[..., Any], disk: RunOptions, options: RunOptions, play: Callable[..., None], tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with running(disk) as world:
            request(world, 1, 4)
            given = await the_answer(world)
            assert given.state is RequestState.REJECTED
            assert "the script of ranks [0, 1, 2, 3] cannot be started in another shape" in given.detail
        async with running(dataclasses.replace(options, state_dir=tmp_path / "other")) as world:
            await adapt(world)
            request(world, 1, 4)
            assert (await the_answer(world)).detail.startswith("there is no --checkpoint-dir")

    play(scenario())


def test_other_tensor_parallel_ranks_are_told_to_the_script(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, dp=2, pp=2), steps=7) as world:
            assert {start.tp for start in world.starts} == {0}, "the script's own counts"
            await adapt(world, cuts=True)
            whole_step(world, 8, SHAPE)
            request(world, 1, 0, 2)
            world.dp, world.tp = 1, 2
            world.commit_all(8)
            await world.until_state("running", 3)
            last = [start for start in world.starts if start.generation == 3]
            assert {(start.rank, start.dp, start.pp, start.tp) for start in last} == {(r, 1, 2, 2) for r in range(4)}
            assert world.coordinator.job.members.shape == MeshShape(dp=1, pp=2, tp=2)
            orders = {m.rank: m.order.restore for node in world.nodes for m in node.orders if m.order.generation == 3}
            assert orders[3].parts == ((1, 1), (0, 1))
            go_on(world)
            assert (await the_answer(world)).state is RequestState.COMPLETED

    play(scenario())


@pytest.mark.parametrize(
    ("tp", "fits"), [(["--tp", "2"], True), (["--tp", "1"], False), (["--tp", "3"], False), (["--tp", "-2"], False)]
)
def test_tensor_parallel_ranks_at_the_start(tp: list[str], fits: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    words = ["--nproc-per-node", "4", *tp, str(script)]
    if fits:
        assert parse(["--dp", "2", "--pp", "1", *words]).tp == 2
    else:
        with pytest.raises(OptionsError, match="--dp, --pp and --tp must"):
            parse(["--dp", "2", "--pp", "1", *words])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--dp", "3"], "the product of --dp, --pp and --tp must divide the 4 ranks"),
        (["--dp", "2", "--pp", "3"], "the product of --dp, --pp and --tp must divide the 4 ranks"),
        (["--pp", "2", "--tp", "4"], "the product of --dp, --pp and --tp must divide the 4 ranks"),
        (["--dp", "2", "--tp", "1"], "the product of --dp, --pp and --tp must be the 4 ranks"),
        (["--dp", "-2", "--pp", "-2"], "--dp, --pp and --tp must not be negative"),
    ],
)
def test_a_shape_that_ranks_cannot_form_is_refused_at_the_start(words: list[str], problem: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    with pytest.raises(OptionsError, match=problem):
        parse(["--nproc-per-node", "4", *words, str(script)])


@pytest.mark.parametrize(
    "words", [["--dp", "4"], ["--dp", "2"], ["--pp", "2"], ["--tp", "2"], ["--pp", "2", "--tp", "2"], []]
)
def test_a_size_of_the_shape_may_be_left_out(words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    parse(["--nproc-per-node", "4", *words, str(script)])
