"""Each node has a disk of its own, all memory and some disks are lost: parity on the other disks is enough."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mainstay.recovery.checkpoint.catalog import runs
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint_rebuild import rebuild_step
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

NODES = 4
SHAPE = ["--dp", "1", "--pp", str(NODES), "--layers", str(NODES)]
ARGUMENTS = ["--steps", "30", "--seed", "11", "--width", "32", "--batch", "1", *FEW, *SHAPE]
"""No rank has a replica."""


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS, NODES)


def protected_steps(disks: list[Path]) -> set[int]:
    """Steps of which every node has its part and its parity."""
    found = [run for disk in disks if disk.is_dir() for run in runs(disk)]
    steps = [{epoch for epoch in run.steps() if run.parts(epoch) and any(run.parity(epoch))} for run in found]
    return set.intersection(*steps) if len(steps) == len(disks) else set()


def train_and_kill(warm: Warm, home: Path, scheme: str) -> list[Path]:
    """The nodes' checkpoint directories after a kill of everything, with the second protected step on all of them."""
    disks = [home / f"disk-{number}" for number in range(NODES)]
    job = warm.job(
        directory=home / "first",
        arguments=[*ARGUMENTS, *paced(home / "first", 100)],
        nodes=NODES,
        per_node=1,
        options=["--parity-interval", "5", "--checkpoint-interval", "5", "--checkpoint-parity", "--protection", scheme],
        own={number: ["--checkpoint-dir", str(disk)] for number, disk in enumerate(disks)},
    )
    with job:
        job.until(lambda: max(protected_steps(disks), default=0) >= 10, 120.0, "parity on all disks")
        job.kill_all()
    return disks


def collect(disks: list[Path], whole: Path) -> Path:
    """What is left of the disks, in one directory."""
    for disk in filter(Path.is_dir, disks):
        shutil.copytree(disk, whole, dirs_exist_ok=True)
    return whole


@pytest.mark.parametrize(("scheme", "lost"), [("xor", [2]), ("rs:2", [0, 3])])
def test_a_job_continues_to_the_same_bits_without_the_disks_that_the_scheme_bears(
    warm: Warm, tmp_path: Path, undisturbed: Path, scheme: str, lost: list[int]
) -> None:
    disks = train_and_kill(warm, tmp_path, scheme)
    for number in lost:
        shutil.rmtree(disks[number])
    manifest, decoded = rebuild_step(collect(disks, tmp_path / "whole"))
    assert manifest.epoch >= 10
    assert decoded == lost
    with pytest.raises(CheckpointError, match=f"{len(lost) + 1} of 4 parts .* are lost; it covers {len(lost)}$"):
        rebuild_step(collect([disk for disk in disks if disk != disks[1]], tmp_path / "less"), step=manifest.epoch)
    job = warm.job(
        directory=tmp_path / "second",
        arguments=[*ARGUMENTS, "--save", str(tmp_path / "saved")],
        nodes=NODES,
        per_node=1,
        options=["--checkpoint-dir", str(tmp_path / "whole"), "--resume", "latest"],
    )
    with job:
        assert job.wait() == [0] * NODES, job.tail()
    assert_same_bits(tmp_path / "saved", undisturbed, NODES)
    assert f"resuming after step {manifest.epoch} of run" in job.log(0).read_text()
