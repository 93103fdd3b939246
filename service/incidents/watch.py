"""The detectors at work: one of each for the fleet, one straggler test a job, fed from the rings.

Not thread-safe: the judge's loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from detectors.base import ArrayDetector, Feed, Samples
from detectors.finding import Finding
from detectors.registry import ARRAY_DETECTORS
from probes.signals import SignalSource
from service.incidents.feed import DeviceFeed, RankPlace, StepFeed, beats, places_of
from service.jobs.models import JobRow
from service.telemetry.catalogues import RING_SOURCES
from service.telemetry.ring import Column, Ring
from service.telemetry.steps import StepStore


@dataclass
class Fleet:
    """What the database knows and the rings do not: who exists, and who may be compared with whom."""

    cohorts: Mapping[Column, str] = field(default_factory=dict)
    heard: Mapping[str, float] = field(default_factory=dict)
    """Node → when its last frame arrived."""
    jobs: Sequence[JobRow] = ()
    """Those that run."""
    relayed: frozenset[str] = frozenset()
    """Nodes that are known through an exporter only: its silence says nothing of them."""


@dataclass
class JobWatch:
    """The step detectors of one job."""

    feed: StepFeed
    detectors: tuple[ArrayDetector, ...]

    def judge(self, places: Sequence[RankPlace], others: dict[str, float], now: float) -> list[Finding]:
        samples = self.feed.take(places)
        if samples is None:
            return []
        for row in np.flatnonzero(np.isfinite(samples.x).any(axis=(0, 1))):
            node = samples.entities[row].node
            if node is not None:
                others[node] = now
        return [finding for detector in self.detectors for finding in detector.update(samples)]

    def end(self, now: float) -> list[Finding]:
        """The job is over: what was said about its ranks is withdrawn."""
        signals = self.feed.signals
        nobody = Samples(
            entities=(),
            groups=(),
            signals=signals,
            t=np.array([now]),
            x=np.empty((1, len(signals), 0)),
            steps=np.zeros(1, np.int64),
        )
        return [finding for detector in self.detectors for finding in detector.update(nobody)]


class Watch:
    """All array detectors of one service."""

    def __init__(self, ring: Ring, steps: StepStore) -> None:
        self._steps = steps
        self._heartbeat = ARRAY_DETECTORS["heartbeat"]()
        by_time = [cls for name, cls in ARRAY_DETECTORS.items() if cls.feed is Feed.DEVICES and name != "heartbeat"]
        self._devices = [_device_watch(ring, source, by_time) for source in RING_SOURCES]
        self._jobs: dict[str, JobWatch] = {}
        self.others: dict[str, float] = {}
        """Node → when anything but a frame was heard from it: step records, events."""

    def judge(self, fleet: Fleet, now: float) -> list[Finding]:
        """Everything that begins or ceases to hold since the last call."""
        found = self._judge_devices(fleet, now) + self._judge_jobs(fleet, now)
        speaking = {node: at for node, at in fleet.heard.items() if node not in fleet.relayed}
        heard = beats(now, speaking, self.others)
        return found if heard is None else found + self._heartbeat.update(heard)

    def _judge_devices(self, fleet: Fleet, now: float) -> list[Finding]:
        found: list[Finding] = []
        for feed, detectors in self._devices:
            samples = feed.take(now, fleet.cohorts)
            if samples is not None:
                found.extend(finding for detector in detectors for finding in detector.update(samples))
        return found

    def _judge_jobs(self, fleet: Fleet, now: float) -> list[Finding]:
        running = {job.id: job for job in fleet.jobs}
        found: list[Finding] = []
        for gone in sorted(set(self._jobs) - set(running)):
            found.extend(self._jobs.pop(gone).end(now))
        for name in sorted(running):
            watch = self._jobs.get(name) or self._new(name)
            found.extend(watch.judge(places_of(running[name].topology), self.others, now))
        return found

    def _new(self, job: str) -> JobWatch:
        detectors = tuple(cls() for cls in ARRAY_DETECTORS.values() if cls.feed is Feed.STEPS)
        signals = tuple(dict.fromkeys(signal for detector in detectors for signal in detector.signals))
        watch = self._jobs[job] = JobWatch(StepFeed(self._steps, job, signals), detectors)
        return watch


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
