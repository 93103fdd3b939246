"""An operator saves, restores a rank, leaves a node and uses it again; the job ends with the bits of one undisturbed.

Then it is continued from the step that was saved on request.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.lib_job import Job
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.job_request import RequestKind, RequestState
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced, throttled
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 60
ARGUMENTS = [
    "--steps", str(STEPS), "--seed", "5", "--width", "32", "--batch", "1", "--dp", "2", "--pp", "1", "--layers", "2",
    "--canonical",
    *FEW,
]  # fmt: skip


def command(job: Job, *words: str) -> dict[str, Any]:
    """The result that ``mainstay job`` prints."""
    line = [sys.executable, "-m", "mainstay", "job", words[0], job.name, *words[1:], "--json"]
    line += ["--state-dir", str(job.directory / "node-0"), "--timeout", "120"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr, job.tail())
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def found_slow(job: Job) -> bool:
    """Whether one of a few checks finds rank 1 slow: other processes can slow its peer down too."""
    checks = (job.request(RequestKind.CHECK, rank=1, reason="it gets half of its time") for _ in range(4))
    return any("rank 1 is slow: " in check.detail for check in checks)


def test_an_operator_asks_and_no_bit_is_lost(warm: Warm, tmp_path: Path) -> None:
    warm.run_plain(tmp_path, [*ARGUMENTS, "--save", str(tmp_path / "plain")], ranks=2)
    # Three snapshot slots, and no step that would be written without a request.
    disk = ["--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-interval", "1000"]
    job = warm.job(
        directory=tmp_path / "job",
        arguments=[*ARGUMENTS, *paced(tmp_path / "job", 120), "--save", str(tmp_path / "saved")],
        nodes=2, per_node=1, options=["--standbys", "0", *disk],
    )  # fmt: skip
    with job:
        job.wait_step(3)
        saved = command(job, "save")
        assert find(tmp_path / "checkpoints").manifest.epoch == saved["step"]
        assert job.state()["generation"] == 1, "training continued"

        checked = command(job, "check", "--rank", "1")
        assert "rank 1 is" in checked["detail"]
        with throttled(job.pids()[1]):
            assert found_slow(job), "it gets half of its time"
        assert job.state()["generation"] == 1, "no rank stopped"

        before = job.pids()
        restored = job.request(RequestKind.RESTORE, rank=1, reason="it looks slow")
        assert (restored.state, restored.detail) == (RequestState.COMPLETED, "ranks [1] are restored on node-1")
        after = job.pids()
        assert (after[0] == before[0], after[1] == before[1]) == (True, False)

        left = command(job, "degrade", "--node", "node-1")
        assert left["detail"] == "ranks [1] stay away"
        step = job.step()
        job.until(lambda: job.pids()[1] is None, 60.0, "no process of the rank")
        job.until(lambda: job.state()["last_step"] > step + 2, 60.0, "training without it")

        back = command(job, "restore", "--node", "node-1")
        assert back["detail"] == "ranks [1] are restored on node-1"
        assert {rank["state"] for rank in job.state()["topology"]["ranks"]} == {"running"}
        assert finish(job) == [0, 0], job.tail()
    assert_same_bits(tmp_path / "saved", tmp_path / "plain", 2)

    (tmp_path / "checkpoints" / "job").mkdir(exist_ok=True)
    words = [*ARGUMENTS, "--save", str(tmp_path / "again")]
    resumed = warm.job(
        directory=tmp_path / "resumed", arguments=words, nodes=2, per_node=1, options=[*disk, "--resume", "latest"]
    )
    with resumed:
        assert resumed.wait() == [0, 0], resumed.tail()
    assert_same_bits(tmp_path / "again", tmp_path / "plain", 2)
