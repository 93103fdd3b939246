"""SIGKILL of ranks, agents and nodes under training: it continues, and its result is the undisturbed one to the bit."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from bench.lib_job import Job
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 30
ARGUMENTS = ["--steps", str(STEPS), "--seed", "11", "--width", "32", "--layers", "2", "--batch", "1", *FEW]
SEED = 20260729


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS)


@pytest.fixture
def job(warm: Warm, tmp_path: Path) -> Job:
    """Two launchers on loopback as two nodes, 2 x 2 ranks; not started yet."""
    options = ["--parity-interval", "5", "--standbys", "2"]
    arguments = [*ARGUMENTS, *paced(tmp_path / "job", 50), "--save", str(tmp_path / "saved")]
    return warm.job(directory=tmp_path / "job", arguments=arguments, options=options)


def saved(job: Job) -> Path:
    return Path(job.arguments[-1])


def assert_ended_well(job: Job, undisturbed: Path) -> None:
    assert finish(job) == [0, 0], job.tail()
    assert_same_bits(saved(job), undisturbed, 4)
    assert job.state()["state"] == "finished"
    assert job.state()["last_step"] == STEPS


def test_one_rank(job: Job, undisturbed: Path) -> None:
    victim = random.Random(SEED).randrange(4)
    with job:
        job.wait_step(8)
        before = job.pids()
        killed = job.kill(victim)
        recovered = job.wait_recoveries(1)
        after = job.pids()
        assert_ended_well(job, undisturbed)
    assert {r: p for r, p in after.items() if r != victim} == {r: p for r, p in before.items() if r != victim}
    assert after[victim] != before[victim]
    assert recovered["data"]["steps_lost"] <= 1
    assert 0.0 < recovered["time"] - killed < 30.0
    phases = recovered["data"]["seconds"]
    assert set(phases) == {"detect", "fence", "decide", "regroup", "first_step", "total"}
    assert phases["total"] == pytest.approx(sum(v for k, v in phases.items() if k != "total"))
    (verified,) = job.events("recovery_verified")
    assert verified["data"]["digest_match"] is True
    assert verified["data"]["steps_committed"] == 3
    (exited,) = [event for event in job.events("process_exit") if not event["data"]["expected"]]
    assert (exited["rank"], exited["data"]["signal"], exited["data"]["pid"]) == (victim, 9, before[victim])


def test_a_second_rank_while_the_first_is_being_restored(job: Job, undisturbed: Path) -> None:
    with job:
        job.wait_step(6)
        job.kill(0)
        job.until(lambda: job.events("recovery_planned"), 30.0, "the first plan")
        job.kill(3)
        job.wait_recoveries(1)
        assert_ended_well(job, undisturbed)
    assert job.state()["generation"] == 3
    assert len(job.events("recovery_completed")) == 1


def test_the_ranks_of_a_node_with_its_agent_and_its_memory(job: Job, undisturbed: Path) -> None:
    """Nothing of node 1 is left but its launcher: the state comes from the other node."""
    with job:
        job.wait_step(12)
        agents = [pid for pid, command in job.children(1).items() if "mainstay.recovery.agent" in command]
        assert agents
        pids = job.pids()
        for pid in [*agents, pids[2], pids[3]]:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        for arena in job.shm.rglob("*/job/node-1/*.arena"):
            arena.unlink()
        job.wait_recoveries(1)
        assert_ended_well(job, undisturbed)
    sources = {
        r["source"] for e in job.events("recovery_planned") for r in e["data"]["plan"]["alternatives"][0]["restores"]
    }
    assert sources & {"peer_copy", "parity"}


def test_a_whole_node_moves_to_the_standbys_of_the_other(job: Job, undisturbed: Path) -> None:
    """SIGKILL of the launcher takes everything of the node with it; its memory is removed as a reboot would."""
    with job:
        job.wait_step(12)
        lost = job.children(1)
        job.launchers[1].kill()
        job.launchers[1].wait()
        job.launchers = job.launchers[:1]
        assert finish(job) == [0]  # which may take less time than the kernel needs for the lost node's memory
        assert len(job.events("recovery_completed")) == 1
        deadline = time.monotonic() + 20.0
        while left := [pid for pid in lost if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, f"processes of the lost node live on: {left}"
            time.sleep(0.05)
    assert_same_bits(saved(job), undisturbed, 4)
    assert {rank["node"] for rank in job.state()["topology"]["ranks"]} == {"node-0"}
    (event,) = job.events("node_lost")
    assert event["node"] == "node-1"


def test_everything_in_memory_is_gone(job: Job, undisturbed: Path) -> None:
    """All ranks, both agents, all arenas: the newest snapshot that is on disk for every rank brings the job back."""
    job.options = [*job.options, "--checkpoint-interval", "5", "--checkpoint-dir", str(job.directory / "checkpoints")]
    with job:
        written = job.directory / "checkpoints"
        job.wait_step(6)
        job.until(lambda: [*written.glob("*/step-*/manifest.json")], 60.0, "a whole step on disk")
        agents = [
            pid
            for number in range(2)
            for pid, words in job.children(number).items()
            if "mainstay.recovery.agent" in words
        ]
        for pid in [*job.pids().values(), *agents]:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        for arena in job.shm.rglob("*.arena"):
            arena.unlink()
        job.wait_recoveries(1)
        assert_ended_well(job, undisturbed)
    assert job.events("recovery_planned")[-1]["data"]["plan"]["chosen"] == "disk_restart"


def test_random_kills(job: Job, undisturbed: Path) -> None:
    """SIGKILL at random moments, the next one perhaps before the last is recovered from; ``bench/kill_matrix.py``
    kills again and again."""
    chance = random.Random(SEED)
    kills = 3
    with job:
        job.wait_step(2)
        for number in range(kills):
            target = min(STEPS - 6, 2 + number * 5) + chance.random()
            job.until(lambda goal=int(target): job.step() >= goal, 60.0, "progress")
            job.kill(chance.randrange(4))
        assert_ended_well(job, undisturbed)
    assert all(event["data"]["steps_lost"] <= 1 for event in job.events("recovery_completed"))


def test_nothing_is_left_behind(job: Job) -> None:
    """SIGTERM to the coordinator's launcher ends the job on every node, and every process of it."""
    with job:
        job.wait_step(3)
        started = {pid for number in range(2) for pid in job.children(number)}
        assert len(started) >= 4 + 2 * 2
        job.launchers[0].send_signal(signal.SIGTERM)
        assert job.wait(30.0) == [143, 143], job.tail()
        assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
        assert not list(job.shm.rglob("*.arena"))
    assert job.state()["state"] == "failed"
