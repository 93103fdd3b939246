"""``--resume`` where files of the newest step are damaged: the job continues from the step before, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib_job import Job
from mainstay.recovery.checkpoint.catalog import RunDirectory, runs
from tests.fork_server.processes import Warm
from tests.scenarios.test_resume import SMALL, saved

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]

WORDS = ["--dp", "2", "--pp", "1", *SMALL]


def run_job(warm: Warm, directory: Path, name: str, steps: int, *more: str) -> Job:
    """Two nodes of one rank each, which share the checkpoint directory."""
    options = ["--parity-interval", "5", "--checkpoint-interval", "5", "--checkpoint-keep", "9", *more]
    arguments = [*WORDS, "--steps", str(steps), "--save", str(directory / f"saved-{name}")]
    options += ["--checkpoint-dir", str(directory / "checkpoints")]
    return warm.job(directory=directory / name, arguments=arguments, nodes=2, per_node=1, options=options)


def first_run(warm: Warm, directory: Path, *more: str) -> RunDirectory:
    with run_job(warm, directory, "first", 15, *more) as first:
        assert first.wait() == [0, 0], first.tail()
    (run,) = runs(directory / "checkpoints")
    assert [manifest.epoch for manifest in run.complete()] == [15, 10, 5, 0]
    return run


def damage(run: RunDirectory, epoch: int, *, cut: bool = False) -> None:
    """Flip a bit of each rank's file, or cut the files off, where a tensor lies in the middle of them."""
    for entry in run.manifest(epoch).parts:
        part = run.part(epoch, entry.rank, entry.generation)
        data = bytearray(run.data_file(part).read_bytes())
        at = len(data) // 2 if part.is_encoded else part.tensors[len(part.tensors) // 2].at
        data[at] ^= 1
        run.data_file(part).write_bytes(data[:at] if cut else data)


@pytest.mark.parametrize(
    ("cut", "damaged", "encoding"), [(False, (15,), "full"), (True, (10, 15), "full"), (False, (15,), "exact")]
)
def test_the_job_continues_from_the_step_before(
    warm: Warm, tmp_path: Path, cut: bool, damaged: tuple[int, ...], encoding: str
) -> None:
    run = first_run(warm, tmp_path, "--checkpoint-encoding", encoding)
    for epoch in damaged:
        damage(run, epoch, cut=cut)
    resume = ("--resume", "latest", "--max-restarts", "0", "--checkpoint-encoding", encoding)
    with run_job(warm, tmp_path, "second", 20, *resume) as second:
        assert second.wait() == [0, 0], second.tail()
        said = second.tail(400)
    for epoch in damaged:
        assert f"step {epoch} is passed over: " in said
        assert f"step-{epoch:08d}/__" in said
    assert "trains without protection" not in said
    assert runs(tmp_path / "checkpoints")[1].info().resumed == (run.id, min(damaged) - 5)
    warm.run_plain(tmp_path / "plain", [*WORDS, "--steps", "20", "--save", str(tmp_path / "undisturbed")], ranks=2)
    assert saved(tmp_path / "saved-second") == saved(tmp_path / "undisturbed")
    assert run.steps() == [0, 5, 10, 15]


def test_where_all_steps_are_damaged_the_job_ends(warm: Warm, tmp_path: Path) -> None:
    run = first_run(warm, tmp_path)
    for epoch in run.steps():
        damage(run, epoch)
    with run_job(warm, tmp_path, "second", 20, "--resume", "auto") as second:
        assert second.wait() == [1, 1], second.tail()
        said = second.tail(400)
    reason = next(line for line in said.splitlines() if "job job failed" in line)
    assert "cannot continue from step 15" in reason
    assert "step-00000015/__" in reason
    assert "no older complete step of any run" in reason
    assert [manifest.epoch for manifest in run.complete()] == [15, 10, 5, 0]
