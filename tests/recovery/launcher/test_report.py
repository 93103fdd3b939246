"""The report about a rank that ended."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.controller.report import exit_data, job_report
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import Exited
from mainstay.service.jobs.schemas import JobReport


@pytest.mark.parametrize(
    ("ended_by_us", "code", "signal", "expected"),
    [
        (False, 1, None, False),
        (False, None, 9, False),
        (True, None, 9, True),
        (True, 0, None, True),
        (True, 1, None, False),  # it failed on its own while the news of another rank's end was on its way
    ],
)
def test_only_what_we_ended_was_expected(
    ended_by_us: bool, code: int | None, signal: int | None, expected: bool
) -> None:
    message = Exited(rank=1, pid=7, exit_code=code, signal=signal, expected=ended_by_us, time=5.0)
    assert exit_data(None, message)["expected"] is expected


def test_a_job_tells_who_could_take_a_rank_and_what_its_scheme_leaves_out(
    options: RunOptions, play: Any, running: Any, tmp_path: Path
) -> None:
    """Both nodes stand in one rack: no group of theirs outlives it."""
    racks = (("node-0", "rack-7"), ("node-1", "rack-7"))
    together = dataclasses.replace(
        options, domains=racks, parity_every=5, checkpoint_dir=tmp_path / "disk", disk_every=10
    )

    async def work() -> None:
        async with running(together) as world:
            report = job_report(world.coordinator.job, None, world.coordinator.workflows.requests)
            assert report["topology"]["standbys"] == {"node-0": 1, "node-1": 1}
            protection = report["protection"]
            assert protection["run"] == world.coordinator.job.state.run
            assert len(protection["warnings"]) == 1
            assert "rack-7" in protection["warnings"][0]
            JobReport.model_validate(report)

    play(work())


def test_a_job_without_disk_and_gaps_tells_neither(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            protection = job_report(world.coordinator.job, None, world.coordinator.workflows.requests)["protection"]
            assert (protection["run"], protection["warnings"]) == (None, [])

    play(work())
