"""Ranks are killed over a backend that behaves as NCCL does: survivors stay, and the result is the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kill_matrix import NCCL_LIKE
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, PACE
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("training")]

STEPS = 30
ARGUMENTS = ["--steps", str(STEPS), "--seed", "11", "--width", "32", "--layers", "2", "--batch", "1", *FEW]


def test_survivors_abort_and_form_again(warm: Warm, tmp_path: Path) -> None:
    """The others wait in calls that no dead peer ends. One rank is killed, then the two of a stage."""
    saved = tmp_path / "saved"
    undisturbed = warm.undisturbed(tmp_path / "plain", ARGUMENTS)
    options = ["--parity-interval", "5", "--standbys", "1"]
    arguments = [*ARGUMENTS, *PACE, "--save", str(saved)]
    with warm.job(directory=tmp_path / "job", script=NCCL_LIKE, arguments=arguments, options=options) as job:
        job.wait_step(6)
        first = job.pids()
        job.kill(2)
        job.wait_recoveries(1, 120.0)
        second = job.pids()
        assert {rank for rank in first if first[rank] != second[rank]} == {2}
        job.wait_step(14)
        job.kill(1)
        job.kill(3)
        job.wait_recoveries(2, 120.0)
        assert job.wait() == [0, 0], job.tail()
    assert_same_bits(saved, undisturbed, 4)
    assert not job.events("recovery_failed")
    assert all(event["data"]["steps_lost"] <= 1 for event in job.events("recovery_completed"))
