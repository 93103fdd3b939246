"""A node degrades, its ranks' newest slots are copied away, it dies with its memory: hardly a step is made again."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import Job
from bench.lib_node_warnings import Warner
from tests.fork_server.processes import Warm

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

NODES, STEPS = 3, 100_000
SHAPE = ["--dp", "1", "--pp", str(NODES), "--layers", str(NODES)]
ARGUMENTS = ["--steps", str(STEPS), "--seed", "11", "--width", "256", "--batch", "4", *SHAPE]


def figure(job: Job) -> dict[str, Any]:
    return job.state().get("protection", {}).get("durability") or {}


def test_the_newest_step_of_a_degrading_node_outlives_it(warm: Warm, tmp_path: Path) -> None:
    """Nothing else could bring the step back: there is no scheme, no replica and no disk."""
    with Warner() as warner:
        token = tmp_path / "token"
        token.write_text("of-no-one")
        options = [
            "--protection",
            "none",
            "--standbys",
            "1",
            "--service",
            warner.url,
            "--service-token-file",
            str(token),
        ]
        job = warm.job(directory=tmp_path / "job", arguments=ARGUMENTS, nodes=NODES, per_node=1, options=options)
        with job:
            job.wait_step(5)
            bare = job.until(lambda: figure(job).get("survival_hour") and figure(job), 60.0, "a durability figure")
            assert (bare["min_fatal_nodes"], len(bare["fatal"]), bare["suspects"]) == (1, NODES, [])
            warner.hazards = {"node-2": {"reason": "hot", "factor": 100.0, "since": time.time(), "corrupt": False}}
            job.until(lambda: any(s["copies"] for s in figure(job)["suspects"]), 60.0, "an extra copy")
            safer = figure(job)
            assert [s["node"] for s in safer["suspects"]] == ["node-2"]
            assert safer["fatal"] == [["node-0"], ["node-1"]]
            lose(job, 2)
            recovered = job.wait_recoveries(1, 120.0)
            step = recovered["data"]["epoch"]
            job.wait_step(step + 3)
        assert recovered["data"]["steps_lost"] <= 1, job.tail()
        plan = job.events("recovery_planned")[-1]["data"]["plan"]
        chosen = next(a for a in plan["alternatives"] if a["strategy"] == plan["chosen"])
        sources = {r["rank"]: r["source"] for r in chosen["restores"]}
        assert sources[2] in {"peer_copy", "local_slot"}  # the latter where the rank goes to its copy


def lose(job: Job, number: int) -> None:
    """SIGKILL a launcher and with it all processes of its node; their memory goes as with the power."""
    doomed = job.children(number)
    job.launchers[number].kill()
    job.launchers[number].wait()
    for directory in job.shm.glob(f"*/job/node-{number}"):
        shutil.rmtree(directory, ignore_errors=True)
    del job.launchers[number]
    deadline = time.monotonic() + 30.0
    while any(Path(f"/proc/{pid}").exists() for pid in doomed):
        assert time.monotonic() < deadline, "the node's processes did not end"
        time.sleep(0.02)
