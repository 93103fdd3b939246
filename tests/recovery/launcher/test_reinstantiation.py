"""``--on-loss reinstantiate``: which pipelines are formed when a node is lost, from what, and when it is back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.options import RunOptions
from mainstay.recovery.work_assignment import LossPolicy
from tests.recovery.launcher.adapting import adapt, whole_step


@pytest.fixture
def six(options: RunOptions, tmp_path: Path) -> RunOptions:
    """Two pipelines of three stages, each rank on a node of its own, nothing spare."""
    return dataclasses.replace(
        options, nnodes=6, nproc=1, dp=2, pp=3, spares=0, quorum=4, disk_every=1000,
        checkpoint_dir=tmp_path / "checkpoints", on_loss=LossPolicy.REINSTANTIATE,
    )  # fmt: skip


def homes(world: Any) -> list[str]:
    return [rank.node for rank in world.coordinator.job.members.ranks]


def test_five_ranks_go_on_as_three_and_two_stages_and_six_as_before(
    running: Callable[..., Any], six: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(six, steps=5) as world:
            await adapt(world)
            whole_step(world, 5, MeshShape(dp=2, pp=3), lost=4)
            world.depths = (3, 2)
            world.lose(4)
            await world.until_state("running", 3)
            assert world.coordinator.job.members.shape == MeshShape.from_stages((3, 2))
            assert homes(world) == ["node-0", "node-1", "node-2", "node-3", "node-5"]
            assert [node.saves for node in world.nodes] == [[5]] * 5
            orders = {m.rank: m.order.restore for node in world.nodes for m in node.orders if m.order.generation == 3}
            assert [len(orders[rank].parts) for rank in range(5)] == [0, 0, 0, 3, 3], "those cut otherwise read all"
            assert {order.epoch for order in orders.values()} == {5}
            assert [sorted(node.pids) for node in world.nodes] == [[0], [1], [2], [3], [4]], "no old number is left"
            assert world.nodes[0].runs[-1].depths == (3, 2)
            world.commit_all(6)
            assert (await world.until_event("recovery_completed"))["data"]["steps_lost"] == 0
            for epoch in (7, 8, 9):
                world.commit_all(epoch)
            (verified,) = [await world.until_event("recovery_verified")]
            assert verified["data"]["digest_match"] is None, "no rank is cut alike: nothing was compared"
            await adapt(world)
            whole_step(world, 10, MeshShape.from_stages((3, 2)))
            world.depths = ()
            await world.connect(4, standbys=1)
            await world.until(lambda: world.coordinator.job.members.nodes["node-4"].alive)
            await world.until(lambda: not world.coordinator.job.busy)
            world.coordinator.run_once()
            world.commit_all(10)
            await world.until_state("running", 5)
            assert world.coordinator.job.members.shape == MeshShape(dp=2, pp=3)
            assert homes(world) == [f"node-{number}" for number in range(6)]

    play(scenario())


def test_a_rank_whose_node_lives_gets_a_process_as_ever(
    running: Callable[..., Any], six: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(six, steps=5) as world:
            await adapt(world)
            world.node_of(4).kill(4)
            await world.until_state("running", 2)
            assert world.coordinator.job.members.shape == MeshShape(dp=2, pp=3)
            assert not any(node.saves for node in world.nodes)

    play(scenario())


def test_a_script_that_names_its_own_shape_is_not_started_in_another(
    running: Callable[..., Any], six: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(six, steps=5) as world:
            world.lose(5)
            await world.until(lambda: world.coordinator.job.state.phase.value == "failed")
            assert world.coordinator.job.members.shape == MeshShape(dp=2, pp=3)
            (ended,) = world.events("job_finished")
            assert "only 0 spare places are left" in ended["data"]["reason"]

    play(scenario())


def test_where_there_is_a_place_the_lost_rank_moves_to_it(
    running: Callable[..., Any], six: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(six, spares=1), steps=5) as world:
            await adapt(world)
            world.lose(5)
            await world.until_state("running", 2)
            assert world.coordinator.job.members.shape == MeshShape(dp=2, pp=3)
            assert not any(node.saves for node in world.nodes)

    play(scenario())


def test_what_nobody_holds_any_more_ends_the_job_in_one_line(
    running: Callable[..., Any], six: RunOptions, play: Callable[..., None]
) -> None:
    """One pipeline alone: no node holds what the lost one held."""

    async def scenario() -> None:
        async with running(dataclasses.replace(six, nnodes=3, dp=1, quorum=2), steps=5) as world:
            await adapt(world)
            (six.checkpoint_dir or Path()).mkdir()
            world.lose(1)
            await world.until(lambda: world.coordinator.job.state.phase.value == "failed")
            (ended,) = world.events("job_finished")
            assert "nothing is left to continue from in dp=1 pp=2: no step is held by all" in ended["data"]["reason"]

    play(scenario())


def test_without_a_living_copy_an_older_step_on_disk_is_gone_on_from(
    running: Callable[..., Any], six: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(six, steps=5) as world:
            await adapt(world)
            whole_step(world, 3, MeshShape(dp=2, pp=3))
            for node in world.nodes:
                node.saves_with = "the disk is full"
            world.depths = (3, 2)
            world.lose(1)
            await world.until_state("running", 3)
            world.commit_all(4)
            assert (await world.until_event("recovery_completed"))["data"]["epoch"] == 3

    play(scenario())
