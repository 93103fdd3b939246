"""The detectors of one job at work on its three feeds.

Invariant: a detector that fails is set aside, reports that in its status, and keeps no other from running; its findings
are withdrawn when the job ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from mainstay.detectors.base import ArrayDetector, DetectorState, DetectorStatus, Feed, Samples
from mainstay.detectors.finding import Evidence, Finding
from mainstay.detectors.hang.detector import HangDetector
from mainstay.service.incidents.detector_status import JobAccount
from mainstay.service.incidents.job_feed import PairFeed, ProgressFeed, StepFeed
from mainstay.service.incidents.runs import RunningJob
from mainstay.service.telemetry.pairs import PAIR_SIGNALS, PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.steps import StepStore

_log: Final = logging.getLogger(__name__)
OF_JOBS: Final = (Feed.STEPS, Feed.PROGRESS, Feed.PAIRS)


@dataclass(frozen=True, kw_only=True)
class JobStores:
    """Where the feeds of jobs are cut from."""

    steps: StepStore
    progress: ProgressStore
    pairs: PairStore


@dataclass
class JobDetectors:
    """One set of detectors for one run of one job."""

    run: RunningJob
    stores: JobStores
    classes: Sequence[type[ArrayDetector]]
    judged: dict[Feed, float] = field(default_factory=dict, init=False)
    """When samples of a feed were last evaluated, by the clock of the detection loop."""
    _detectors: dict[Feed, list[ArrayDetector]] = field(default_factory=dict, init=False)
    _failed: dict[str, str] = field(default_factory=dict, init=False)
    _held: dict[str, Finding] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for feed in OF_JOBS:
            self._detectors[feed] = [cls() for cls in self.classes if cls.feed is feed]
        job, stores = self.run.job, self.stores
        self._steps = StepFeed(stores.steps, job, self._signals(Feed.STEPS))
        self._progress = ProgressFeed(stores.progress, job, self._signals(Feed.PROGRESS))
        self._pairs = PairFeed(stores.pairs, job)

    def _signals(self, feed: Feed) -> tuple[str, ...]:
        """What any of a feed's detectors reads, so that the ring is copied once."""
        return tuple(dict.fromkeys(name for detector in self._detectors[feed] for name in detector.signals))

    def judge(self, run: RunningJob, others: dict[str, float], now: float) -> list[Finding]:
        """What begins or ceases to hold; nodes whose ranks finished a step are noted in ``others``."""
        self.run = run
        found: list[Finding] = []
        for feed, samples in self._take(now):
            self.judged[feed] = now
            if feed is Feed.STEPS:
                _note(samples, others, now)
            found += self._update(feed, samples)
        return found

    def _take(self, now: float) -> Iterator[tuple[Feed, Samples]]:
        feeds = ((Feed.PROGRESS, self._progress), (Feed.STEPS, self._steps), (Feed.PAIRS, self._pairs))
        for feed, source in feeds:
            samples = source.read_ready(self.run, now) if self._detectors[feed] else None
            if samples is not None:
                yield feed, samples

    def _update(self, feed: Feed, samples: Samples) -> list[Finding]:
        found = [f for detector in self._detectors[feed] for f in self._ask(detector, samples)]
        for finding in found:
            if finding.active:
                self._held[finding.key] = finding
            else:
                self._held.pop(finding.key, None)
        return found

    def _ask(self, detector: ArrayDetector, samples: Samples) -> list[Finding]:
        if detector.name in self._failed:
            return []
        try:
            return detector.update(samples)
        except Exception as error:  # noqa: BLE001 - named boundary: one detector's fault must not blind the others
            _log.exception("detector %s failed on job %s and is set aside", detector.name, self.run.job)
            self._failed[detector.name] = f"It failed and is set aside until the job ends: {type(error).__name__}."
            return []

    def account(self) -> JobAccount:
        """What each says of itself, in the order of the registry."""
        told = {d.name: self._account(d) for detectors in self._detectors.values() for d in detectors}
        activity = next(
            (d.hang_status.activity for d in self._detectors[Feed.PROGRESS] if isinstance(d, HangDetector)), None
        )
        return JobAccount([(cls.name, told[cls.name]) for cls in self.classes if cls.name in told], activity)

    def _account(self, detector: ArrayDetector) -> DetectorStatus:
        why = self._failed.get(detector.name)
        return detector.status() if why is None else DetectorStatus(state=DetectorState.ABSTAINING, reason=why)

    def end(self, now: float) -> list[Finding]:
        """Withdraw all findings of a job that has ended."""
        found = []
        for feed in OF_JOBS:
            found += self._update(feed, self._nobody(feed, now))
        evidence = Evidence(summary="The job ended and is no longer watched.")
        return found + [replace(f, time=now, evidence=evidence, active=False) for f in self._held.values()]

    def _nobody(self, feed: Feed, now: float) -> Samples:
        signals = PAIR_SIGNALS if feed is Feed.PAIRS else self._signals(feed)
        steps = np.zeros(1, np.int64) if feed.by_step else None
        x = np.empty((1, len(signals), 0))
        return Samples(entities=(), groups=(), signals=signals, t=np.array([now]), x=x, steps=steps)


def _note(samples: Samples, others: dict[str, float], now: float) -> None:
    """A rank that finished a step shows that its node lives."""
    for row in np.flatnonzero(np.isfinite(samples.x).any(axis=(0, 1))):
        node = samples.entities[row].node
        if node is not None:
            others[node] = now
