"""How long a SIGKILL stops training: from the kill to the next committed step, and beside it a full restart.

One job of 2 x 2 ranks on two launchers ("nodes") of this machine loses a random rank again and again. The baseline, in
the same run: the same script without Mainstay, all of its processes ended and started again at once. For a small and a
large state.

``--spare-nodes`` instead: a job of ``--nnodes 2:3`` loses one node after the other, and its spare node takes the ranks.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import lib_spare_nodes
from bench.lib_job import Job, JobError, Json, start_plain
from bench.report import RESULTS, Row, publish

SEED = 7
STEPS_BETWEEN = 6
"""Committed steps between two kills, one more at least: verification takes three."""
_PATIENCE: Final = 300.0


class Size(NamedTuple):
    """A job of one size of state."""

    megabytes: int
    """Of state a rank, about."""
    width: int
    batch: int
    runs: int
    restarts: int
    faster: float
    """Than a full restart, as promised."""
    beyond: float | None = None
    """Seconds that recovery may add to a step, as promised; a restart must add four times as many."""

    @property
    def arguments(self) -> list[str]:
        return ["--width", str(self.width), "--batch", str(self.batch)]


SIZES: Final = (Size(12, 198, 4, 20, 3, 10.0), Size(240, 896, 1, 12, 4, 4.0, 0.3))
LOST_NODES: Final = 20
DETECTED: Final = 0.1
"""Seconds from the SIGKILL until the coordinator acts."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery_time", description=__doc__)
    parser.add_argument("--only", type=int, default=None, choices=[size.megabytes for size in SIZES], metavar="MB")
    parser.add_argument("--quick", action="store_true", help="the small state, four kills, one restart")
    parser.add_argument("--spare-nodes", action="store_true", help="lose nodes, each to a spare node; the small state")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    name = "recovery_time_spare_nodes" if options.spare_nodes else "recovery_time"
    sizes = [size for size in SIZES if options.only in {None, size.megabytes}]
    if options.quick:
        sizes = [sizes[0]._replace(runs=4, restarts=1)]
    directory = Path(tempfile.mkdtemp(prefix="recovery-time-"))
    try:
        if options.spare_nodes:
            rows = lib_spare_nodes.measure(directory, sizes[0].arguments, 4 if options.quick else LOST_NODES)
        else:
            rows = [row for size in sizes for row in measure(directory / str(size.megabytes), size)]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    publish(name, rows, options.json or RESULTS / f"{name}.json")


def measure(directory: Path, size: Size) -> list[Row]:
    run = protected(directory / "protected", size)
    cold = [full_restart(directory / f"restart-{n}", size) for n in range(size.restarts)]
    return rows_of(run, cold, size)


class Kill(NamedTuple):
    """One SIGKILL, by Unix time."""

    at: float
    visible: float
    """When the kernel told whoever watches the process; it gives its memory back first."""


class Run(NamedTuple):
    """What a protected job went through."""

    kills: list[Kill]
    events: list[Json]
    """``recovery_completed``: the first step committed by all ranks."""
    job: Json
    step: float
    """Seconds of a usual one."""


def strike(job: Job, rank: int) -> Kill:
    pid = job.pids()[rank]
    assert pid is not None
    watched = os.pidfd_open(pid)
    try:
        at = job.kill(rank)
        select.select([watched], [], [], _PATIENCE)
        return Kill(at, time.time())
    finally:
        os.close(watched)


def protected(directory: Path, size: Size) -> Run:
    runs = size.runs
    chance = random.Random(SEED)
    steps = (runs + 2) * (STEPS_BETWEEN + 40)
    options = ["--max-restarts", str(runs + 1), "--parity-interval", "10"]
    arguments = ["--steps", str(steps), *size.arguments]
    found: list[Kill] = []
    with Job(directory=directory, arguments=arguments, options=options) as job:
        job.wait_step(10, _PATIENCE)
        paces = []
        for number in range(runs):
            job.wait_step(job.step() + 1, _PATIENCE)
            paces.append(_pace(job))
            time.sleep(chance.uniform(0.0, 0.3))  # anywhere within a step
            found.append(strike(job, chance.randrange(4)))
            job.wait_recoveries(number + 1, _PATIENCE)
        state = job.state()
    return Run(found, job.events("recovery_completed"), state, statistics.median(paces))


def _pace(job: Job) -> float:
    begun, start = time.monotonic(), job.step()
    job.wait_step(start + STEPS_BETWEEN, _PATIENCE)
    return (time.monotonic() - begun) / (job.step() - start)


