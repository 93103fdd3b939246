"""It turns out late that a node has computed wrongly: the steps since then are given up, and the result is right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import Job
from bench.lib_node_warnings import Warner
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control")]

STEPS, EVERY, LATE = 40, 4, 12
ARGUMENTS = [
    "--steps", str(STEPS), "--seed", "5", "--width", "32", "--batch", "1", "--dp", "2", "--pp", "1", "--layers", "2",
    *FEW,
]  # fmt: skip
PAUSE_MS = 300
"""Twice a step: what a verdict counts earlier because clocks differ (two seconds) is some steps, and eight times EVERY
are kept on disk."""


def corrupt_steps(job: Job) -> list[dict[str, Any]]:
    durability = job.state().get("protection", {}).get("durability") or {}
    found: list[dict[str, Any]] = durability.get("corrupt_steps", [])
    return found


def test_steps_that_a_corrupt_node_has_written_are_given_up(warm: Warm, tmp_path: Path) -> None:
    warm.run_plain(tmp_path, [*ARGUMENTS, "--save", str(tmp_path / "plain")], ranks=2)
    token = tmp_path / "token"
    token.write_text("of-no-one")
    with Warner() as warner:
        job = warm.job(
            directory=tmp_path / "job",
            arguments=[*ARGUMENTS, *paced(tmp_path / "job", PAUSE_MS), "--save", str(tmp_path / "saved")],
            nodes=2, per_node=1,
            options=[
                "--standbys", "1", "--on-corruption", "rollback", "--checkpoint-dir", str(tmp_path / "disk"),
                "--checkpoint-interval", str(EVERY), "--service", warner.url, "--service-token-file", str(token),
            ],
        )  # fmt: skip
        with job:
            job.wait_step(LATE, 200.0)
            since, bad = time.time(), job.step()
            job.wait_step(bad + EVERY, 100.0)
            before = job.pids()
            warner.hazards = {"node-1": {"reason": "wrong bits", "factor": 100.0, "since": since, "corrupt": True}}
            recovered = job.wait_recoveries(1, 120.0)
            job.until(lambda: corrupt_steps(job), 60.0, "the taint in the report")
            after = job.pids()
            assert finish(job) == [0, 0], job.tail()
    epoch, (taint,) = recovered["data"]["epoch"], corrupt_steps(job)
    assert 0 < epoch <= bad, "back to a step of before"
    assert epoch % EVERY == 0, "from disk: memory keeps the newest only"
    assert (taint["node"], taint["reason"], taint["corrupt"]) == ("node-1", "wrong bits", False)
    assert after[1] != before[1], "its rank has another device"
    assert_same_bits(tmp_path / "saved", tmp_path / "plain", 2)
