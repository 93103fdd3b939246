"""The detectors at work: one of each for the fleet, one set for each job, fed from the rings.

Not thread-safe: the detection loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mainstay.detectors.base import ArrayDetector, Feed
from mainstay.detectors.finding import Finding
from mainstay.detectors.registry import ARRAY_DETECTORS
from mainstay.probes.signals import SignalSource
from mainstay.service.incidents.detector_status import DetectorStatusCache
from mainstay.service.incidents.device_feed import DeviceFeed, heartbeats
from mainstay.service.incidents.job_detectors import OF_JOBS, JobDetectors, JobStores
from mainstay.service.incidents.runs import RunningJob
from mainstay.service.telemetry.catalogs import RING_SOURCES
from mainstay.service.telemetry.ring import Column, TelemetryRing


@dataclass
class Fleet:
    """What the database knows and the rings do not: who exists, and who may be compared with whom."""

    cohorts: Mapping[Column, str] = field(default_factory=dict)
    heard: Mapping[str, float] = field(default_factory=dict)
    """Node → when its last frame arrived."""
    runs: Sequence[RunningJob] = ()
    """Jobs that run."""
    relayed: frozenset[str] = frozenset()
    """Nodes that are known through an exporter only: its silence says nothing of them."""


class DetectorRunner:
    """All array detectors of one service."""

    def __init__(
        self,
        ring: TelemetryRing,
        stores: JobStores,
        accounts: DetectorStatusCache | None = None,
        classes: Mapping[str, type[ArrayDetector]] = ARRAY_DETECTORS,
    ) -> None:
        self._stores, self._accounts = stores, accounts or DetectorStatusCache()
        self._heartbeat = classes["heartbeat"]()
        by_time = [cls for name, cls in classes.items() if cls.feed is Feed.DEVICES and name != "heartbeat"]
        self._devices = [_device_watch(ring, source, by_time) for source in RING_SOURCES]
        self._of_jobs = [cls for cls in classes.values() if cls.feed in OF_JOBS]
        self._jobs: dict[str, JobDetectors] = {}
        self.others: dict[str, float] = {}
        """Node → when anything but a frame was heard from it: step records, events."""

    def judge(self, fleet: Fleet, now: float) -> list[Finding]:
        """Everything that begins or ceases to hold since the last call."""
        found = self._judge_devices(fleet, now) + self._judge_jobs(fleet, now)
        speaking = {node: at for node, at in fleet.heard.items() if node not in fleet.relayed}
        heard = heartbeats(now, speaking, self.others)
        return found if heard is None else found + self._heartbeat.update(heard)

    def judged_at(self, job: str, feed: Feed) -> float | None:
        """When the job's samples of a feed were last judged; None when they never were."""
        watch = self._jobs.get(job)
        return None if watch is None else watch.judged.get(feed)

    def _judge_devices(self, fleet: Fleet, now: float) -> list[Finding]:
        found: list[Finding] = []
        for feed, detectors in self._devices:
            samples = feed.read_ready(now, fleet.cohorts)
            if samples is not None:
                found.extend(finding for detector in detectors for finding in detector.update(samples))
        return found

    def _judge_jobs(self, fleet: Fleet, now: float) -> list[Finding]:
        running = {run.job: run for run in fleet.runs}
        # A job that started again under its name is another run: state and findings of the last one do not apply.
        over = [job for job, watch in self._jobs.items() if _over(watch.run, running.get(job))]
        found = [finding for job in sorted(over) for finding in self._jobs.pop(job).end(now)]
        for job, run in running.items():
            watch = self._jobs.get(job)
            if watch is None:
                watch = self._jobs[job] = JobDetectors(run, self._stores, self._of_jobs)
            found.extend(watch.judge(run, self.others, now))
        self._accounts.replace({job: watch.account() for job, watch in self._jobs.items()})
        return found


def _over(before: RunningJob, now: RunningJob | None) -> bool:
    return now is None or now.started_at != before.started_at


def _device_watch(
    ring: TelemetryRing, source: SignalSource, classes: Sequence[type[ArrayDetector]]
) -> tuple[DeviceFeed, tuple[ArrayDetector, ...]]:
    """One feed a source with everything that its detectors read, so that the ring is copied once."""
    mine = [cls for cls in classes if _carried(ring, source, cls.signals)]
    signals = dict.fromkeys(name for cls in mine for name in _carried(ring, source, cls.signals))
    beside = dict.fromkeys(name for cls in mine for name in cls.host_signals if name not in signals)
    return DeviceFeed(ring, source, tuple(signals), tuple(beside)), tuple(cls() for cls in mine)


def _carried(ring: TelemetryRing, source: SignalSource, signals: Sequence[str]) -> tuple[str, ...]:
    """Those of a detector's signals that the source's ring holds."""
    known = ring.window(source, 0, 0).signals
    return tuple(signal for signal in signals if signal in known)
