"""An embedding job of two replicas is killed, resumes from a step that holds differences, and ends with equal bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.lib_job import Job
from mainstay.recovery.checkpoint.catalog import bases_of, find
from mainstay.recovery.checkpoint.manifest import CheckpointError, Manifest
from tests.fork_server.processes import Warm
from tests.scenarios.pace import finish, pausing

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]

SCRIPT = Path(__file__).with_name("embedding.py")
STEPS = 60


def job(warm: Warm, directory: Path, *options: str) -> Job:
    return warm.job(
        directory=directory, script=SCRIPT, nodes=1, per_node=2, environment=pausing(directory), options=options,
        arguments=["--steps", str(STEPS), "--save", str(directory / "saved.pt")],
    )  # fmt: skip


def encoded(checkpoints: Path) -> Manifest | None:
    """The newest complete step, if it is the second in a row that holds differences."""
    try:
        manifest = find(checkpoints).manifest
    except CheckpointError:
        return None
    return manifest if len(bases_of(manifest)) > 1 else None


def test_a_job_resumes_from_differences_to_the_same_bits(warm: Warm, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    options = [
        "--checkpoint-interval", "3", "--checkpoint-dir", str(checkpoints), "--checkpoint-encoding", "exact"
    ]  # fmt: skip
    with job(warm, tmp_path / "first", *options) as first:
        first.until(lambda: encoded(checkpoints) is not None, 120.0, "a chain of steps on disk")
        for launcher in first.launchers:
            launcher.kill()
            launcher.wait()
    source = find(checkpoints)
    sizes = {epoch: sum(part.nbytes for part in source.run.parts(epoch)) for epoch in source.run.steps()}
    base = min(bases_of(source.manifest))
    assert all(nbytes < 0.2 * sizes[base] for epoch, nbytes in sizes.items() if epoch > base)
    with job(warm, tmp_path / "second", *options, "--resume", "latest") as second:
        assert finish(second) == [0], second.tail()
        assert f"resuming after step {source.manifest.epoch}" in second.tail(1000)
    with job(warm, tmp_path / "undisturbed") as undisturbed:
        assert finish(undisturbed) == [0], undisturbed.tail()
    found, wanted = (torch.load(tmp_path / name / "saved.pt", weights_only=True) for name in ("second", "undisturbed"))
    assert found.keys() == wanted.keys()
    assert all(found[name].numpy().tobytes() == wanted[name].numpy().tobytes() for name in wanted)
    assert find(checkpoints).manifest.run > source.manifest.run
