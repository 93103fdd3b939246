"""A running job is asked for another (dp, pp): no step is lost, and the parameters end as without the request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.lib_job import ANY_SHAPE as PLAIN
from bench.lib_job import Job
from mainstay.recovery.checkpoint.catalog import runs
from mainstay.recovery.job_request import JobRequestResult, RequestKind, RequestState
from tests.fork_server.processes import Warm
from tests.scenarios.pace import ANY_SHAPE, finish, pausing
from tests.scenarios.whole_model import parameters

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 40
SMALL = ["--steps", str(STEPS), "--width", "32"]
SLOW = ["--pause", "0.5"]
"""So that there are steps left when whoever asks has asked."""
ENDLESS = ["--steps", "100000", "--width", "32", *SLOW]


def reshape(job: Job, dp: int, pp: int) -> JobRequestResult:
    """What ``mainstay job reshape`` does."""
    return job.request(RequestKind.RESHAPE, dp=dp, pp=pp)


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The parameters of one rank that keeps its shape: every shape ends with the same bits."""
    directory = tmp_path_factory.mktemp("undisturbed")
    words = [*SMALL, "--save", str(directory / "saved")]
    one = {"nodes": 1, "per_node": 1, "options": ["--dp", "1", "--pp", "1"]}
    with warm.job(directory=directory / "plain", script=PLAIN, arguments=words, **one) as job:
        assert job.wait() == [0], job.tail()
    return parameters(directory / "saved")


def test_four_ranks_change_their_shape_twice_and_lose_one_between(
    warm: Warm, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    checkpoints = tmp_path / "checkpoints"
    options = ["--dp", "2", "--pp", "2", "--parity-interval", "5"]
    disk = ["--checkpoint-interval", "1000", "--checkpoint-dir", str(checkpoints)]
    words = [*SMALL, *SLOW, "--save", str(tmp_path / "saved")]
    with warm.job(
        directory=tmp_path / "job", script=ANY_SHAPE, arguments=words, options=[*options, *disk],
        environment=pausing(tmp_path / "job"),
    ) as job:  # fmt: skip
        job.wait_step(2)
        first = reshape(job, 1, 4)
        assert first.state is RequestState.COMPLETED, (first, job.tail())
        assert first.step is not None
        assert first.step >= 2
        assert first.steps_lost in {0, 1}
        job.wait_step(first.step + 2)
        assert [job.state()["topology"][key] for key in ("dp", "pp")] == [1, 4]
        job.kill(2)
        job.wait_recoveries(1)
        second = reshape(job, 4, 1)
        assert second.state is RequestState.COMPLETED, (second, job.tail())
        assert second.step is not None
        assert second.step > first.step
        assert finish(job) == [0, 0], job.tail()
        assert job.state()["last_step"] == STEPS
    assert len(runs(checkpoints)) == 3
    assert parameters(tmp_path / "saved") == undisturbed


def test_a_shape_that_cannot_be_is_refused_and_nobody_stops(warm: Warm, tmp_path: Path) -> None:
    disk = ["--checkpoint-interval", "1000", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    options = ["--dp", "1", "--pp", "2", *disk]
    with warm.job(
        directory=tmp_path / "job", script=ANY_SHAPE, arguments=ENDLESS, nodes=1, options=options,
        environment=pausing(tmp_path / "job"),
    ) as job:  # fmt: skip
        job.wait_step(2)
        assert reshape(job, 1, 2).detail == "the job has dp=1 pp=2 already"
        command = [sys.executable, "-m", "mainstay", "job", "reshape", job.name, "--dp", "3", "--pp", "1", "--json"]
        command += ["--state-dir", str(job.directory / "node-0"), "--timeout", "60"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1, (done.stderr, job.tail())
        said = json.loads(done.stdout)
        assert said["state"] == "rejected"
        assert said["detail"] == "dp=3 pp=1 needs 3 ranks, and the job has 2"
        assert job.state()["generation"] == 1


def test_a_script_that_names_its_own_shape_is_not_stopped(warm: Warm, tmp_path: Path) -> None:
    options = ["--checkpoint-interval", "1000", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    words = ["--steps", "100000", "--dp", "1", "--pp", "2", "--width", "32"]
    with warm.job(directory=tmp_path / "job", arguments=words, nodes=1, options=options) as job:
        job.wait_step(2)
        given = reshape(job, 2, 1)
        assert given.state is RequestState.REJECTED
        assert "the script of ranks [0, 1] cannot be started in another shape" in given.detail
        assert job.state()["generation"] == 1


def test_pipelines_of_unlike_depth_are_asked_for_and_lose_a_rank(
    warm: Warm, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    disk = ["--checkpoint-interval", "1000", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    options = ["--dp", "1", "--pp", "3", "--parity-interval", "0", *disk]
    words = [*SMALL, *SLOW, "--save", str(tmp_path / "saved")]
    with warm.job(
        directory=tmp_path / "job", script=ANY_SHAPE, arguments=words, nodes=1, per_node=3, options=options,
        environment=pausing(tmp_path / "job"),
    ) as job:  # fmt: skip
        job.wait_step(2)
        command = [sys.executable, "-m", "mainstay", "job", "reshape", job.name, "--stages", "2,1", "--json"]
        command += ["--state-dir", str(job.directory / "node-0"), "--timeout", "240"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout, done.stderr, job.tail())
        assert job.state()["topology"]["pipeline_depths"] == [2, 1]
        job.wait_step(json.loads(done.stdout)["step"] + 2)
        job.kill(2)
        job.wait_recoveries(1)
        last = reshape(job, 3, 1)
        assert last.state is RequestState.COMPLETED, (last, job.tail())
        assert finish(job) == [0], job.tail()
    assert parameters(tmp_path / "saved") == undisturbed
