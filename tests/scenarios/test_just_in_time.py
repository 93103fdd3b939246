"""Nothing is written while all is well; when a node is lost for good the rest saves, and another start continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib_journal import account
from mainstay.recovery.checkpoint.catalog import find
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 24
WORDS = ["--steps", str(STEPS), "--seed", "11", "--width", "32", "--layers", "2", "--batch", "1", *FEW]


def test_healthy_replicas_save_when_nothing_else_helps(warm: Warm, tmp_path: Path) -> None:
    """Node 1 holds a whole replica and goes with its memory; no step is made twice but the one under way."""
    checkpoints, journals = tmp_path / "checkpoints", [tmp_path / "journal-0", tmp_path / "journal-1"]
    options = ["--standbys", "0", "--checkpoint-dir", str(checkpoints), "--resume", "auto"]
    slow = [*WORDS, "--faults", "sleep:rank=0,ms=40", "--journal", str(journals[0])]
    with warm.job(directory=tmp_path / "first", arguments=slow, options=options) as job:
        job.wait_step(8)
        assert not [*checkpoints.glob("*/step-*")], "nothing is written while all is well"
        job.launchers[1].kill()
        job.launchers[1].wait()
        assert job.launchers[0].wait(60.0) == 1, job.tail()
        (ended,) = job.events("job_finished")
    saved = find(checkpoints).manifest.epoch
    assert ended["data"]["epoch"] - 1 <= saved <= ended["data"]["epoch"]
    more = ["--journal", str(journals[1]), "--save", str(tmp_path / "saved")]
    with warm.job(directory=tmp_path / "second", arguments=[*WORDS, *more], options=options) as job:
        assert job.wait() == [0, 0], job.tail()
    assert f"resuming after step {saved} " in job.log(0).read_text()
    warm.run_plain(tmp_path / "plain", [*WORDS, "--save", str(tmp_path / "undisturbed")])
    assert_same_bits(tmp_path / "saved", tmp_path / "undisturbed", 4)
    told = account(journals, steps=STEPS, layers=2)
    assert (told.lost, told.doubled) == (0, 0)
