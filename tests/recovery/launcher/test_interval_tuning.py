"""Intervals that the coordinator chooses: from what saves took, and from steps that ran beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    CheckpointPart,
    Manifest,
    PartEntry,
    RunInfo,
    TensorEntry,
    part_name,
    run_name,
    step_name,
    write_checked,
)
from mainstay.recovery.checkpoint.upload_state import UPLOAD, UploadState
from mainstay.recovery.controller.monitors.interval_tuning import SavePace
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import StepRecord


@pytest.fixture
def disk(options: RunOptions, tmp_path: Path) -> RunOptions:
    return dataclasses.replace(options, disk_every=5, checkpoint_dir=tmp_path / "checkpoints")


def step_record(epoch: int, seconds: float) -> StepRecord:
    return StepRecord(
        generation=1, epoch=epoch, step_time=seconds, compute_time=seconds, snapshot_blocked=0.0, end_ns=epoch
    )


def test_auto_follows_what_saving_costs(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    """100 bytes of state at 100 bytes a second, steps of 0.1 s: the request to save often meets what a save takes."""
    auto = dataclasses.replace(disk, disk_auto=True, parity_every=10, parity_auto=True, mtbf_hours=1e-3)

    async def scenario() -> None:
        async with running(auto, steps=7) as world:
            tuning, state = world.coordinator.intervals, world.coordinator.job.state
            tuning.retune(SavePace())  # nothing is known of the disk yet
            assert state.disk_every == 5
            assert state.parity_every == 1  # 100 bytes are nothing for a network
            tuning.retune(SavePace(disk_Bps=100.0))
            assert state.disk_every >= 10
            told = await world.until(lambda: [c for c in world.nodes[1].runs if c.every == state.disk_every])
            assert told[0].run == state.run
            before = state.disk_every
            tuning.retune(SavePace(disk_Bps=98.0))  # not worth a word
            assert state.disk_every == before

    play(scenario())


def test_uploads_become_rarer_only_when_they_slow_training(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    """Steps of 0.1 s; an upload takes 1 s, and steps beside one 0.15 s."""
    auto = dataclasses.replace(disk, disk_auto=True, checkpoint_upload="/upload", mtbf_hours=100.0)
    beside = SavePace(disk_Bps=1e4, upload_s=1.0, is_uploading=True)

    async def scenario() -> None:
        async with running(auto, steps=7) as world:
            tuning, inputs = world.coordinator.intervals, world.coordinator.inputs
            checkpoints, state = world.coordinator.checkpoints, world.coordinator.job.state

            def train(first: int, seconds: float, pace: SavePace) -> None:
                for epoch in range(first, first + 60):
                    inputs.step_took(0, step_record(epoch, seconds + epoch % 3 * 1e-3))
                tuning.retune(pace)

            train(100, 0.1, dataclasses.replace(beside, is_uploading=False))
            assert checkpoints.upload_every == 0
            for first, seconds in ((200, 0.1), (300, 0.1)):  # the first look cannot tell when the upload began
                train(first, seconds, beside)
            assert checkpoints.upload_every == 0, "uploads cost nothing"
            for first in (400, 500):
                train(first, 0.1, dataclasses.replace(beside, is_uploading=False))
            for first in (600, 700, 800, 900, 1000):
                train(first, 0.15, beside)
            assert checkpoints.upload_every >= 2 * state.disk_every
            assert checkpoints.upload_every % state.disk_every == 0
            sent = world.nodes[1].runs
            await world.until(lambda: [c for c in sent if c.upload_every == checkpoints.upload_every])

    play(scenario())


def test_what_writing_costs_is_measured_in_the_steps_beside_it(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    """Writes take 1 s: ten steps of 0.1 s. Later, all steps take twice as long."""
    auto = dataclasses.replace(disk, disk_auto=True, mtbf_hours=100.0)

    async def scenario() -> None:
        async with running(auto, steps=7) as world:
            tuning, inputs = world.coordinator.intervals, world.coordinator.inputs
            state = world.coordinator.job.state
            pace = SavePace(disk_Bps=100.0)
            tuning.retune(pace)
            assumed = state.disk_every
            for share in (0.3, 0.003):
                for saves in range(240):
                    healthy = 0.1 if saves < 120 else 0.2
                    for epoch in range(saves * state.disk_every + 1, saves * state.disk_every + 101):
                        beside = (epoch - 1) % state.disk_every < 1.0 / healthy
                        took = healthy * (1.0 + share * beside + epoch % 7 * 1e-3)
                        inputs.step_took(0, step_record(epoch, took))
                    tuning.retune(pace)
                found = tuning._slowdown["disk"]
                assert found == pytest.approx(share, rel=0.1, abs=0.001)
                assert (state.disk_every > assumed) is (share > 0.033)

    play(scenario())


def test_the_rate_is_that_of_the_slowest_part_of_the_newest_whole_step(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None]
) -> None:
    directory = disk.checkpoint_dir or Path()

    async def scenario() -> None:
        async with running(disk, steps=1) as world:
            tuning = world.coordinator.intervals
            assert await tuning._pace() == SavePace()
            run = directory / world.coordinator.job.state.run
            (run / step_name(5)).mkdir(parents=True)
            info = RunInfo(run=run.name, job="job", generation=1, dp=2, pp=1, tp=1)
            write_checked(run / run_name(1), info)
            text = TensorEntry("mainstay.layout", "uint8", (1,), 0, 1, 0, 0, 1)
            parts = [
                CheckpointPart(
                    run=run.name, job="job", rank=rank, epoch=5, generation=1, dp=2, pp=1, tp=1, file="f", nbytes=100,
                    layout_digest=0, seconds=seconds, tensors=(), described=text,
                )
                for rank, seconds in enumerate((2.0, 4.0))
            ]  # fmt: skip
            checks = [write_checked(run / step_name(5) / part_name(p.rank, 1), p).check for p in parts]
            entries = tuple(PartEntry(rank=r, generation=1, nbytes=100, check=c) for r, c in enumerate(checks))
            manifest = Manifest(
                run=run.name, job="job", epoch=5, dp=2, pp=1, tp=1, replicated=True, time=1.0, parts=entries
            )
            write_checked(run / step_name(5) / MANIFEST, manifest)
            assert await tuning._pace() == SavePace(disk_Bps=25.0)
            state = UploadState("/upload", "n", "of the manifest", seconds=3.0)
            (run / step_name(5) / UPLOAD).write_bytes(msgspec.json.encode(state))
            assert await tuning._pace() == SavePace(disk_Bps=25.0, upload_s=3.0)
            (run / step_name(5) / UPLOAD).write_bytes(msgspec.json.encode(UploadState("/upload", "n")))
            assert await tuning._pace() == SavePace(disk_Bps=25.0, is_uploading=True)

    play(scenario())
