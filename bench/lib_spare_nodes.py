"""A job of two nodes loses one after the other: each time, its spare node takes the ranks, and another one comes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.lib_job import Job, free_port
from bench.report import Row

RANKS_PER_NODE: Final = 2
ASKED_SECONDS: Final = 10.0
_STEPS_BETWEEN: Final = 6
"""Committed steps between two losses: verification takes three."""
_PATIENCE: Final = 120.0


def join(job: Job, name: int, node_rank: int) -> None:
    """Start a launcher, and wait until its standbys could take the ranks of a whole node."""
    job.own = {**job.own, name: ["--node-rank", str(node_rank)]}
    job.launchers.append(job.start_again(name))
    job.nodes = max(job.nodes, name + 1)

    def ready() -> bool:
        return bool(job.state()["topology"]["standbys"].get(f"node-{name}", 0) >= RANKS_PER_NODE)

    job.until(ready, _PATIENCE, f"spare node {name}")


def lose(job: Job, at: int) -> float:
    """SIGKILL the launcher ``at`` this place, and with it all processes of its node; the Unix time of it."""
    launcher = job.launchers.pop(at)
    now = time.time()
    launcher.kill()
    launcher.wait()
    return now


def measure(directory: Path, arguments: Sequence[str], count: int) -> list[Row]:
    """Lose ``count`` nodes, one after the other."""
    options = ["--nnodes", "2:3", "--max-restarts", str(count + 1), "--parity-interval", "0", "--standbys", "0"]
    steps = (count + 2) * (_STEPS_BETWEEN + 200)
    arguments = ["--steps", str(steps), *arguments]
    job = Job(directory=directory / "job", arguments=arguments, options=options, port=free_port())
    lost_at: list[float] = []
    with job:
        job.wait_step(10, _PATIENCE)
        for number in range(count):
            join(job, name=number + 2, node_rank=2 - number % 2)  # nodes 1 and 2 in turn; node 0 coordinates
            job.wait_step(job.step() + _STEPS_BETWEEN, _PATIENCE)
            lost_at.append(lose(job, at=1))
            job.wait_recoveries(number + 1, _PATIENCE)
        state, events = job.state(), job.events("recovery_completed")
    return [_row(lost_at, events, max(state["protection"]["state_bytes"]) / 1e6)]


def _row(lost_at: list[float], events: list[dict[str, Any]], megabytes: float) -> Row:
    seconds = sorted(event["time"] - at for event, at in zip(events, lost_at, strict=True))
    p95 = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    phases = {n: statistics.median(e["data"]["seconds"][n] for e in events) for n in events[0]["data"]["seconds"]}
    lost = max(event["data"]["steps_lost"] for event in events)
    told = ", ".join(f"{name} {value:.3f}" for name, value in phases.items())
    return Row(
        claim="lost node -> spare node trains in its place, 12 MB a rank, p95", figure=p95, unit="s",
        target=f"<= {ASKED_SECONDS:g}", holds=p95 <= ASKED_SECONDS, kind="live", n=len(seconds),
        note=f"SIGKILL of a launcher with its {RANKS_PER_NODE} ranks -> next step of all 4 (dp 2 x pp 2, "
        f"{megabytes:.1f} MB of state a rank, from peers); median {statistics.median(seconds):.2f} s; steps lost, "
        f"worst: {lost}; phases, median s: {told}; load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores. A node "
        "whose connections stay open is noticed after --node-timeout (10 s) only",
    )  # fmt: skip
