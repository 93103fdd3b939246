"""Intervals that the coordinator chooses: from what saves took, and from steps that ran beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.agent.messages import Inventory, TransferRates
from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    CheckpointPart,
    Manifest,
    PartEntry,
    RunInfo,
    TensorEntry,
    data_name,
    part_name,
    run_name,
    step_name,
    write_checked,
)
from mainstay.recovery.checkpoint.upload_state import UploadProgress
from mainstay.recovery.controller.monitors.interval_tuning import SavePace
from mainstay.recovery.controller.monitors.snapshot_inventory import SnapshotInventory
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import StepRecord
from tests.recovery.checkpoint.conftest import Ranks
from tests.recovery.checkpoint.own_disks import OwnDisks
from tests.recovery.checkpoint.upload_place import Place


@pytest.fixture
def disk(options: RunOptions, tmp_path: Path) -> RunOptions:
    return dataclasses.replace(options, disk_every=5, checkpoint_dir=tmp_path / "checkpoints")


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator does not ask agents itself, which only pretend."""
    for name in ("checkpoint_monitor", "durability_monitor"):
        monkeypatch.setattr(f"mainstay.recovery.controller.monitors.{name}.LOOK_SECONDS", 1e6)


def inventory(node: str, upload: UploadProgress) -> Inventory:
    return Inventory(node=node, slots=(), parity=(), disk=(), rates=TransferRates(), degraded=(), upload=upload)


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
            for rank in (0, 1):
                (run / step_name(5) / data_name(rank, 1)).touch()
            checks = [write_checked(run / step_name(5) / part_name(p.rank, 1), p).check for p in parts]
            entries = tuple(PartEntry(rank=r, generation=1, nbytes=100, check=c) for r, c in enumerate(checks))
            manifest = Manifest(
                run=run.name, job="job", epoch=5, dp=2, pp=1, tp=1, replicated=True, time=1.0, parts=entries
            )
            write_checked(run / step_name(5) / MANIFEST, manifest)
            assert await tuning._pace() == SavePace(disk_Bps=25.0)
            (run / step_name(5) / MANIFEST).unlink()  # as on a disk of the node's own
            assert await tuning._pace() == SavePace(disk_Bps=25.0)

    play(scenario())


def test_the_time_of_an_upload_is_that_of_the_slowest_node(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None], tmp_path: Path, no_looks: None
) -> None:
    """One that reaches the upload level at a fifth of the other's rate."""
    disks = OwnDisks(Place(Ranks(tmp_path, dp=1, pp=2, sharded=True), str(tmp_path / "level")), tmp_path)
    disks.write_all(10)
    nbytes = sum(path.stat().st_size for path in disks.run(0).step(10).iterdir())
    for node, seconds in enumerate((0.2, 1.0)):
        disks.upload(node, rate=nbytes / seconds)

    async def scenario() -> None:
        async with running(disk, steps=1) as world:
            coordinator, seconds = world.coordinator, [progress.seconds for progress in disks.progress]
            assert 0.15 < seconds[0] < seconds[1]
            for node, progress in zip(("node-0", "node-1"), disks.progress, strict=True):
                coordinator.durability.inventories[node] = inventory(node, progress)
            assert await coordinator.intervals._pace() == SavePace(upload_s=seconds[1])
            coordinator.durability.inventories["node-0"] = inventory("node-0", UploadProgress(is_uploading=True))
            assert await coordinator.intervals._pace() == SavePace(upload_s=seconds[1], is_uploading=True)

    play(scenario())


def test_a_node_whose_uploads_fail_is_not_waited_for_and_is_named_once(
    running: Callable[..., Any], disk: RunOptions, play: Callable[..., None], caplog: Any, no_looks: None
) -> None:
    options = dataclasses.replace(disk, checkpoint_upload="/upload")

    async def scenario() -> None:
        async with running(options, steps=1) as world:
            monitor, seen = world.coordinator.checkpoint_monitor, world.coordinator.durability.inventories

            async def note_upload(progress: UploadProgress) -> dict[str, Any]:
                seen["node-1"] = inventory("node-1", progress)
                monitor._tell_agents()
                await monitor.refresh()
                return monitor.report().get("checkpoints", {})

            problem = "Cannot list s3://b: 403"
            told = (await note_upload(UploadProgress(problem=problem, since=5.0, can_send=False)))["upload_problems"]
            assert told == [{"node": "node-1", "problem": problem, "since": 5.0}]
            await world.until(lambda: world.nodes[0].runs[-1].upload_without == (2, 3))
            await note_upload(UploadProgress(problem="Cannot list s3://b: 500", can_send=False))
            assert (await note_upload(UploadProgress()))["upload_problems"] == []
            await world.until(lambda: world.nodes[0].runs[-1].upload_without == ())
            assert world.nodes[0].runs[-1].common == ()
            kept = SnapshotInventory(
                holding=None, unknown=(), newest=1, protected=None, on_disk=frozenset(), common=frozenset({1})
            )
            world.coordinator.durability.kept = kept
            monitor._tell_agents()
            await world.until(lambda: world.nodes[0].runs[-1].common == (1, 5))
            world.coordinator.durability.kept = dataclasses.replace(kept, common=frozenset(), unknown=("an agent",))
            monitor._tell_agents()
            assert world.coordinator.checkpoints.common == (1, 5), "silence says nothing of a disk"
            lines = [line for line in caplog.messages if line.startswith("checkpoint upload")]
            assert lines == [
                f"checkpoint upload: node node-1 fails, training continues: {problem}",
                "checkpoint upload: node node-1 works again",
            ]

    play(scenario())
