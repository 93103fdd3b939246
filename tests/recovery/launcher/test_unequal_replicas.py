"""Data-parallel ranks with equal parameters and other optimizers: ZeRO-1 in a script, experts that were made alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.options import RunOptions


@pytest.fixture
def disk(options: RunOptions, tmp_path: Path) -> RunOptions:
    return dataclasses.replace(options, checkpoint_dir=tmp_path / "checkpoints", disk_every=5)


def commit(world: Any, optimizer: Callable[[int], int]) -> None:
    for node in world.nodes:
        for rank in node.pids:
            node.commit(rank, 1, digest=7 + rank % 2, optimizer=optimizer(rank))


def test_each_rank_writes_its_whole_state(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, checkpoint_replicas=1), steps=0) as world:
            commit(world, lambda rank: rank)
            state = world.coordinator.job.state
            await world.until(lambda: state.replicated is not None)
            assert (state.replicated, state.parameters_equal) == (False, False)
            await world.until(lambda: "--checkpoint-replicas has no effect" in caplog.text)
            assert {(config.copies, config.replicated) for config in world.nodes[0].runs} == {(0, False)}

    play(scenario())


def test_equal_ranks_are_replicas(running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, checkpoint_replicas=1), steps=0) as world:
            commit(world, lambda rank: rank % 2)  # the stages of two pipelines
            await world.until(lambda: [c for c in world.nodes[0].runs if (c.copies, c.replicated) == (1, True)])

    play(scenario())


def test_a_job_whose_snapshots_would_lose_state_ends(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    async def scenario() -> None:
        async with running(dataclasses.replace(disk, shard_snapshots=True), steps=0) as world:
            commit(world, lambda rank: rank)
            await world.until(lambda: world.nodes[0].stopped)
            assert "--shard-snapshots would lose state" in world.nodes[0].stopped.reason

    play(scenario())
