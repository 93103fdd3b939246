"""A device that computes wrong bits now and then, hunted by the job itself: real processes, real gloo, no mercy.

The end of each story is the clean run's parameters, to the bit: the wrong numbers are gone, and no step is lost.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.lib_job import Job
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, hold
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.xdist_group("training")]

SMALL = ("--seed", "5", "--width", "32", "--batch", "1", *FEW)
Start = Callable[..., Job]


@pytest.fixture
def start(warm: Warm, tmp_path: Path) -> Start:
    """A job of one node; not started yet.

    Steps of a small model outrun a coordinator that waits for a core. From step ``slow`` on they do not, until the
    story is over: it must act before the next thing happens.
    """

    def make(*words: str, fault: str, ranks: int, options: tuple[str, ...], slow: int = 0, ms: int = 40) -> Job:
        faults = f"{fault};sleep:rank=0,step={slow},ms={ms},file={hold(tmp_path / 'job')}"
        disk = ("--checkpoint-dir", str(tmp_path / "checkpoints"))
        arguments = [*words, *SMALL, "--save", str(tmp_path / "saved"), "--faults", faults]
        return warm.job(
            directory=tmp_path / "job", arguments=arguments, nodes=1, per_node=ranks, options=[*disk, *options]
        )

    return make


def assert_as_undisturbed(warm: Warm, job: Job, words: tuple[str, ...], tmp_path: Path) -> None:
    assert finish(job, 300.0) == [0], job.tail()
    warm.run_plain(tmp_path / "plain", [*words, *SMALL, "--save", str(tmp_path / "plain" / "saved")], job.per_node)
    assert_same_bits(tmp_path / "saved", tmp_path / "plain" / "saved", job.per_node)


def test_a_rank_whose_updates_are_wrong_now_and_then(start: Start, warm: Warm, tmp_path: Path) -> None:
    """Digests agree at step 50 and not at step 100; replays from step 50 name the rank, which gets another device."""
    words = ("--steps", "125", "--dp", "4", "--pp", "1", "--layers", "1")
    options = ("--on-numeric-anomaly", "replay", "--checkpoint-interval", "25")
    with start(*words, fault="flip_update:rank=2,step=60,p=0.4", slow=95, ranks=4, options=options) as job:
        job.until(lambda: job.step() >= 1, 120.0, "the first step")
        before = job.pids()
        job.until(lambda: job.events("step_replay_finished"), 200.0, "the replay")
        job.wait_recoveries(1, 60.0)
        after = job.pids()
        assert_as_undisturbed(warm, job, words, tmp_path)
    (event,) = job.events("step_replay_finished")
    (culprit,) = event["data"]["culprits"]
    assert (event["data"]["outcome"], event["data"]["epoch"], culprit["rank"]) == ("found", 50, 2)
    assert 1 <= culprit["shown"] <= culprit["replays"]
    assert {rank for rank in before if before[rank] != after[rank]} == {2}
    (recovered,) = job.events("recovery_completed")
    assert recovered["data"]["epoch"] == 50
    assert job.events("recovery_verified")[0]["data"]["digest_match"] is True


def test_wrong_gradients_that_all_replicas_average_are_found_by_the_timetable(
    start: Start, warm: Warm, tmp_path: Path
) -> None:
    """No digest and no norm shows it. Two pipelines of two stages, cut along and across."""
    words = ("--steps", "55", "--dp", "2", "--pp", "2", "--layers", "2")
    options = ("--step-replay-every", "20", "--checkpoint-interval", "10")
    with start(*words, fault="flip:rank=1,step=35,p=0.5", ranks=4, options=options) as job:
        job.until(lambda: len(job.events("step_replay_finished")) >= 2, 200.0, "two replays")
        assert_as_undisturbed(warm, job, words, tmp_path)
    first, second, *rest = job.events("step_replay_finished")
    assert (first["data"]["outcome"], first["data"]["culprits"]) == ("clean", [])
    assert second["data"]["outcome"] == "found"
    assert [entry["rank"] for entry in second["data"]["culprits"]] == [1]
    assert {entry["data"]["outcome"] for entry in rest} <= {"clean"}
    (recovered,) = job.events("recovery_completed")  # what found no rank is no recovery
    # The newest file from before the clean replay, which began at step 20, or 19 where a rank had not come as far.
    assert first["data"]["epoch"] in {19, 20}
    assert recovered["data"]["epoch"] == first["data"]["epoch"] // 10 * 10
    assert job.events("recovery_verified")[0]["data"]["digest_match"] is True


def test_asked_by_hand_in_a_healthy_job_and_a_rank_dies_in_it(start: Start, warm: Warm, tmp_path: Path) -> None:
    """No rank is blamed, and the job recovers from any failure in a replay as always."""
    words = ("--steps", "60", "--dp", "2", "--pp", "1", "--layers", "1")
    with start(*words, fault="", ms=60, ranks=2, options=("--checkpoint-interval", "20")) as job:
        job.until(lambda: job.step() >= 5, 120.0, "step 5")
        job.launchers[0].send_signal(signal.SIGUSR2)
        job.until(lambda: job.state()["state"] == "recovering", 30.0, "a replay")
        job.kill(1)
        job.wait_recoveries(1, 90.0)
        job.until(lambda: job.state()["state"] == "running", 60.0, "training")
        seen = len(job.events("step_replay_finished"))  # 0, unless it was over before the kill
        job.launchers[0].send_signal(signal.SIGUSR2)
        job.until(lambda: len(job.events("step_replay_finished")) > seen, 60.0, "a whole replay")
        assert_as_undisturbed(warm, job, words, tmp_path)
    assert {event["data"]["outcome"] for event in job.events("step_replay_finished")} <= {"clean"}
    assert all(event["data"]["culprits"] == [] for event in job.events("step_replay_finished"))
