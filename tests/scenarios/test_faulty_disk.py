"""The device below the checkpoints fails while a job trains: the job continues, and writes when the device works."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import Job
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.load import verify_part
from tests.fork_server.processes import Warm
from tests.recovery.checkpoint.faulty_disk import CHANGES, COMPILER, FaultyDisk
from tests.scenarios.pace import FEW, finish, paced

pytestmark = [
    pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
]  # fmt: skip

STEPS, EVERY = 40, 3
WORDS = ["--steps", str(STEPS), "--dp", "2", "--pp", "1", "--seed", "11", "--width", "32", "--layers", "2"]


def newest(checkpoints: Path) -> int:
    """The newest complete step, every byte checked; 0: none."""
    try:
        source = find(checkpoints)
    except ValueError:
        return 0
    for part in source.manifest.parts:
        verify_part(source.run, source.run.part(source.manifest.epoch, part.rank, part.generation))
    return source.manifest.epoch


def degraded(job: Job) -> list[str]:
    durability: dict[str, Any] = job.state()["protection"]["durability"] or {}
    return [words for words in durability.get("degraded", ()) if "disk level" in words]


def test_training_goes_on_above_a_device_that_fails(warm: Warm, tmp_path: Path) -> None:
    """Each call of the process that writes fails with EIO for a while; that of readers does not."""
    checkpoints = tmp_path / "checkpoints"
    disk = FaultyDisk(checkpoints, tmp_path / "disk", program="checkpoint.writer")
    options = ["--checkpoint-interval", str(EVERY), "--checkpoint-dir", str(checkpoints)]
    words = [*WORDS, "--batch", "2", *FEW]
    job = warm.job(
        directory=tmp_path / "job",
        nodes=1,
        arguments=[*words, *paced(tmp_path / "job", 60), "--save", str(tmp_path / "saved")],
        options=options,
        environment=disk.environment,
    )
    with job:
        job.until(lambda: newest(checkpoints) >= EVERY, 120.0, "a complete step")
        disk.fail(CHANGES, errno.EIO)
        job.until(lambda: disk.struck, 60.0, "a call that fails")
        before, step = newest(checkpoints), job.step()
        (problem, *_) = job.until(lambda: degraded(job), 60.0, "word of the failure")
        assert f"was not written: {checkpoints}: Input/output error" in problem or "Errno 5" in problem
        job.wait_step(step + 2 * EVERY)
        assert newest(checkpoints) == before
        disk.work_again()
        job.until(lambda: newest(checkpoints) > before, 60.0, "a complete step after the failure")
        job.until(lambda: not degraded(job), 60.0, "the end of the warning")
        assert finish(job) == [0], job.tail()
        assert not job.events("rank_lost")
    assert newest(checkpoints) == STEPS
    warm.run_plain(tmp_path / "plain", [*words, "--save", str(tmp_path / "undisturbed")], ranks=2)
    saved, undisturbed = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("saved", "undisturbed"))
    assert saved == undisturbed
