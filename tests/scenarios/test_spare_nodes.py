"""A node that joined while the job runs takes the ranks of a lost one: nothing waits for a person or a scheduler.

What happens when spare nodes join and are lost is also in ``tests/recovery/simulated/test_scenarios.py``.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from bench.lib_job import Job, free_port
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS, RANKS, PACE_MS = 32, 4, 500
SMALL = ["--width", "32", "--layers", "1", "--batch", "1", *FEW]
ARGUMENTS = ["--steps", str(STEPS), "--seed", "5", *SMALL, "--dp", str(RANKS), "--pp", "1"]
OPTIONS = ["--nnodes", "2:3", "--parity-interval", "0", "--standbys", "0", "--node-timeout", "8"]


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS, RANKS)


@pytest.fixture
def job(warm: Warm, tmp_path: Path) -> Job:
    """Two nodes of two ranks, which may become three; not started yet."""
    arguments = [*ARGUMENTS, *paced(tmp_path / "job", PACE_MS), "--save", str(tmp_path / "saved")]
    return warm.job(directory=tmp_path / "job", arguments=arguments, options=OPTIONS, port=free_port())


def join(job: Job, number: int) -> None:
    """Start another launcher, and wait until its standbys could take the ranks of a whole node."""
    job.launchers.append(job.start_again(number))
    job.nodes = max(job.nodes, number + 1)
    ready = {f"node-{number}": job.per_node}
    job.until(lambda: ready.items() <= job.state()["topology"]["standbys"].items(), 60.0, f"spare node {number}")


def lose(job: Job, number: int, at: int) -> None:
    """SIGKILL the launcher ``at`` this place, and all processes of its node; their memory goes as with the power."""
    doomed = job.children(at)
    launcher = job.launchers.pop(at)
    launcher.kill()
    launcher.wait()
    for directory in job.shm.glob(f"*/job/node-{number}"):
        shutil.rmtree(directory, ignore_errors=True)
    deadline = time.monotonic() + 30.0
    while any(Path(f"/proc/{pid}").exists() for pid in doomed):
        assert time.monotonic() < deadline, "the node's processes did not end"
        time.sleep(0.02)


def homes(job: Job) -> list[str]:
    return [rank["node"] for rank in job.state()["topology"]["ranks"]]


def assert_finished(job: Job, undisturbed: Path) -> None:
    assert finish(job) == [0] * len(job.launchers), job.tail()
    assert_same_bits(Path(job.arguments[-1]), undisturbed, RANKS)
    assert job.state()["last_step"] == STEPS
    assert all(event["data"]["steps_lost"] <= 1 for event in job.events("recovery_completed"))


def test_ranks_of_a_lost_node_train_on_the_spare_node(job: Job, undisturbed: Path) -> None:
    with job:
        job.wait_step(2)
        join(job, 2)
        fatal = job.until(lambda: (job.state()["protection"]["durability"] or {}).get("fatal"), 30.0, "durability")
        assert fatal == [["node-0", "node-1"]], "the spare node holds nothing"
        before = job.pids()
        lose(job, 1, at=1)
        job.wait_recoveries(1)
        assert homes(job) == ["node-0", "node-0", "node-2", "node-2"]
        assert {rank: job.pids()[rank] for rank in (0, 1)} == {rank: before[rank] for rank in (0, 1)}
        assert_finished(job, undisturbed)
    (lost,) = job.events("node_lost")
    assert (lost["node"], lost["data"]["ranks"]) == ("node-1", [2, 3])


def test_the_coordinators_node_is_lost_and_the_spare_takes_its_ranks(job: Job, undisturbed: Path) -> None:
    """Its launcher is started again, and waits as a spare node at the new coordinator."""
    with job:
        job.wait_step(2)
        join(job, 2)
        before = job.pids()
        lose(job, 0, at=0)
        job.wait_recoveries(1)
        assert homes(job) == ["node-2", "node-2", "node-1", "node-1"]
        assert {rank: job.pids()[rank] for rank in (2, 3)} == {rank: before[rank] for rank in (2, 3)}
        join(job, 0)
        lose(job, 1, at=0)
        job.wait_recoveries(2)
        assert homes(job) == ["node-2", "node-2", "node-0", "node-0"]
        assert_finished(job, undisturbed)
    assert [event["node"] for event in job.events("node_lost")] == ["node-0", "node-1"]


def test_parity_brings_the_ranks_of_a_lost_node_to_the_spare_node(warm: Warm, tmp_path: Path) -> None:
    """No rank has a replica: each half of the model was on one node."""
    shape = ["--layers", "4", "--dp", "1", "--pp", str(RANKS)]
    arguments = ["--steps", str(STEPS), "--seed", "5", "--width", "32", "--batch", "1", *FEW, *shape]
    plain = warm.undisturbed(tmp_path / "plain", arguments, RANKS)
    options = [*OPTIONS, "--parity-interval", "2"]
    script = [*arguments, *paced(tmp_path / "job", PACE_MS), "--save", str(tmp_path / "saved")]
    job = warm.job(directory=tmp_path / "job", arguments=script, options=options, port=free_port())
    with job:
        job.wait_step(5)
        join(job, 2)
        lose(job, 1, at=1)
        recovered = job.wait_recoveries(1)
        assert homes(job) == ["node-0", "node-0", "node-2", "node-2"]
        assert finish(job) == [0, 0], job.tail()
    assert_same_bits(tmp_path / "saved", plain, RANKS)
    assert recovered["data"]["steps_lost"] <= 4
