"""An embedding job of two replicas is killed, and resumes: from differences to equal bits, or from near values."""

from __future__ import annotations

from pathlib import Path

import msgspec
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
LOSS_BOUND = 0.005
"""Of 8 bits, relative to the loss of the job that was not killed: as ``bench.checkpoint_size`` states it."""


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
        first.kill_all()
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


def loss(saved: Path) -> float:
    """Over all rows."""
    table = torch.load(saved, weights_only=True)["table"]
    return float((table.sum(dim=1) - 1.0).square().mean())


def test_a_job_continues_from_near_values_only_if_it_may(warm: Warm, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    options = [
        "--checkpoint-interval", "3", "--checkpoint-dir", str(checkpoints), "--checkpoint-encoding", "8bit"
    ]  # fmt: skip

    def quantized() -> bool:
        try:
            return find(checkpoints).manifest.quantized is not msgspec.UNSET
        except CheckpointError:
            return False

    with job(warm, tmp_path / "first", *options) as first:
        first.until(quantized, 120.0, "a quantized step on disk")
        first.kill_all()
    source = find(checkpoints).manifest
    with job(warm, tmp_path / "refused", *options, "--resume", "auto") as refused:
        assert finish(refused)[0] != 0
        said = refused.tail(1000)
    assert f"--resume auto: step {source.epoch} of run {source.run} is quantized (8 bits a value" in said
    assert "continue from it with --accept-quantized" in said
    assert find(checkpoints).manifest == source
    with job(warm, tmp_path / "second", *options, "--resume", "latest", "--accept-quantized") as second:
        assert finish(second) == [0], second.tail()
        assert f"resuming after step {source.epoch} of run {source.run}, from near values: 8 bits" in second.tail(1000)
    last = find(checkpoints).manifest
    assert (last.epoch, last.quantized) == (STEPS, msgspec.UNSET), "the last step of a job is exact"
    with job(warm, tmp_path / "undisturbed") as undisturbed:
        assert finish(undisturbed) == [0], undisturbed.tail()
    found, wanted_loss = loss(tmp_path / "second" / "saved.pt"), loss(tmp_path / "undisturbed" / "saved.pt")
    assert found != wanted_loss
    assert abs(found / wanted_loss - 1) <= LOSS_BOUND
