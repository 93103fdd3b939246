"""What a lost disk had comes back without a command also where steps hold differences, or slots hold shares."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import free_port
from mainstay.recovery.checkpoint.catalog import RunDirectory
from tests.fork_server.processes import Warm
from tests.scenarios.pace import finish, pausing
from tests.scenarios.test_disk_rebuild import NODES, OPTIONS, Site, kill
from tests.scenarios.test_encoded_checkpoints import SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.xdist_group("training")]

SHAPES = {"exact": ["--dp", "1", "--pp", str(NODES)], "shares": ["--dp", str(NODES)]}
MODES = {"exact": ["--checkpoint-encoding", "exact"], "shares": ["--shard-snapshots"]}
KEPT = 3
"""Complete steps; a chain of differences is longer."""


def job_settings(mode: str, home: Path) -> dict[str, Any]:
    """Of a job that writes ``saved.pt``, and ``saved.N.pt`` of each further stage."""
    arguments = ["--steps", "200", "--pause", "0.25", "--save", str(home / "saved.pt"), *SHAPES[mode]]
    return {"script": SCRIPT, "arguments": arguments, "environment": {"PACED_WHILE_FILE": str(home / "job" / "paced")}}


def site(warm: Warm, mode: str, home: Path) -> Site:
    options = [*OPTIONS, "--checkpoint-keep", str(KEPT), *MODES[mode]]
    return Site(warm, home, **job_settings(mode, home) | {"options": options, "environment": pausing(home / "job")})


@pytest.fixture(scope="module", params=list(MODES))
def undisturbed(
    request: pytest.FixtureRequest, warm: Warm, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, bytes]]:
    """A mode, and the bits of a job to which nothing happened."""
    home = tmp_path_factory.mktemp("undisturbed")
    with warm.job(directory=home / "job", nodes=NODES, per_node=1, **job_settings(request.param, home)) as job:
        assert job.wait() == [0] * NODES, job.tail()
    return request.param, bits(home)


def bits(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.glob("saved*.pt")}


def differences(run: RunDirectory) -> list[int]:
    """Steps of which the part of the run's only disk needs another step."""
    parts = [run.part(file.epoch, file.rank, file.generation) for epoch in run.steps() for file in run.parts(epoch)]
    return [part.epoch for part in parts if part.base]


def until_protected(found: Site, mode: str) -> None:
    """Steps with parity are on all disks, and where they can be, differences beyond what is kept as such."""

    def ready() -> bool:
        steps = found.protected()
        return len(steps) >= 2 and (mode != "exact" or len(differences(found.run(1))) > KEPT)

    found.job.until(ready, 150.0, "parity on all disks")


def test_the_part_of_a_lost_disk_comes_back_in_the_job(
    warm: Warm, tmp_path: Path, undisturbed: tuple[str, dict[str, bytes]]
) -> None:
    """Two of three memories and one disk are lost."""
    mode, expected = undisturbed
    found = site(warm, mode, tmp_path)
    with found.job as job:
        until_protected(found, mode)
        found.join(3)
        found.lose_memory(1)
        found.lose(2)
        job.wait_recoveries(1, 120.0)
        again = found.disks[3]
        job.until(lambda: any(again.glob("*/step-*/parity-*.json")), 60.0, "the next loss of a disk is borne too")
        assert finish(job) == [0] * NODES, job.tail()
    (done,) = job.events("recovery_completed")
    assert done["data"]["epoch"] > 0
    log = job.tail(100_000)
    assert ": rank 2 was rebuilt from parity on the disks of node-0, node-1, in " in log
    assert bits(tmp_path) == expected


def test_resume_takes_the_step_that_all_disks_give_together(
    warm: Warm, tmp_path: Path, undisturbed: tuple[str, dict[str, bytes]]
) -> None:
    """All memory is lost, and one disk; or of that the full step that differences were written against."""
    mode, expected = undisturbed
    found = site(warm, mode, tmp_path)
    with found.job as job:
        until_protected(found, mode)
        kill(job)
    newest = found.protected()[-1]
    run = found.run(1).id
    for here in map(found.run, range(NODES)):
        for epoch in here.steps():
            if epoch > newest:  # of which parity was not written everywhere yet
                shutil.rmtree(here.step(epoch))
    shutil.rmtree(found.disks[0] if mode == "shares" else found.run(0).step(found.run(0).steps()[0]))
    again = warm.job(
        directory=tmp_path / "again", nodes=NODES, per_node=1, port=free_port(), own=job.own,
        **job_settings(mode, tmp_path / "resumed") | {"options": [*OPTIONS, *MODES[mode], "--resume", "latest"]},
    )  # fmt: skip
    (tmp_path / "resumed").mkdir()
    with again:
        assert again.wait() == [0] * NODES, again.tail()
    assert f"resuming after step {newest} of run {run}, from the disks of all nodes" in (said := again.tail(100_000))
    assert f"step {newest} of run {run}: rank 0 was rebuilt from parity on the disks of node-1, node-2, in " in said
    assert bits(tmp_path / "resumed") == expected
