"""A running job changes from dp 2 x pp 2 to dp 1 x pp 4, beside the same by hand: stopped, and started with --resume.

Each run is a real job of two nodes of two ranks. Both go through a checkpoint directory; by hand the launchers, the
store, the agents and every import are paid for again. Timed from when it is asked to the first step committed after.

    python -m bench.reshape --runs 5
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.lib_job import ANY_SHAPE, Job
from bench.report import RESULTS, Row, publish
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.job_request import JobRequestResult, RequestKind, RequestState

WIDTHS: Final = {"small": "64", "large": "384"}
"""Of the model: a state of about a MB, and of some 40 MB a rank."""
OLD: Final = ("--dp", "2", "--pp", "2")
NEW: Final = ("--dp", "1", "--pp", "4")
WORDS: Final = ("--steps", "100000", "--batch", "1", "--layers", "4")


@dataclass(frozen=True, slots=True)
class Run:
    """One change both ways."""

    planned: JobRequestResult
    planned_s: float
    """From the request to its result, which follows the first committed step."""
    by_hand_s: float
    steps_lost: int
    """By hand: between the step that was seen last and the one that was saved."""
    state_bytes: int
    """Of the largest rank."""


def _job(directory: Path, width: str, shape: tuple[str, ...], *more: str) -> Job:
    options = [*shape, "--checkpoint-interval", "100000", "--checkpoint-dir", str(directory / "checkpoints"), *more]
    arguments = [*WORDS, "--width", width]
    name = f"job-{'-'.join(shape[1::2])}-{len(more)}"
    return Job(directory=directory / name, script=ANY_SHAPE, arguments=arguments, options=options)


def change(directory: Path, width: str) -> Run:
    """One run: asked for while it trains, then stopped and started again."""
    with _job(directory, width, OLD) as job:
        job.wait_step(5)
        asked = time.time()
        planned = job.request(RequestKind.RESHAPE, dp=1, pp=4)
        planned_s = time.time() - asked
        state = max(job.state()["protection"]["state_bytes"])
        job.launchers[0].send_signal(signal.SIGTERM)
        job.wait()
    with _job(directory, width, OLD, "--node-timeout", "9") as job:
        job.wait_step(5)
        seen, begun = job.step(), time.time()
        job.launchers[0].send_signal(signal.SIGTERM)
        job.wait()
    saved = find(directory / "checkpoints").manifest.epoch
    with _job(directory, width, NEW, "--resume", "latest") as job:
        job.wait_step(saved + 1)
        by_hand = time.time() - begun
    return Run(planned, planned_s, by_hand, max(0, seen - saved), int(state))


def rows(runs: int = 5) -> list[Row]:
    """Two rows a size of state: seconds, and steps that are made again."""
    return [row for name in WIDTHS for row in _measured(name, runs)]


def _measured(name: str, runs: int) -> list[Row]:
    told = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="mainstay-reshape-") as directory:
            told.append(change(Path(directory), WIDTHS[name]))
    done = [run for run in told if run.planned.state is RequestState.COMPLETED]
    what = f"four ranks with {told[0].state_bytes / 1e6:.0f} MB change from 2 x 2 to 1 x 4"
    by_hand = statistics.median(run.by_hand_s for run in told)
    baseline = f"stopped and started with --resume in the same run: {by_hand:.2f} s"
    if not done:
        note = told[0].planned.detail[:200]
        return [_row(what, None, "s", f"< {by_hand:.2f}", holds=False, baseline=baseline, n=runs, note=note)]
    still = statistics.median(run.planned.seconds or 0.0 for run in done)
    middle = statistics.median(run.planned_s for run in done)
    again = max(run.planned.steps_lost or 0 for run in done)
    failed = f"; {runs - len(done)} of {runs} did not change" if len(done) < runs else ""
    note = f"training stood still for {still:.2f} s of them{failed}"
    whole = len(done) == runs
    return [
        _row(f"{what}: asked to the next committed step", middle, "s", f"< {by_hand:.2f}",
             holds=whole and middle < by_hand, baseline=baseline, n=len(done), note=note),
        _row(f"{what}: steps made again, at most", again, "steps", "<= 1", holds=whole and again <= 1,
             baseline="", n=len(done), note=""),
    ]  # fmt: skip


def _row(
    claim: str, figure: float | None, unit: str, target: str, *, holds: bool, baseline: str, n: int, note: str
) -> Row:
    return Row(
        claim=claim, figure=figure, unit=unit, target=target, holds=holds, kind="live", baseline=baseline, n=n,
        note=note,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS / "reshape.json", metavar="FILE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run of each size")
    given = parser.parse_args()
    publish("reshape", rows(1 if given.quick else given.runs), given.json)


if __name__ == "__main__":
    main()
