"""Ranks are killed, replicas are away, and more of them resume the job: the same samples follow in the same order."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from bench.lib_job import Job
from mainstay.recovery.checkpoint.catalog import find
from tests.fork_server.processes import Warm
from tests.scenarios.pace import finish, pausing

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

SCRIPT = Path(__file__).with_name("logged_samples.py")
STEPS, LENGTH, GLOBAL_BATCH = 50, 100, 12
"""Six epochs; none ends with a step."""


def job(warm: Warm, directory: Path, dp: int, *options: str) -> Job:
    """One node of ``dp`` ranks; not started yet. Its samples are kept in a folder beside it."""
    kept = directory.parent / "samples"
    kept.mkdir(exist_ok=True)
    return warm.job(
        directory=directory, script=SCRIPT, nodes=1, per_node=dp, options=["--dp", str(dp), "--pp", "1", *options],
        arguments=["--steps", str(STEPS), "--save", str(directory.parent / "saved.pt")],
        environment={"SAMPLES_DIRECTORY": str(kept), **pausing(directory)},
    )  # fmt: skip


def taken(directory: Path) -> list[list[int]]:
    """The samples of each step that counted: of attempts at a micro-batch the last one."""
    lines = [json.loads(line) for file in directory.iterdir() for line in file.read_text().splitlines()]
    last = {(*line["place"], line["number"]): line["samples"] for line in sorted(lines, key=lambda line: line["time"])}
    steps: dict[tuple[int, int], list[int]] = {}
    for (epoch, position, _), samples in sorted(last.items()):
        steps.setdefault((epoch, position), []).extend(samples)
    assert [epoch * LENGTH + position for epoch, position in steps] == [n * GLOBAL_BATCH for n in range(STEPS)]
    return list(steps.values())


def parameters(directory: Path) -> Sequence[bytes]:
    saved = torch.load(directory / "saved.pt", weights_only=True)
    return [tensor.numpy().tobytes() for tensor in saved.values()]


def test_every_sample_follows_once_in_the_same_order(warm: Warm, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    with job(warm, whole / "job", 1) as undisturbed:
        assert finish(undisturbed) == [0], undisturbed.tail()
    disk = ["--checkpoint-interval", "1000", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    with job(warm, broken / "two", 2, *disk) as two:
        two.wait_step(4)
        two.kill(1)
        two.wait_recoveries(1)
        two.wait_step(12)
        two.launchers[0].send_signal(signal.SIGTERM)
        assert two.wait(60.0) == [143], two.tail()
    dropping = ["--standbys", "0", "--on-loss", "drop"]
    with job(warm, broken / "three", 3, *disk, *dropping, "--resume", "latest") as three:
        three.wait_step(find(tmp_path / "checkpoints").manifest.epoch + 4)
        three.kill(0)
        three.wait_recoveries(2)
        assert [event["data"].get("absent_replicas", []) for event in three.events("recovery_completed")][:2] == [
            [0],
            [],
        ]
        assert finish(three) == [0], three.tail()
    found = taken(broken / "samples")
    assert found == taken(whole / "samples")
    order = [sample for step in found for sample in step]
    epochs = [order[at : at + LENGTH] for at in range(0, len(order), LENGTH)]
    assert all(sorted(epoch) == [*range(LENGTH)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs) == 6
    assert parameters(broken) == parameters(whole)
