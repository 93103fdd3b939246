"""Detection in shards: the same findings as in one process, and what each shard costs. Generated runs, in this process.

``python -m bench.detection_shards [--json FILE] [--runs 200] [--nodes 1000]``: an hour. A run has eight nodes with
faults of three devices, a node that stops reporting, and six jobs, of which one is slow and one hangs
(``tests/service/incidents/sharded_run.py``). The cost is of 8 GPUs a node and 16 jobs of 256 ranks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.report import RESULTS, Row, publish
from mainstay.probes.signals import SignalSource
from mainstay.service.incidents.detection_shards import shards
from mainstay.service.incidents.detector_runner import DetectorRunner, Fleet
from mainstay.service.incidents.job_detectors import JobStores
from mainstay.service.telemetry.pairs import PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.ring import TelemetryRing
from mainstay.service.telemetry.steps import StepStore
from tests.detectors.healthy import PER_NODE, HealthyFleet
from tests.service.incidents.sharded_run import GeneratedRun, detectors_of, place_job
from tests.service.incidents.test_device_feed import replay
from tests.service.run_frames import checked, progress_frame, step_frame

COUNTS = (2, 8)
JOBS, RANKS = 16, 256
SECONDS, WARM_UP = 150, 90
"""Of the run whose cost is measured; the first seconds are not counted."""
LINEAR = 1.1


def equality(runs: int) -> Row:
    """Findings of several shards beside those of one."""
    different, found, detectors = 0, 0, set[str]()
    for seed in range(runs):
        run = GeneratedRun(seed)
        whole = run.evaluate(1)
        found += len(whole)
        detectors |= detectors_of(whole)
        different += any(run.evaluate(count) != whole for count in COUNTS)
    return Row(
        claim="generated runs whose findings differ between 1, 2, and 8 shards", figure=different, unit="",
        target="0", holds=different == 0, kind="simulated", n=runs,
        note=f"{found} findings of {len(detectors)} detectors: {', '.join(sorted(detectors))}",
    )  # fmt: skip


def _report(stores: Sequence[JobStores], second: int, start: int, rng: np.random.Generator) -> None:
    """A second of progress and a step of each job."""
    for job in range(JOBS):
        told = progress_frame(
            float(start + second), {"in_collective_seconds": 0.1, "progress_step": second}, ranks=RANKS,
            subject=f"job-{job}",
        )  # fmt: skip
        for store in stores:
            store.progress.write(checked(told))
        seconds = 0.5 * (1 + 0.003 * rng.standard_normal((RANKS, 1)))
        times = {"compute_time_seconds": seconds, "step_time_seconds": float(seconds.max())}
        told = step_frame(second, times, end=float(start + second), ranks=RANKS, subject=f"job-{job}")
        for store in stores:
            store.steps.write(checked(told))


class _Measured:
    """A number of shards with stores of their own, and the CPU seconds that each has used."""

    def __init__(self, count: int, ring: TelemetryRing) -> None:
        self.stores = JobStores(steps=StepStore(256), progress=ProgressStore(600), pairs=PairStore(64))
        self._runners = [DetectorRunner(ring, self.stores, shard=shard) for shard in shards(count)]
        self.used = np.zeros(count)

    def evaluate(self, fleet: Fleet, now: float, *, counted: bool) -> None:
        for number, runner in enumerate(self._runners):
            began = time.process_time()
            runner.evaluate(fleet, now)
            self.used[number] += (time.process_time() - began) * counted


def costs(nodes: int) -> list[Row]:
    """What 1, 2, and 4 shards cost in all, and the largest of them; all evaluate each second, in turns."""
    ring = TelemetryRing(SECONDS + 30)
    data = HealthyFleet(nodes * PER_NODE, 0).next(SECONDS)
    replay(ring, data)
    start, rng = int(data.t[0]), np.random.default_rng(0)
    cohorts = {c: "pod" for source in (SignalSource.GPU, SignalSource.HOST) for c in ring.columns(source)}
    runs = [place_job(job, RANKS, first=job * RANKS // PER_NODE, per_node=PER_NODE, nodes=nodes) for job in range(JOBS)]
    fleet = Fleet(cohorts=cohorts, nodes=tuple(f"n{i:04d}" for i in range(nodes)), runs=runs)
    measured = {count: _Measured(count, ring) for count in (1, 2, 4)}
    for second in range(SECONDS):
        _report([one.stores for one in measured.values()], second, start, rng)
        now = replace(fleet, last_frames=np.full(nodes, float(start + second)))
        turns = list(measured.values())
        for one in turns[second % 3 :] + turns[: second % 3]:
            one.evaluate(now, float(start + second), counted=second >= WARM_UP)
    whole = float(measured.pop(1).used.sum())
    what = f"{nodes} nodes of {PER_NODE} GPUs, {JOBS} jobs of {RANKS} ranks"
    rows = [
        Row(claim=f"detection in one process, {what}", figure=whole / (SECONDS - WARM_UP), unit="cores", target="",
            holds=None, kind="simulated")
    ]  # fmt: skip
    for count, one in measured.items():
        total, each = float(one.used.sum()) / whole, one.used / whole
        rows += [
            Row(claim=f"{count} shards together ÷ one process", figure=total, unit="", target=f"<= {LINEAR}",
                holds=total <= LINEAR, kind="simulated"),
            Row(claim=f"the largest of {count} shards ÷ one process", figure=float(each.max()), unit="", target="",
                holds=None, kind="simulated", note="each: " + ", ".join(f"{part:.2f}" for part in each)),
        ]  # fmt: skip
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.detection_shards")
    parser.add_argument("--json", type=Path, default=RESULTS / "detection_shards.json", metavar="FILE")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=1000)
    given = parser.parse_args()
    publish("detection_shards", [*costs(given.nodes), equality(given.runs)], given.json)


if __name__ == "__main__":
    main()
