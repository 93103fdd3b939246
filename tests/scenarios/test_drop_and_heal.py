"""SIGKILL without standbys: whole replicas continue at once, the lost one comes back, the result has the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib_job import Job, free_port
from tests.fork_server.processes import Warm
from tests.scenarios.pace import finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 40
OPTIONS = ["--standbys", "0", "--on-loss", "drop", "--parity-interval", "5"]
ARGUMENTS = ["--steps", str(STEPS), "--seed", "11", "--width", "32", "--layers", "2", "--batch", "1", "--canonical"]


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS)


@pytest.fixture
def job(warm: Warm, tmp_path: Path) -> Job:
    """Two launchers as two nodes, each with one replica of two stages; not started yet."""
    arguments = [*ARGUMENTS, *paced(tmp_path / "job", 60, 0, 2), "--save", str(tmp_path / "saved")]
    return warm.job(directory=tmp_path / "job", arguments=arguments, options=OPTIONS, port=free_port())


def assert_bit_equal(job: Job, other: Path) -> None:
    assert_same_bits(Path(job.arguments[-1]), other, 4)


def dropped(job: Job, count: int) -> None:
    """Wait until training has gone on without replicas ``count`` times."""
    job.until(lambda: len(drops(job)) >= count, 60.0, f"continuing without a replica, {count}")


def recovered(job: Job, count: int) -> None:
    """Wait until all replicas have come back ``count`` times."""
    job.until(lambda: len(job.events("recovery_completed")) - len(drops(job)) >= count, 90.0, f"replicas back, {count}")


def drops(job: Job) -> list[list[int]]:
    """Replicas away, of each recovery that left some."""
    told = [event["data"].get("absent_replicas", []) for event in job.events("recovery_completed")]
    return [away for away in told if away]


def test_ranks_of_several_replicas_die_and_each_comes_back(job: Job, undisturbed: Path) -> None:
    with job:
        for count, victim in enumerate((3, 0, 2), start=1):
            job.wait_step(job.step() + 1)
            before = job.pids()
            job.kill(victim)
            dropped(job, count)
            recovered(job, count)
            after = job.pids()
            assert [rank for rank in before if before[rank] != after[rank]] == [victim], "no other rank was replaced"
        assert finish(job) == [0, 0], job.tail()
    assert_bit_equal(job, undisturbed)
    assert drops(job) == [[1], [0], [1]]
    assert all(event["data"]["steps_lost"] <= 1 for event in job.events("recovery_completed"))
    # None: one replica alone, if it is that long enough to be verified.
    assert {True} <= {event["data"]["digest_match"] for event in job.events("recovery_verified")} <= {True, None}
    assert job.state()["last_step"] == STEPS


def test_a_node_dies_with_its_memory_and_is_taken_back_when_its_launcher_is_started_again(
    job: Job, undisturbed: Path
) -> None:
    with job:
        job.wait_step(3)
        lost = job.launchers.pop()
        lost.kill()
        lost.wait()
        dropped(job, 1)
        for arena in job.shm.rglob("*/job/node-1/*.arena"):
            arena.unlink()
        job.launchers.append(job._start(1, job.port))
        recovered(job, 1)
        assert finish(job) == [0, 0], job.tail()
    assert_bit_equal(job, undisturbed)
    assert drops(job) == [[1]]
    assert [event["node"] for event in job.events("node_lost")] == ["node-1"]
    assert {rank["node"] for rank in job.state()["topology"]["ranks"]} == {"node-0", "node-1"}


def test_a_slow_replica_is_given_less_and_the_result_has_the_same_bits(job: Job, undisturbed: Path) -> None:
    job.arguments = [*ARGUMENTS, *paced(job.directory, 60, 3), "--save", job.arguments[-1]]
    job.options = ["--standbys", "0", "--micro-batch-assignment", "proportional", "--parity-interval", "0"]
    with job:
        job.wait_step(2)
        before = job.pids()
        changed = job.until(lambda: job.events("recovery_completed"), 90.0, "another assignment")[0]
        assert job.pids() == before, "no rank was replaced"
        assert finish(job) == [0, 0], job.tail()
    assert changed["data"]["steps_lost"] <= 1
    assert not job.events("process_exit", "recovery_failed")
    assert "work is assigned again by the speed of replicas (0: 1.00, 1: 0." in job.log(0).read_text()
    assert_bit_equal(job, undisturbed)
