"""Six nodes as 3+3 stages: one is lost with nothing spare, the others continue as 3+2, and as 3+3 when it is back."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from bench.lib_job import ANY_SHAPE as PLAIN
from bench.lib_job import Job, descendants, free_port
from bench.lib_journal import account
from tests.fork_server.processes import Warm
from tests.scenarios.pace import ANY_SHAPE, finish, pausing
from tests.scenarios.whole_model import parameters

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900), pytest.mark.xdist_group("training")]

WORDS = ["--width", "32", "--layers", "3", "--micro-batches", "3"]
SIX = ["--dp", "2", "--pp", "3"]
STEPS = 40
PATIENCE = 300.0
"""Seconds: six launchers, agents and fork servers start on any host."""


def script_arguments(saved: Path, *more: str) -> list[str]:
    return ["--steps", str(STEPS), *WORDS, "--save", str(saved), *more]


@pytest.fixture(scope="module")
def expected(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Final parameters of one rank that nothing happens to: every shape ends with the same bits."""
    directory = tmp_path_factory.mktemp("undisturbed")
    arguments = script_arguments(directory / "saved")
    with warm.job(
        directory=directory / "job", script=PLAIN, arguments=arguments, nodes=1, per_node=1,
        options=["--dp", "1", "--pp", "1"],
    ) as job:  # fmt: skip
        assert job.wait(PATIENCE) == [0], job.tail()
    return parameters(directory / "saved")


def six_nodes(warm: Warm, directory: Path) -> Job:
    """A rank each, nothing spare; not started yet."""
    disk = ["--checkpoint-interval", "1000", "--checkpoint-dir", str(directory / "checkpoints")]
    options = [*SIX, "--standbys", "0", "--on-loss", "reinstantiate", "--parity-interval", "0", *disk]
    arguments = script_arguments(directory / "saved", "--pause", "0.7", "--journal", str(directory / "journal"))
    return warm.job(
        directory=directory / "job", script=ANY_SHAPE, arguments=arguments, nodes=6, per_node=1, options=options,
        environment=pausing(directory / "job"), port=free_port(),
    )  # fmt: skip


def kill_node(job: Job, launcher: subprocess.Popen[bytes], number: int) -> None:
    """All that runs on it in one moment, and its memory."""
    doomed = [launcher.pid, *descendants(launcher.pid)]
    job.launchers.remove(launcher)
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launcher.wait()
    for memory in job.shm.rglob(f"node-{number}"):
        shutil.rmtree(memory, ignore_errors=True)


def stages(job: Job) -> list[int]:
    """Of each pipeline, as the job reports them."""
    topology = job.state()["topology"]
    return topology.get("pipeline_depths") or [topology["pp"]] * topology["dp"]


def test_nodes_die_and_come_back(warm: Warm, tmp_path: Path, expected: dict[str, bytes]) -> None:
    """One of each pipeline; ``bench/strategy_predictions.py`` measures it."""
    job = six_nodes(warm, tmp_path)
    with job:
        nodes = dict(enumerate(job.launchers))
        seen, count = [], 0
        for node in (4, 1):
            job.wait_step(job.step() + 2, PATIENCE)
            kill_node(job, nodes[node], node)
            count += 1
            job.wait_recoveries(count, PATIENCE)
            seen.append(stages(job))
            job.wait_step(job.step() + 2, PATIENCE)
            nodes[node] = job._start(node, job.port)
            job.launchers.append(nodes[node])
            count += 1
            job.wait_recoveries(count, PATIENCE)
            seen.append(stages(job))
        assert seen == [[3, 2], [3, 3]] * 2
        assert finish(job, PATIENCE) == [0] * 6, job.tail()
        assert job.state()["last_step"] == STEPS
    told = account([tmp_path / "journal"], steps=STEPS, layers=3)
    assert (told.lost, told.doubled) == (0, 0), "every sample once in every layer"
    assert all(event["data"]["steps_lost"] <= 1 for event in job.events("recovery_completed"))
    assert parameters(tmp_path / "saved") == expected


def test_the_node_that_coordinates_dies_and_its_successor_forms_the_pipelines(
    warm: Warm, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    job = six_nodes(warm, tmp_path)
    with job:
        job.wait_step(2, PATIENCE)
        kill_node(job, job.launchers[0], 0)
        job.wait_recoveries(1, PATIENCE)
        assert stages(job) == [3, 2]
        assert finish(job, PATIENCE) == [0] * 5, job.tail()
        assert job.state()["last_step"] == STEPS
    told = account([tmp_path / "journal"], steps=STEPS, layers=3)
    assert (told.lost, told.doubled) == (0, 0)
    assert parameters(tmp_path / "saved") == expected


def test_where_nothing_is_spare_and_repairs_are_long_other_pipelines_are_formed(
    warm: Warm, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """With ``--on-loss auto``: repairs take a quarter of an hour at least, of which 3+2 stages lose less than 3 do."""
    job = six_nodes(warm, tmp_path)
    job.options[job.options.index("reinstantiate")] = "auto"
    with job:
        launcher = job.launchers[4]
        job.wait_step(4)
        kill_node(job, launcher, 4)
        job.wait_recoveries(1, 120.0)
        assert stages(job) == [3, 2]
        job.wait_step(job.step() + 2)
        job.launchers.append(job._start(4, job.port))
        job.wait_recoveries(2, 120.0)
        assert stages(job) == [3, 3]
        assert finish(job, PATIENCE) == [0] * 6, job.tail()
    lost = job.events("recovery_completed")[0]["data"]
    assert lost["decision"]["chosen"] == ["reinstantiate"]
    assert lost["outcome"]["strategy"] == "reinstantiate"
    assert parameters(tmp_path / "saved") == expected
