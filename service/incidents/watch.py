"""The detectors at work: one of each for the fleet, one set for each job, fed from the rings.

Not thread-safe: the judge's loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detectors.base import ArrayDetector, Feed
from detectors.finding import Finding
from detectors.registry import ARRAY_DETECTORS
from probes.signals import SignalSource
from service.incidents.accounts import Accounts
from service.incidents.feed import DeviceFeed, beats
from service.incidents.job_watch import OF_JOBS, JobStores, JobWatch
from service.incidents.runs import Run
from service.telemetry.catalogues import RING_SOURCES
from service.telemetry.ring import Column, Ring


@dataclass
class Fleet:
    """What the database knows and the rings do not: who exists, and who may be compared with whom."""

    cohorts: Mapping[Column, str] = field(default_factory=dict)
    heard: Mapping[str, float] = field(default_factory=dict)
    """Node → when its last frame arrived."""
    runs: Sequence[Run] = ()
    """Jobs that run."""
    relayed: frozenset[str] = frozenset()
    """Nodes that are known through an exporter only: its silence says nothing of them."""


class Watch:
    """All array detectors of one service."""

    def __init__(
        self,
        ring: Ring,
        stores: JobStores,
        accounts: Accounts | None = None,
        classes: Mapping[str, type[ArrayDetector]] = ARRAY_DETECTORS,
    ) -> None:
        self._stores, self._accounts = stores, accounts or Accounts()
        self._heartbeat = classes["heartbeat"]()
        by_time = [cls for name, cls in classes.items() if cls.feed is Feed.DEVICES and name != "heartbeat"]
        self._devices = [_device_watch(ring, source, by_time) for source in RING_SOURCES]
        self._of_jobs = [cls for cls in classes.values() if cls.feed in OF_JOBS]
        self._jobs: dict[str, JobWatch] = {}
        self.others: dict[str, float] = {}
        """Node → when anything but a frame was heard from it: step records, events."""

    def judge(self, fleet: Fleet, now: float) -> list[Finding]:
        """Everything that begins or ceases to hold since the last call."""
        found = self._judge_devices(fleet, now) + self._judge_jobs(fleet, now)
        speaking = {node: at for node, at in fleet.heard.items() if node not in fleet.relayed}
        heard = beats(now, speaking, self.others)
        return found if heard is None else found + self._heartbeat.update(heard)

    def judged_at(self, job: str, feed: Feed) -> float | None:
        """When the job's samples of a feed were last judged; None when they never were."""
        watch = self._jobs.get(job)
        return None if watch is None else watch.judged.get(feed)

    def _judge_devices(self, fleet: Fleet, now: float) -> list[Finding]:
        found: list[Finding] = []
        for feed, detectors in self._devices:
            samples = feed.take(now, fleet.cohorts)
            if samples is not None:
                found.extend(finding for detector in detectors for finding in detector.update(samples))
        return found

    def _judge_jobs(self, fleet: Fleet, now: float) -> list[Finding]:
        running = {run.job: run for run in fleet.runs}
        # A job that began anew under its name is another run: nothing that was learned or said of the last one holds.
        over = [job for job, watch in self._jobs.items() if _over(watch.run, running.get(job))]
        found = [finding for job in sorted(over) for finding in self._jobs.pop(job).end(now)]
        for job, run in running.items():
            watch = self._jobs.get(job)
            if watch is None:
                watch = self._jobs[job] = JobWatch(run, self._stores, self._of_jobs)
            found.extend(watch.judge(run, self.others, now))
        self._accounts.replace({job: watch.account() for job, watch in self._jobs.items()})
        return found


def _over(before: Run, now: Run | None) -> bool:
    return now is None or now.started_at != before.started_at


def _device_watch(
    ring: Ring, source: SignalSource, classes: Sequence[type[ArrayDetector]]
) -> tuple[DeviceFeed, tuple[ArrayDetector, ...]]:
    """One feed a source with everything that its detectors read, so that the ring is copied once."""
    mine = [cls for cls in classes if _carried(ring, source, cls.signals)]
    signals = dict.fromkeys(name for cls in mine for name in _carried(ring, source, cls.signals))
    beside = dict.fromkeys(name for cls in mine for name in cls.host_signals if name not in signals)
    return DeviceFeed(ring, source, tuple(signals), tuple(beside)), tuple(cls() for cls in mine)


def _carried(ring: Ring, source: SignalSource, signals: Sequence[str]) -> tuple[str, ...]:
    """Those of a detector's signals that the source's ring holds."""
    known = ring.window(source, 0, 0).signals
    return tuple(signal for signal in signals if signal in known)
