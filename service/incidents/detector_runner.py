"""The array detectors of a shard: one of each for the fleet and one set per job, fed from the rings.

Not thread-safe: the detection loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import ArrayDetector, Feed
from mainstay.detectors.finding import Finding
from mainstay.detectors.job.earlier_runs import RunPace
from mainstay.detectors.registry import ARRAY_DETECTORS
from mainstay.probes.signals import SignalSource
from mainstay.service.incidents.detection_shards import WHOLE, DetectionShard
from mainstay.service.incidents.detector_status import DetectorStatusCache
from mainstay.service.incidents.device_feed import DeviceFeed, heartbeats
from mainstay.service.incidents.job_detectors import OF_JOBS, JobDetectors, JobStores, StepSigns
from mainstay.service.incidents.runs import RunningJob
from mainstay.service.telemetry.catalogs import RING_SOURCES
from mainstay.service.telemetry.ring import Column, TelemetryRing


@dataclass
class Fleet:
    """What only the database knows: the nodes and devices, and which of them are peers."""

    cohorts: Mapping[Column, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    """Nodes that send frames themselves and did not shut down, in the order of their names."""
    last_frames: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """[node] when its last frame arrived, Unix seconds; NaN if never."""
    runs: Sequence[RunningJob] = ()
    """Running jobs."""


class DetectorRunner:
    """The array detectors of one shard."""

    def __init__(
        self,
        ring: TelemetryRing,
        stores: JobStores,
        accounts: DetectorStatusCache | None = None,
        classes: Mapping[str, type[ArrayDetector]] = ARRAY_DETECTORS,
        shard: DetectionShard = WHOLE,
    ) -> None:
        self._stores, self._accounts, self._shard = stores, accounts or DetectorStatusCache(), shard
        self._heartbeat = classes["heartbeat"]()
        by_time = [cls for name, cls in classes.items() if cls.feed is Feed.DEVICES and name != "heartbeat"]
        mine = [cls for cls in by_time if shard.has_detector(cls.name)]
        # Apart, because others would take a value of the GPUs beside a host for the host's own.
        groups = [[cls for cls in mine if bool(cls.gpu_signals) == with_gpus] for with_gpus in (False, True)]
        self._devices = [_device_detectors(ring, source, each) for source in RING_SOURCES for each in groups]
        self._of_jobs = [cls for cls in classes.values() if cls.feed in OF_JOBS]
        self._jobs: dict[str, JobDetectors] = {}
        self._signs = StepSigns(stores)
        self.others: dict[str, float] = {}
        """Node -> when step records or events (not frames) last arrived from it, Unix seconds."""

    def evaluate(self, fleet: Fleet, now: float) -> list[Finding]:
        """Return the findings that opened or ended since the last call."""
        found = self._evaluate_devices(fleet, now) + self._evaluate_jobs(fleet, now)
        if not self._shard.is_first:
            return found
        self._signs.note(fleet.runs, self.others, now)
        samples = heartbeats(now, fleet.nodes, fleet.last_frames, self.others)
        return found if samples is None else found + self._heartbeat.update(samples)

    @property
    def fleet_detectors(self) -> list[ArrayDetector]:
        """Those of devices and hosts."""
        return [detector for _, detectors in self._devices for detector in detectors]

    def holds(self, finding: Finding) -> bool:
        """Whether a detector of the fleet said so, before or after a restart, and not that it is over."""
        named = (detector for detector in self.fleet_detectors if detector.name == finding.detector)
        return any(detector.holds(finding.kind, finding.entity) for detector in named)

    def evaluated_at(self, job: str, feed: Feed) -> float | None:
        """Return when samples of a feed of the job were last evaluated; None if never."""
        detectors = self._jobs.get(job)
        return None if detectors is None else detectors.evaluated.get(feed)

    @property
    def new_paces(self) -> list[tuple[JobDetectors, RunPace]]:
        """Jobs whose pace after the start is known and not stored."""
        unstored = (one for one in self._jobs.values() if not one.is_pace_stored)
        return [(one, pace) for one in unstored if (pace := one.pace) is not None]

    def _evaluate_devices(self, fleet: Fleet, now: float) -> list[Finding]:
        found: list[Finding] = []
        for feed, detectors in self._devices:
            samples = feed.read_ready(now, fleet.cohorts) if detectors else None
            if samples is not None:
                found.extend(finding for detector in detectors for finding in detector.update(samples))
        return found

    def _evaluate_jobs(self, fleet: Fleet, now: float) -> list[Finding]:
        running = {run.job: run for run in fleet.runs if self._shard.has_job(run.job)}
        # A job that starts again under its name is another run: state and findings of the earlier run do not apply.
        over = [job for job, detectors in self._jobs.items() if _has_ended(detectors.run, running.get(job))]
        found = [finding for job in sorted(over) for finding in self._jobs.pop(job).end(now)]
        for job, run in running.items():
            detectors = self._jobs.get(job)
            if detectors is None:
                detectors = self._jobs[job] = JobDetectors(run, self._stores, self._of_jobs)
            found.extend(detectors.evaluate(run, now))
        self._accounts.replace({job: detectors.account() for job, detectors in self._jobs.items()}, self._shard.index)
        return found


def _has_ended(before: RunningJob, now: RunningJob | None) -> bool:
    return now is None or now.started_at != before.started_at


def _device_detectors(
    ring: TelemetryRing, source: SignalSource, classes: Sequence[type[ArrayDetector]]
) -> tuple[DeviceFeed, tuple[ArrayDetector, ...]]:
    """Return one feed per source with all signals that its detectors read, so that the ring is copied once."""
    mine = [cls for cls in classes if _carried(ring, source, cls.signals)]
    signals = dict.fromkeys(name for cls in mine for name in _carried(ring, source, cls.signals))
    beside = dict.fromkeys(name for cls in mine for name in cls.host_signals if name not in signals)
    gpus = dict.fromkeys(name for cls in mine for name in cls.gpu_signals)
    return DeviceFeed(ring, source, tuple(signals), tuple(beside), tuple(gpus)), tuple(cls() for cls in mine)


def _carried(ring: TelemetryRing, source: SignalSource, signals: Sequence[str]) -> tuple[str, ...]:
    """Return those signals of a detector that the ring of the source contains."""
    known = ring.window(source, 0, 0).signals
    return tuple(signal for signal in signals if signal in known)
