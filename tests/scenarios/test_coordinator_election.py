"""The coordinator dies, is stopped, or is cut off: one other launcher continues the job, bit for bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench.lib_job import Job, free_port
from bench.lib_partition import HOST, Cut
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 30
RANKS = 3
SMALL = ["--width", "32", "--layers", "1", "--batch", "1", *FEW]
ARGUMENTS = ["--steps", str(STEPS), "--seed", "5", *SMALL, "--dp", str(RANKS), "--pp", "1"]


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS, RANKS)


@pytest.fixture
def job(warm: Warm, tmp_path: Path) -> Job:
    """Three nodes of one rank; not started yet."""
    return warm.job(
        directory=tmp_path / "job",
        arguments=[*ARGUMENTS, *paced(tmp_path / "job", 50), "--save", str(tmp_path / "saved")],
        nodes=3,
        per_node=1,
        options=["--parity-interval", "0", "--standbys", "1", "--node-timeout", "8"],
    )


def assert_bit_equal(job: Job, undisturbed: Path) -> None:
    assert_same_bits(Path(job.arguments[-1]), undisturbed, RANKS)


def assert_one_at_a_time(job: Job) -> None:
    """The old coordinator said nothing of how the job ended, and formed nothing after the one new one had begun."""
    (new,) = [told for number in (1, 2) if (told := job.events_of(number))]
    old = job.events_of(0)
    assert [e for e in old if e["kind"] == "job_finished"] == []
    formed = max(e["generation"] for e in old if e["kind"] in {"job_started", "recovery_completed"})
    assert min(e["generation"] for e in new if e["kind"] == "recovery_completed") > formed
    (finished,) = [e for e in new if e["kind"] == "job_finished"]
    assert finished["data"]["state"] == "finished"
    assert job.state()["last_step"] == STEPS


def lose_coordinator(job: Job) -> None:
    job.launchers[0].kill()
    job.launchers[0].wait()
    job.launchers = job.launchers[1:]


def test_killed_at_rest(job: Job, undisturbed: Path) -> None:
    with job:
        job.wait_step(8)
        before = job.pids()
        lose_coordinator(job)
        recovered = job.wait_recoveries(1)
        after = job.pids()
        assert finish(job) == [0, 0], job.tail()
    assert_bit_equal(job, undisturbed)
    assert_one_at_a_time(job)
    assert {r: after[r] for r in (1, 2)} == {r: before[r] for r in (1, 2)}
    assert recovered["data"]["steps_lost"] <= 1
    (lost,) = job.events("node_lost")
    assert (lost["node"], lost["data"]["coordinator"], lost["data"]["ranks"]) == ("node-0", "node-1", [0])


def test_killed_in_the_middle_of_a_recovery(job: Job, undisturbed: Path) -> None:
    with job:
        job.wait_step(6)
        job.kill(2)
        job.until(lambda: job.events("process_exit"), 30.0, "the exit to be known")
        lose_coordinator(job)
        job.wait_recoveries(1)
        assert finish(job) == [0, 0], job.tail()
    assert_bit_equal(job, undisturbed)
    assert_one_at_a_time(job)


def test_stopped_and_awake_again(job: Job, undisturbed: Path) -> None:
    """SIGSTOP of the launcher that coordinates; when it wakes, the job has gone on without it."""
    with job:
        job.wait_step(6)
        old = job.launchers.pop(0)
        os.kill(old.pid, signal.SIGSTOP)
        try:
            job.wait_recoveries(1)
        finally:
            os.kill(old.pid, signal.SIGCONT)
        assert old.wait(30.0) == 70, job.tail()
        assert finish(job) == [0, 0], job.tail()
    assert_bit_equal(job, undisturbed)
    assert_one_at_a_time(job)
    assert "coordinates no more" in job.log(0).read_text()


def test_cut_off(job: Job, undisturbed: Path) -> None:
    """Nothing passes between node 0's launcher and the others, and nothing tells them: each side must find out itself.

    Ranks still reach one another, which makes it harder: no rank would stop on its own.
    """
    job.port, election_endpoint = free_port(), free_port()
    job.reach = {1: HOST, 2: HOST}
    job.own = {0: ["--launcher-endpoint", f"{HOST}:{election_endpoint}"]}
    with Cut(job.port, election_endpoint) as network, job:
        job.wait_step(6)
        network.cut()
        old = job.launchers.pop(0)
        assert old.wait(60.0) == 70, job.tail()
        job.wait_recoveries(1)
        assert finish(job) == [0, 0], job.tail()
    assert_bit_equal(job, undisturbed)
    assert_one_at_a_time(job)
    assert "may have chosen another coordinator" in job.log(0).read_text()


def test_the_old_coordinators_node_is_taken_back_when_its_launcher_is_started_again(warm: Warm, tmp_path: Path) -> None:
    """There is no standby: two replicas continue under another coordinator, which the third finds where it is now."""
    arguments = [*ARGUMENTS, "--canonical"]
    plain = tmp_path / "plain"
    warm.run_plain(plain, [*arguments, "--save", str(plain / "saved")], ranks=RANKS)
    job = warm.job(
        directory=tmp_path / "job",
        arguments=[*arguments, *paced(tmp_path / "job", 400, 1), "--save", str(tmp_path / "saved")],
        nodes=3,
        per_node=1,
        options=["--parity-interval", "0", "--standbys", "0", "--on-loss", "drop", "--node-timeout", "8"],
        port=free_port(),
    )
    with job:
        job.wait_step(2)
        lose_coordinator(job)
        job.wait_recoveries(1)
        job.launchers.insert(0, job._start(0, job.port))
        job.wait_recoveries(2, 120.0)
        assert {rank["node"] for rank in job.state()["topology"]["ranks"]} == {"node-0", "node-1", "node-2"}
        assert finish(job) == [0, 0, 0], job.tail()
    assert_bit_equal(job, plain / "saved")
    away, recovered = [event["data"].get("absent_ranks") for event in job.events("recovery_completed")]
    assert (away, recovered) == ([0], None)
    assert "this node joins it again" in job.log(0).read_text()