def full_restart(directory: Path, size: Size) -> float:
    """Seconds from a kill to the first step after every rank was ended and started again, by a perfect supervisor.

    It notices at once and wastes no time between; and nothing is loaded, nor are lost steps counted.
    """
    arguments = ["--steps", "100000", *size.arguments]
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
    deadline = time.monotonic() + _PATIENCE
    while (text := log.read_text(errors="replace")).count("loss ") < count:
        if any(rank.poll() is not None for rank in ranks) or time.monotonic() > deadline:
            raise JobError(f"the plain run did not train:\n{text[-2000:]}")
        time.sleep(0.005)


def rows_of(run: Run, cold: list[float], size: Size) -> list[Row]:
    kills, events, job, step = run
    seconds = [event["time"] - kill.at for event, kill in zip(events, kills, strict=True)]
    visible = [kill.visible - kill.at for kill in kills]
    seen = [s - (e["data"]["seconds"]["total"] - e["data"]["seconds"]["detect"])
            for s, e in zip(seconds, events, strict=True)]  # fmt: skip
    p50, p95, restart = statistics.median(seconds), _quantile(seconds, 0.95), statistics.median(cold)
    megabytes = max(job["protection"]["state_bytes"]) / 1e6
    what = (
        f"4 ranks (dp 2 x pp 2), {megabytes:.1f} MB of state a rank, gloo, width {size.width}; "
        f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    )
    phases = {
        name: statistics.median(e["data"]["seconds"][name] for e in events) for name in events[0]["data"]["seconds"]
    }
    lost = max(event["data"]["steps_lost"] for event in events)
    told, against = ", ".join(f"{k} {v:.3f}" for k, v in phases.items()), f"all ranks started again: {restart:.2f} s"
    claim, count = f"SIGKILL of a rank with {size.megabytes} MB -> next committed step", len(seconds)
    slow = "" if size.width < 512 else "-"
    return [
        Row(claim=f"process death detected, {size.megabytes} MB a rank, p95", figure=_quantile(seen, 0.95), unit="s",
            target=f"<= {DETECTED:g}", holds=_quantile(seen, 0.95) <= DETECTED, kind="live", n=count,
            note=f"from the SIGKILL until the coordinator acts; median {statistics.median(seen):.3f} s. Limit: the "
            "kernel frees a process's memory before it notifies any process (pidfd, watched beside): "
            f"median {statistics.median(visible):.3f} s, p95 {_quantile(visible, 0.95):.3f} s"),
        Row(claim=f"{claim}, p50", figure=p50, unit="s", target=slow or "<= 3", holds=None if slow else p50 <= 3.0,
            kind="live", baseline=against, n=count, note=what),
        Row(claim=f"{claim}, p95", figure=p95, unit="s", target=slow or "<= 3", holds=None if slow else p95 <= 3.0,
            kind="live", baseline=against, n=count, note=f"phases, median s: {told}"),
        Row(claim=f"steps lost by a kill, {size.megabytes} MB, worst", figure=lost, unit="steps", target="<= 1",
            holds=lost <= 1, kind="live", n=count),
        Row(claim=f"faster than a full restart, {size.megabytes} MB a rank", figure=restart / p50, unit="x",
            target=f">= {size.faster:g}", holds=restart / p50 >= size.faster, kind="live", baseline=against,
            n=len(cold), note="a supervisor that notices at once; loading state and lost steps not counted. Limit: the "
            f"step itself, {step:.2f} s, is {restart / step:.1f} x"),
        *_beyond_rows(p50 - step, restart - step, size, f"a step takes {step:.2f} s", len(seconds)),
    ]  # fmt: skip


def _beyond_rows(recovery: float, restart: float, size: Size, note: str, count: int) -> list[Row]:
    """What recovery adds to the step that is made in any case, and what a restart adds."""
    limit, recovery = size.beyond, max(recovery, 0.01)  # less than that no clock here tells from nothing
    what = f"SIGKILL of a rank with {size.megabytes} MB: beyond the next step's own time"
    return [
        Row(claim=f"{what}, p50", figure=recovery, unit="s", target=f"<= {limit:g}" if limit else "",
            holds=recovery <= limit if limit else None, kind="live", n=count, note=note),
        Row(claim=f"{what}, against a full restart beyond its first step", figure=restart / recovery, unit="x",
            target=">= 4" if limit else "", holds=restart / recovery >= 4 if limit else None, kind="live",
            baseline=f"a full restart takes {restart:.2f} s beyond its first step", n=count, note=note),
    ]  # fmt: skip


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    main()
