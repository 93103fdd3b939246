"""Is the extra copy of a degrading node in place before it dies, and does the job continue from the newest step?

Each run is a real job of three nodes without any scheme: a service that says one thing warns of a node, which is lost
with its processes and memory ``--lead`` seconds later. Good is a run that comes back from the copy, with at most one
step made again.

``python -m bench.extra_copies [--json FILE] [--quick] [--runs 20] [--lead 5]``
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.lib_job import Job, JobError
from bench.lib_node_warnings import Warner
from bench.report import RESULTS, Row, publish

NODES: Final = 3
WANTED: Final = 0.95
SHAPE: Final = ["--dp", "1", "--pp", str(NODES), "--layers", str(NODES), "--width", "256", "--steps", "1000000"]


def lose(job: Job, number: int) -> None:
    """SIGKILL a node's launcher, all its processes and its memory."""
    doomed = job.children(number)
    job.launchers[number].kill()
    job.launchers[number].wait()
    for directory in job.shm.glob(f"*/job/node-{number}"):
        shutil.rmtree(directory, ignore_errors=True)
    del job.launchers[number]
    deadline = time.monotonic() + 30.0
    while any(Path(f"/proc/{pid}").exists() for pid in doomed) and time.monotonic() < deadline:
        time.sleep(0.02)


def suspects(job: Job) -> list[dict[str, Any]]:
    """What the job report says of distrusted nodes."""
    figure = job.state().get("protection", {}).get("durability") or {}
    found: list[dict[str, Any]] = figure.get("suspects", [])
    return found


def run(directory: Path, seed: int, lead: float) -> dict[str, Any]:
    """One node warned of and lost: whether its copy was there, and what the recovery cost."""
    # Not node 0: it coordinates, and who succeeds it is another matter.
    victim = random.Random(seed).randrange(1, NODES)
    token = directory / "token"
    token.write_text("of-no-user")
    with Warner() as warner:
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
        job = Job(directory=directory / "job", arguments=[*SHAPE, "--seed", str(seed)], nodes=NODES, per_node=1,
                  options=options)  # fmt: skip
        with job:
            job.wait_step(10)
            warned = time.time()
            node = f"node-{victim}"
            warner.hazards = {node: {"reason": "bench", "factor": 100.0, "since": warned, "corrupt": False}}
            told_after = None
            while time.time() - warned < lead:
                if told_after is None and any(s["copies"] for s in suspects(job)):
                    told_after = time.time() - warned
                time.sleep(0.02)
            lose(job, victim)
            try:
                recovered = job.wait_recoveries(1, 120.0)["data"]
            except JobError as error:
                return {"ok": False, "told_after_s": told_after, "why": str(error)[:300]}
    lost = int(recovered["steps_lost"])
    return {"ok": lost <= 1, "told_after_s": told_after, "steps_lost": lost}


def rows(runs: int, lead: float, seed: int) -> list[Row]:
    """Two rows: how often the copy was there, and how soon the job report named it."""
    results = []
    for number in range(runs):
        with tempfile.TemporaryDirectory(prefix="mainstay-hazard-") as directory:
            results.append(run(Path(directory), seed + number, lead))
        print(f"run {number + 1}: {results[-1]}", flush=True)
    good = sum(result["ok"] for result in results)
    told = sorted(result["told_after_s"] for result in results if result["told_after_s"] is not None)
    median = statistics.median(told) if told else None
    failed = next((f"; the first that was not: {result}" for result in results if not result["ok"]), "")
    what = f"a node is warned of and lost {lead:g} s later with its memory"
    return [
        Row(
            claim=f"{what}: runs that continue from its newest step or the one before", figure=good / len(results),
            unit="of runs", target=f">= {WANTED:g}", holds=good / len(results) >= WANTED, kind="live", n=len(results),
            note=f"three nodes, no scheme; load {os.getloadavg()[0]:.0f}{failed}"[:500],
        ),
        Row(
            claim="from the warning to a copy in the job report, median", figure=median, unit="s",
            target="", holds=None, kind="live", n=len(told), note="the report is written each second or so",
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS / "hazard_copies.json", metavar="FILE")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--lead", type=float, default=5.0, help="seconds between warning and loss")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="three runs")
    asked = parser.parse_args()
    if asked.runs < 1:
        parser.error(f"--runs {asked.runs}: at least one")
    publish("extra_copies", rows(3 if asked.quick else asked.runs, asked.lead, asked.seed), asked.json)


if __name__ == "__main__":
    main()
