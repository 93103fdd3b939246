"""The detectors of one job, run on its three feeds.

Invariant: a detector that fails is set aside, reports that in its status, and does not stop the others; its findings
are withdrawn when the job ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import ArrayDetector, DetectorState, DetectorStatus, Feed, Samples
from mainstay.detectors.finding import Evidence, Finding
from mainstay.detectors.hang.detector import HangDetector
from mainstay.detectors.job.earlier_runs import RunPace
from mainstay.detectors.job.slowdown import SlowdownDetector
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
    """The stores from which the feeds of jobs read."""

    steps: StepStore
    progress: ProgressStore
    pairs: PairStore


@dataclass
class JobDetectors:
    """One set of detectors for one run of one job."""

    run: RunningJob
    stores: JobStores
    classes: Sequence[type[ArrayDetector]]
    is_pace_stored: bool = field(default=False, init=False)
    evaluated: dict[Feed, float] = field(default_factory=dict, init=False)
    """When samples of a feed were last evaluated, by the clock of the detection loop."""
    _detectors: dict[Feed, list[ArrayDetector]] = field(default_factory=dict, init=False)
    _failed: dict[str, str] = field(default_factory=dict, init=False)
    _active: dict[str, Finding] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for feed in OF_JOBS:
            self._detectors[feed] = [cls() for cls in self.classes if cls.feed is feed]
        self._take_earlier_runs()
        job, stores = self.run.job, self.stores
        self._steps = StepFeed(stores.steps, job, self._signals(Feed.STEPS))
        self._progress = ProgressFeed(stores.progress, job, self._signals(Feed.PROGRESS))
        self._pairs = PairFeed(stores.pairs, job)

    def _take_earlier_runs(self) -> None:
        if self.run.earlier is None:
            self.is_pace_stored = True
        elif self._slowdown is not None:
            self._slowdown.earlier = self.run.earlier

    @property
    def _slowdown(self) -> SlowdownDetector | None:
        return next((d for d in self._detectors[Feed.STEPS] if isinstance(d, SlowdownDetector)), None)

    @property
    def pace(self) -> RunPace | None:
        """How long a step took after the start of the run; None until that is known."""
        return None if self._slowdown is None else self._slowdown.pace

    def _signals(self, feed: Feed) -> tuple[str, ...]:
        """Return all signals that the detectors of a feed read, so that the ring is copied once."""
        return tuple(dict.fromkeys(name for detector in self._detectors[feed] for name in detector.signals))

    def evaluate(self, run: RunningJob, now: float) -> list[Finding]:
        """Return the findings that opened or ended."""
        self.run = run
        self._take_earlier_runs()
        found: list[Finding] = []
        for feed, samples in self._read_feeds(now):
            self.evaluated[feed] = now
            found += self._update(feed, samples)
        return found

    def _read_feeds(self, now: float) -> Iterator[tuple[Feed, Samples]]:
        feeds = ((Feed.PROGRESS, self._progress), (Feed.STEPS, self._steps), (Feed.PAIRS, self._pairs))
        for feed, source in feeds:
            samples = source.read_ready(self.run, now) if self._detectors[feed] else None
            if samples is not None:
                yield feed, samples

    def _update(self, feed: Feed, samples: Samples) -> list[Finding]:
        found = [f for detector in self._detectors[feed] for f in self._run_detector(detector, samples)]
        for finding in found:
            if finding.active:
                self._active[finding.key] = finding
            else:
                self._active.pop(finding.key, None)
        return found

    def _run_detector(self, detector: ArrayDetector, samples: Samples) -> list[Finding]:
        if detector.name in self._failed:
            return []
        try:
            return detector.update(samples)
        except Exception as error:  # noqa: BLE001 - named boundary: a failed detector must not stop the others
            _log.exception("detector %s failed on job %s and is set aside", detector.name, self.run.job)
            self._failed[detector.name] = f"It failed and is set aside until the job ends: {type(error).__name__}."
            return []

    def account(self) -> JobAccount:
        """Return the status of each detector, in the order of the registry."""
        statuses = {d.name: self._account(d) for detectors in self._detectors.values() for d in detectors}
        activity = next(
            (d.hang_status.activity for d in self._detectors[Feed.PROGRESS] if isinstance(d, HangDetector)), None
        )
        return JobAccount([(cls.name, statuses[cls.name]) for cls in self.classes if cls.name in statuses], activity)

    def _account(self, detector: ArrayDetector) -> DetectorStatus:
        reason = self._failed.get(detector.name)
        return detector.status() if reason is None else DetectorStatus(state=DetectorState.ABSTAINING, reason=reason)

    def end(self, now: float) -> list[Finding]:
        """Withdraw all findings of a job that has ended."""
        found = []
        for feed in OF_JOBS:
            found += self._update(feed, self._no_ranks(feed, now))
        evidence = Evidence(summary="The job ended and is no longer monitored.")
        return found + [replace(f, time=now, evidence=evidence, active=False) for f in self._active.values()]

    def _no_ranks(self, feed: Feed, now: float) -> Samples:
        signals = PAIR_SIGNALS if feed is Feed.PAIRS else self._signals(feed)
        steps = np.zeros(1, np.int64) if feed.by_step else None
        x = np.empty((1, len(signals), 0))
        return Samples(entities=(), groups=(), signals=signals, t=np.array([now]), x=x, steps=steps)


@dataclass
class StepSigns:
    """Nodes whose ranks finish steps: they are up, also when they send no frames."""

    stores: JobStores
    _ends: dict[str, NDArray[np.float64]] = field(default_factory=dict, init=False)
    """Job → [entity] when that rank finished its newest step, Unix seconds."""

    def note(self, runs: Sequence[RunningJob], others: dict[str, float], now: float) -> None:
        """Set ``others`` of each node to ``now`` if a rank there finished a step since the last call."""
        before, self._ends = self._ends, {run.job: self._newest_ends(run) for run in runs}
        for run in runs:
            ends, earlier = self._ends[run.job], before.get(run.job, np.empty(0))
            if len(earlier) != len(ends):  # a new job, or it has other ranks now
                earlier = np.full(len(ends), -np.inf)
            for row in np.flatnonzero(ends > earlier):
                node = run.entities[row].node
                if node is not None:
                    others[node] = now

    def _newest_ends(self, run: RunningJob) -> NDArray[np.float64]:
        """[entity] when each rank finished its newest step, Unix seconds; -inf if unknown."""
        told = self.stores.steps.newest_ends(run.job)
        ends = np.full(len(run.entities), -np.inf)
        known = run.mesh.ranks < len(told)
        ends[known] = told[run.mesh.ranks[known]]
        return ends
