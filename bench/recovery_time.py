"""How long a SIGKILL stops training: from the kill to the next committed step, and beside it a full restart.

One job of 2 x 2 ranks on two launchers ("nodes") of this machine loses a random rank again and again. The baseline, in
the same run: the same script without Mainstay, all of its processes ended and started again at once.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.lib_job import Job, JobError, Json, start_plain
from bench.report import RESULTS, Row, publish

SEED = 7
STEPS_BETWEEN = 6
"""Committed steps between two kills: verification takes three."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery_time", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="kills under protection")
    parser.add_argument("--restarts", type=int, default=3, help="full restarts to compare with")
    parser.add_argument("--width", type=int, default=128, help="of the model; its square is the size of the state")
    parser.add_argument("--json", type=Path, default=RESULTS / "recovery_time.json", metavar="FILE")
    options = parser.parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="recovery-time-"))
    try:
        rows = measure(directory, options.runs, options.restarts, options.width)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    publish("recovery_time", rows, options.json)


def measure(directory: Path, runs: int, restarts: int, width: int) -> list[Row]:
    seconds, events, job = protected(directory / "protected", runs, width)
    cold = [full_restart(directory / f"restart-{n}", width) for n in range(restarts)]
    return rows_of(seconds, events, job, cold, width)


def protected(directory: Path, runs: int, width: int) -> tuple[list[float], list[Json], Json]:
    """Seconds from each kill to the first step committed by all ranks, and the ``recovered`` events."""
    chance = random.Random(SEED)
    steps = (runs + 2) * (STEPS_BETWEEN + 40)
    options = ["--max-restarts", str(runs + 1), "--parity-every", "10"]
    arguments = ["--steps", str(steps), "--width", str(width)]
    found: list[float] = []
    with Job(directory=directory, arguments=arguments, options=options) as job:
        job.wait_step(10)
        for number in range(runs):
            start = job.step()
            job.wait_step(start + STEPS_BETWEEN, 60.0)
            time.sleep(chance.uniform(0.0, 0.3))  # anywhere within a step
            killed = job.kill(chance.randrange(4))
            found.append(job.wait_recoveries(number + 1)["time"] - killed)
        state = job.state()
    return found, job.events("recovered"), state


def full_restart(directory: Path, width: int) -> float:
    """Seconds from a kill to the first step after every rank was ended and started again, by a perfect supervisor.

    It notices at once and wastes no time between; and nothing is loaded, nor are lost steps counted.
    """
    arguments = ["--steps", "100000", "--width", str(width)]
    ranks = start_plain(directory / "before", arguments)
    try:
        _wait_for_losses(ranks, directory / "before", 5)
        killed = time.time()
        for rank in ranks:
            rank.kill()
            rank.wait()
        ranks = start_plain(directory / "after", arguments)
        _wait_for_losses(ranks, directory / "after", 1)
        return time.time() - killed
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _wait_for_losses(ranks: list[subprocess.Popen[bytes]], directory: Path, count: int) -> None:
    """Until the last stage has printed ``count`` losses."""
    log = directory / f"plain-{len(ranks) - 1}.log"
    deadline = time.monotonic() + 180.0
    while (text := log.read_text(errors="replace")).count("loss ") < count:
        if any(rank.poll() is not None for rank in ranks) or time.monotonic() > deadline:
            raise JobError(f"the plain run did not train:\n{text[-2000:]}")
        time.sleep(0.005)


def rows_of(seconds: list[float], events: list[Json], job: Json, cold: list[float], width: int) -> list[Row]:
    p50, p95 = statistics.median(seconds), _quantile(seconds, 0.95)
    restart = statistics.median(cold) if cold else None
    megabytes = max(job["protection"]["state_bytes"]) / 1e6
    what = f"4 ranks (dp 2 x pp 2), {megabytes:.1f} MB of state a rank, gloo, {os.cpu_count()} cores, width {width}"
    phases = {
        name: statistics.median(e["data"]["seconds"][name] for e in events) for name in events[0]["data"]["seconds"]
    }
    lost = max(event["data"]["steps_lost"] for event in events)
    baseline = "" if restart is None else f"all ranks started again: {restart:.2f} s"
    claim = "SIGKILL of a rank -> next committed step"
    return [
        Row(claim=f"{claim}, p50", figure=p50, unit="s", target="<= 3", holds=p50 <= 3.0, kind="live",
            baseline=baseline, n=len(seconds), note=what),
        Row(claim=f"{claim}, p95", figure=p95, unit="s", target="<= 3", holds=p95 <= 3.0, kind="live",
            baseline=baseline, n=len(seconds),
            note="phases, median s: " + ", ".join(f"{k} {v:.3f}" for k, v in phases.items())),
        Row(claim="steps lost by a kill, worst", figure=lost, unit="steps", target="<= 1", holds=lost <= 1, kind="live",
            n=len(events)),
        Row(claim="faster than a full restart", figure=None if restart is None else restart / p50, unit="x",
            target=">= 10", holds=None if restart is None else restart / p50 >= 10.0, kind="live", baseline=baseline,
            n=len(cold), note="a supervisor that notices at once; loading state and lost steps not counted"),
    ]  # fmt: skip


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    main()
