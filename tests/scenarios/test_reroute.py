"""SIGKILL without standbys: only the lost ranks are away, peers of their stage do their work, and no bit changes.

Three replicas of two stages on two nodes of three ranks, so that a node cuts across a pipeline. Ranks write down what
they computed: every (step, micro-batch, stage) counts once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import Job, free_port
from bench.lib_journal import account
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.xdist_group("training")]

STEPS = 40
ARGUMENTS = ["--steps", str(STEPS), "--seed", "5", "--dp", "3", "--pp", "2", "--layers", "2", "--width", "32",
             "--batch", "1", *FEW, "--canonical"]  # fmt: skip
OPTIONS = ["--standbys", "0", "--on-loss", "reroute", "--parity-interval", "5"]


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS, 6)


@pytest.fixture
def job(warm: Warm, tmp_path: Path) -> Job:
    """Ranks 0 to 2 on node 0, 3 to 5 on node 1: replica 1 has its stages on both. Not started yet."""
    wrote = ["--journal", str(tmp_path / "journal"), "--save", str(tmp_path / "saved")]
    arguments = [*ARGUMENTS, *wrote]
    return warm.job(directory=tmp_path / "job", arguments=arguments, options=OPTIONS, per_node=3, port=free_port())


def away(job: Job) -> list[list[int]]:
    """Ranks away after each recovery, in order."""
    return [event["data"].get("absent_ranks", []) for event in job.events("recovery_completed")]


def until_away(job: Job, ranks: list[int], after: int = 0) -> int:
    """Wait until the job has gone on without exactly these; the number of recoveries up to then."""
    job.until(lambda: ranks in away(job)[after:], 120.0, f"continuing without {ranks}")
    return away(job).index(ranks, after) + 1


def assert_nothing_lost(job: Job) -> None:
    recovered: list[dict[str, Any]] = [event["data"] for event in job.events("recovery_completed")]
    assert all(data["steps_lost"] <= 1 for data in recovered)
    assert not job.events("recovery_failed")
    assert False not in {event["data"]["digest_match"] for event in job.events("recovery_verified")}
    assert job.state()["last_step"] == STEPS
    counted = account([Path(job.arguments[-3])], steps=STEPS, layers=2)
    assert (counted.samples, counted.lost, counted.doubled) == (STEPS * 6, 0, 0)


def test_ranks_of_both_stages_die_one_after_another_and_two_at_once(job: Job, undisturbed: Path) -> None:
    job.arguments = [*paced(job.directory, 200, 1), *job.arguments]
    with job:
        seen = 0
        for victims in ([3], [0], [2, 5]):
            job.wait_step(job.step() + 1)
            before = job.pids()
            for victim in victims:
                job.kill(victim)
            seen = until_away(job, victims, seen)
            seen = until_away(job, [], seen)
            after = job.pids()
            assert [rank for rank in before if before[rank] != after[rank]] == victims, "no other rank was replaced"
        assert finish(job) == [0, 0], job.tail()
    assert_same_bits(Path(job.arguments[-1]), undisturbed, 6)
    assert_nothing_lost(job)
    assert not any("absent_replicas" in event["data"] for event in job.events("recovery_completed")), (
        "no pipeline was dropped"
    )


def test_a_node_across_pipelines_is_lost_then_a_rank_and_all_come_back(job: Job, undisturbed: Path) -> None:
    """With node 1 stage 1 of replica 1 goes and all of replica 2: rank 2 continues with the stage 1 of replica 0."""
    job.arguments = [*paced(job.directory, 120, 1), *job.arguments]
    with job:
        job.wait_step(2)
        lost = job.launchers.pop()
        lost.kill()
        lost.wait()
        seen = until_away(job, [3, 4, 5])
        job.wait_step(job.step() + 2)
        job.kill(2)
        seen = until_away(job, [2, 3, 4, 5], seen)
        seen = until_away(job, [3, 4, 5], seen)
        job.launchers.append(job._start(1, job.port))
        until_away(job, [], seen)
        assert finish(job) == [0, 0], job.tail()
    assert_same_bits(Path(job.arguments[-1]), undisturbed, 6)
    assert_nothing_lost(job)
    assert {tuple(event["data"].get("absent_replicas", [])) for event in job.events("recovery_completed")} == {
        (),
        (2,),
        (1, 2),
    }
    assert {rank["node"] for rank in job.state()["topology"]["ranks"]} == {"node-0", "node-1"}
