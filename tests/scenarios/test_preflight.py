"""Nodes are checked before ranks start: a bad one gets none, and a busy machine is no bad node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lib_job import Job
from tests.fork_server.processes import Warm
from tests.scenarios.pace import PACE

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]

ROOT = Path(__file__).parents[2]
WRONG_BITS = "computes other bits than 2 of 3 devices of its kind"


@pytest.fixture
def busy() -> Iterator[None]:
    """A program that takes all it gets of a core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as program:
        yield
        program.kill()


def job(warm: Warm, directory: Path, nodes: int, *options: str, bad: str = "") -> Job:
    """A job of one rank on each node; node-1 is ``bad``."""
    shape = ["--dp", "1", "--pp", str(nodes), "--layers", str(nodes)]
    return warm.job(
        directory=directory,
        arguments=["--steps", "1000000", "--seed", "5", "--width", "64", "--batch", "2", *PACE, *shape],
        nodes=nodes,
        per_node=1,
        options=options,
        own={1: ["--preload", f"tests.scenarios.{bad}"]} if bad else {},
        environment={"PYTHONPATH": str(ROOT)},
    )


def homes(job: Job) -> list[str]:
    return [rank["node"] for rank in job.state()["topology"]["ranks"]]


def lines(job: Job) -> list[str]:
    """What the coordinator logged about the check."""
    return [line for line in job.log(0).read_text().splitlines() if "preflight" in line]


@pytest.mark.parametrize(
    ("bad", "reason"), [("wrong_bits", WRONG_BITS), ("slow_transfers", "transfers with node-2, node-0 reach at most")]
)
def test_a_bad_node_takes_no_rank_and_the_job_trains(warm: Warm, tmp_path: Path, bad: str, reason: str) -> None:
    with job(warm, tmp_path / "job", 3, "--preflight", "enforce", "--standbys", "1", bad=bad) as training:
        training.wait_step(3)
        assert homes(training) == ["node-0", "node-2", "node-0"]
        named, _ = lines(training)
        assert "the preflight check finds node node-1 bad, it takes no rank: " in named
        assert reason in named


def test_without_room_the_job_ends_in_one_line(warm: Warm, tmp_path: Path) -> None:
    with job(warm, tmp_path / "job", 3, "--preflight", "enforce", "--standbys", "0", bad="wrong_bits") as refused:
        assert refused.wait(120.0) == [1, 1, 1]
        (line,) = [line for line in refused.log(0).read_text().splitlines() if "job job failed" in line]
        assert f"the preflight check refuses node-1 (cpu {WRONG_BITS}); the other nodes have 2 of 3 places" in line
        assert not refused.events("job_started")


def test_a_clean_start_takes_seconds_longer(warm: Warm, tmp_path: Path) -> None:
    with job(warm, tmp_path / "job", 2, "--preflight", "enforce", "--standbys", "0") as training:
        training.wait_step(3)
        assert homes(training) == ["node-0", "node-1"]
        (line,) = lines(training)
        print(line)
        assert "2 nodes checked" in line


@pytest.mark.usefixtures("busy")
def test_checks_of_a_busy_machine_refuse_no_node() -> None:
    command = [sys.executable, "-m", "tests.scenarios.repeated_preflight", "2x2", "4x1"]
    environment = {**os.environ, "MAINSTAY_JOB_TOKEN": "test"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=270)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["nodes"], one["bad"]) for one in found] == [(2, {})] * 2 + [(4, {})], done.stderr
    assert "slow or broken" not in done.stderr
    for nodes in (2, 4):
        seconds = [one["seconds"] for one in found if one["nodes"] == nodes]
        print(f"{nodes} nodes: {min(seconds):.1f} to {max(seconds):.1f} s")
