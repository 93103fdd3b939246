"""A generated run of a fleet and its jobs, with faults, that any number of shards of detection evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Finding
from mainstay.probes.signals import SignalSource
from mainstay.service.incidents.detection_shards import shards
from mainstay.service.incidents.detector_runner import DetectorRunner, Fleet
from mainstay.service.incidents.job_detectors import JobStores
from mainstay.service.incidents.runs import RunningJob, run_of
from mainstay.service.telemetry.pairs import PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.ring import TelemetryRing
from mainstay.service.telemetry.steps import StepStore
from tests.detectors.healthy import PER_NODE, ROW, HealthyFleet
from tests.service.incidents.test_device_feed import replay
from tests.service.run_frames import checked, progress_frame, step_frame

RANKS = 8
STEP_SECONDS = 2
DEVICE_FAULTS = (
    ("gpu_temperature_celsius", 97.0),
    ("gpu_throttle_power_brake_nanoseconds_total", 6e8),
    ("gpu_throttle_hardware_thermal_nanoseconds_total", 6e8),
    ("gpu_pcie_width", 4.0),
    ("gpu_nvlinks_active", 11.0),
    ("gpu_remap_failed", 1.0),
)
"""Signal and value of a device from the onset of its fault on."""
Told = tuple[str, str, bool, float, str]
"""Detector, key, active, time, and summary of a finding."""


@dataclass
class GeneratedRun:
    """Telemetry of ``nodes`` nodes and ``jobs`` jobs for ``seconds``; the same for the same seed."""

    seed: int
    nodes: int = 8
    jobs: int = 6
    seconds: int = 150
    data: Samples = field(init=False)
    silent: dict[int, int] = field(init=False)
    """Node → second of the run from which it sends nothing."""
    slow: dict[int, int] = field(init=False)
    """Job → second from which its rank 3 computes for half as long again."""
    stuck: dict[int, int] = field(init=False)
    """Job → second from which its ranks finish nothing."""

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.data = HealthyFleet(self.nodes * PER_NODE, self.seed).next(self.seconds)
        for choice in rng.choice(len(DEVICE_FAULTS), 3, replace=False):
            signal, value = DEVICE_FAULTS[choice]
            onset, device = int(rng.integers(60, 90)), int(rng.integers(self.data.x.shape[2]))
            seen = np.isfinite(self.data.x[onset:, ROW[signal], device])
            self.data.x[onset:, ROW[signal], device][seen] = value
        onsets = rng.integers(60, 100, 3).tolist()
        self.silent = {int(rng.integers(self.nodes)): onsets[0]}
        first, second = rng.choice(self.jobs, 2, replace=False).tolist()
        self.slow, self.stuck = {first: onsets[1]}, {second: onsets[2]}

    def runs(self) -> list[RunningJob]:
        """Job ``k`` runs on the GPUs of two nodes."""
        return [place_job(job, RANKS, first=job, per_node=4, nodes=self.nodes) for job in range(self.jobs)]

    def evaluate(self, count: int) -> list[Told]:
        """The findings of ``count`` shards, sorted."""
        ring = TelemetryRing(900)
        replay(ring, self.data)
        stores = JobStores(steps=StepStore(256), progress=ProgressStore(600), pairs=PairStore(64))
        runners = [DetectorRunner(ring, stores, shard=shard) for shard in shards(count)]
        cohorts = {c: "pod" for source in (SignalSource.GPU, SignalSource.HOST) for c in ring.columns(source)}
        fleet = Fleet(cohorts=cohorts, nodes=tuple(f"n{i:04d}" for i in range(self.nodes)), runs=self.runs())
        start, found = int(self.data.t[0]), list[Finding]()
        rng = np.random.default_rng(self.seed)
        for second in range(self.seconds):
            self._write_jobs(stores, second, start, rng)
            last = [start + min(second, self.silent.get(node, second)) for node in range(self.nodes)]
            now = replace(fleet, last_frames=np.array(last, np.float64))
            found += [f for runner in runners for f in runner.evaluate(now, float(start + second))]
        return sorted((f.detector, f.key, f.active, f.time, f.evidence.summary) for f in found)

    def _write_jobs(self, stores: JobStores, second: int, start: int, rng: np.random.Generator) -> None:
        for job in range(self.jobs):
            moving = min(second, self.stuck.get(job, second))
            waits = float(second - moving)
            values = {"in_collective_seconds": waits, "progress_step": moving // STEP_SECONDS}
            told = progress_frame(float(start + second), values, ranks=RANKS, subject=f"job-{job}")
            stores.progress.write(checked(told))
            seconds = 0.5 * (1 + 0.003 * rng.standard_normal((RANKS, 1)))
            if second >= self.slow.get(job, self.seconds):
                seconds[3] *= 1.5
            if second % STEP_SECONDS == 0 and moving == second:
                times = {"compute_time_seconds": seconds, "step_time_seconds": float(seconds.max())}
                number, end = second // STEP_SECONDS, float(start + second)
                stores.steps.write(checked(step_frame(number, times, end=end, ranks=RANKS, subject=f"job-{job}")))


def place_job(job: int, ranks: int, *, first: int, per_node: int, nodes: int) -> RunningJob:
    """A job of replicas whose ranks fill the nodes from number ``first`` on."""
    places = [
        {"rank": r, "dp": r, "pp": 0, "tp": 0, "device": f"gpu{r % per_node}",
         "node": f"n{(first + r // per_node) % nodes:04d}"}
        for r in range(ranks)
    ]  # fmt: skip
    return run_of(f"job-{job}", 0.0, {"ranks": places})


def detectors_of(found: Sequence[Told]) -> set[str]:
    """Names of the detectors that found anything."""
    return {detector for detector, *_ in found}
