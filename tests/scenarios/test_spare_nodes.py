"""A node that joined while the job runs takes the ranks of a lost one: nothing waits for a person or a scheduler."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from bench.lib_job import Job, free_port
from tests.fork_server.processes import Warm
from tests.scenarios.pace import PACE
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS, RANKS = 60, 4
SMALL = ["--width", "32", "--layers", "1", "--batch", "1"]
ARGUMENTS = ["--steps", str(STEPS), "--seed", "5", *SMALL, "--dp", str(RANKS), "--pp", "1"]
OPTIONS = ["--nnodes", "2:3", "--parity-interval", "0", "--standbys", "0", "--node-timeout", "8"]


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS, RANKS)


@pytest.fixture
def job(warm: Warm, tmp_path: Path) -> Job:
    """Two nodes of two ranks, which may become three; not started yet."""
    arguments = [*ARGUMENTS, *PACE, "--save", str(tmp_path / "saved")]
    return warm.job(directory=tmp_path / "job", arguments=arguments, options=OPTIONS, port=free_port())


def join(job: Job, number: int) -> None:
    """Start another launcher, and wait until its standbys could take the ranks of a whole node."""
    job.launchers.append(job._start(number, job.port))
    job.nodes = max(job.nodes, number + 1)
    ready = {f"node-{number}": job.per_node}
    job.until(lambda: ready.items() <= job.state()["topology"]["standbys"].items(), 60.0, f"spare node {number}")


def lose(job: Job, number: int) -> None:
    """SIGKILL a launcher, and with it all processes of its node; their memory goes as with the power."""
    launcher = job.launchers[number]
    doomed = job.children(number)
    launcher.kill()
    launcher.wait()
    shutil.rmtree(job.shm / "job" / f"node-{number}", ignore_errors=True)
    for directory in job.shm.glob(f"*/job/node-{number}"):
        shutil.rmtree(directory, ignore_errors=True)
    job.launchers.remove(launcher)
    deadline = time.monotonic() + 30.0
    while any(Path(f"/proc/{pid}").exists() for pid in doomed):
        assert time.monotonic() < deadline, "the node's processes did not end"
        time.sleep(0.02)


def homes(job: Job) -> list[str]:
    return [rank["node"] for rank in job.state()["topology"]["ranks"]]


def assert_finished(job: Job, undisturbed: Path) -> None:
    assert job.wait() == [0] * len(job.launchers), job.tail()
    assert_same_bits(Path(job.arguments[-1]), undisturbed, RANKS)
    assert job.state()["last_step"] == STEPS
    assert all(event["data"]["steps_lost"] <= 1 for event in job.events("recovery_completed"))


def test_ranks_of_a_lost_node_train_on_the_spare_node(job: Job, undisturbed: Path) -> None:
    with job:
        job.wait_step(4)
        join(job, 2)
        before = job.pids()
        lose(job, 1)
        job.wait_recoveries(1)
        assert homes(job) == ["node-0", "node-0", "node-2", "node-2"]
        assert {rank: job.pids()[rank] for rank in (0, 1)} == {rank: before[rank] for rank in (0, 1)}
        assert_finished(job, undisturbed)
    (lost,) = job.events("node_lost")
    assert (lost["node"], lost["data"]["ranks"]) == ("node-1", [2, 3])
