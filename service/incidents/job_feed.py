"""The input of the detectors of a job: its steps, seconds of progress, and transfers, each exactly once.

Invariant: a feed only moves forward, except when the job itself repeats steps. It waits briefly for reports in transit;
after that, missing values are NaN. The size of a chunk is bounded, so that after a restart one large job does not delay
detection for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.service.incidents.runs import RunningJob
from mainstay.service.telemetry.pairs import PAIR_SIGNALS, Pair, PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.steps import StepStore

LATE_STEPS: Final = 3
"""Detectors evaluate a step without the ranks that are this many steps behind,"""
LATE_SECONDS: Final = 10.0
"""or this long after the step ended: a rank whose reports are lost must not delay the others."""
CHUNK_STEPS: Final = 1024
"""How far back a feed begins after a restart."""
CHUNK_CELLS: Final = 4_000_000
"""Numbers in one chunk: about 0.1 s of copying and evaluation."""
PROGRESS_LAG_SECONDS: Final = 2
"""Ranks send progress once a second, and it arrives within one more; detectors evaluate a second without later reports.
They evaluate a second immediately when all ranks have sent it: a delay here delays every hang finding."""
PROGRESS_REPORTING_SECONDS: Final = 5
"""The feed does not wait for ranks without a report in this time."""
PROGRESS_BACK_SECONDS: Final = 120
"""How far back a feed begins after a restart: longer than it takes to distinguish a hang from a slow step."""


def _fit(width: int) -> int:
    """Return how many samples of ``width`` numbers fit into one chunk."""
    return max(1, CHUNK_CELLS // max(1, width))


class _Rewinding(Protocol):
    def take_rewind(self, job: str) -> int | None: ...


def _first_step(store: _Rewinding, job: str, cursor: int | None, head: int) -> int:
    """Return the first step to read: the one after the last step read, or the step from which the job continued."""
    rewound = store.take_rewind(job)
    if cursor is None:
        return max(0, head + 1 - CHUNK_STEPS)
    return cursor if rewound is None else min(cursor, rewound)


@dataclass
class StepFeed:
    """The steps of one job. Rows are ranks; groups are their roles."""

    steps: StepStore
    job: str
    signals: tuple[str, ...]
    _cursor: int | None = field(default=None, init=False)
    _time: float = field(default=0.0, init=False)

    def read_ready(self, run: RunningJob, now: float) -> Samples | None:
        """Return the steps that became ready since the last call, or None."""
        head = self.steps.last_step(self.job)
        if head is None or not run.entities or not self.signals:
            return None
        start = self._cursor = _first_step(self.steps, self.job, self._cursor, head)
        stop = min(head + 1, start + _fit(len(self.signals) * len(run.entities)))
        window = self.steps.window(self.job, start, stop, signals=self.signals)
        if not len(window.steps):
            self._cursor = stop
            return None
        known = run.mesh.ranks < len(window.values)
        rows = run.mesh.ranks[known]
        ends = np.full((len(run.entities), len(window.steps)), np.nan)
        ends[known] = window.ends[rows]
        old = np.isfinite(_latest(ends)) & (_latest(ends) < run.started_at)
        if not self._time and old.any():  # the store also has the steps of the run before
            self._cursor = int(window.steps[np.flatnonzero(old)[-1]]) + 1
            return None
        ready = _ready(np.isfinite(ends).all(axis=0), window.steps, _latest(ends), head, now)
        if not ready:
            return None
        self._cursor = int(window.steps[ready - 1]) + 1
        x = np.full((ready, len(self.signals), len(run.entities)), np.nan, np.float32)
        x[:, :, known] = window.values[rows, :, :ready].transpose(2, 1, 0)
        times = _rising(_latest(ends[:, :ready]), self._time)
        self._time = float(times[-1])
        return Samples(
            entities=run.entities,
            groups=run.groups,
            signals=self.signals,
            t=times,
            x=x,
            mesh=run.mesh,
            steps=window.steps[:ready],
        )


def _latest(ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [step]: when the last rank of [rank, step] ended it; -inf if no rank reported it."""
    latest: NDArray[np.float64] = np.where(np.isfinite(ends), ends, -np.inf).max(axis=0, initial=-np.inf)
    return latest


def _ready(complete: Any, steps: NDArray[np.int64], ended: NDArray[np.float64], head: int, now: float) -> int:
    """Return the number of leading steps that all ranks have reported or are no longer expected to report."""
    done = complete | (head - steps >= LATE_STEPS) | (ended < now - LATE_SECONDS)
    return len(steps) if done.all() else int(np.argmin(done))


def _rising(times: NDArray[np.float64], before: float) -> NDArray[np.float64]:
    """Return when each step ended, never decreasing; a step without a time gets that of the step before."""
    rising: NDArray[np.float64] = np.maximum.accumulate(np.maximum(times, before))
    return rising


@dataclass
class ProgressFeed:
    """The seconds of progress of one job. Rows are ranks."""

    progress: ProgressStore
    job: str
    signals: tuple[str, ...]
    _cursor: int | None = field(default=None, init=False)

    def read_ready(self, run: RunningJob, now: float) -> Samples | None:
        """Return the seconds that became ready since the last call, or None."""
        if not run.entities or not self.signals or not self.progress.ranks(self.job):
            return None
        stop = self._ready(now)
        start = self._cursor
        if start is None:
            start = max(self.progress.oldest(self.job), stop - PROGRESS_BACK_SECONDS)
        start = max(start, stop - PROGRESS_BACK_SECONDS)  # a loop that paused for long skips older seconds
        stop = min(stop, start + _fit(len(self.signals) * len(run.entities)))
        if start >= stop:
            return None
        self._cursor = stop
        window = self.progress.window(self.job, start, stop, self.signals)
        known = run.mesh.ranks < window.x.shape[2]
        x = np.full((len(window.seconds), len(self.signals), len(run.entities)), np.nan)
        x[:, :, known] = window.x[:, :, run.mesh.ranks[known]]
        return Samples(
            entities=run.entities,
            groups=run.groups,
            signals=self.signals,
            t=window.seconds.astype(np.float64),
            x=x,
            mesh=run.mesh,
        )

    def _ready(self, now: float) -> int:
        """Return the first second that is not ready: reports of some ranks may still be in transit."""
        late = int(now) - PROGRESS_LAG_SECONDS
        reached = self.progress.reached(self.job, now - PROGRESS_REPORTING_SECONDS)
        return late if reached is None else max(late, min(reached, int(now)) + 1)


@dataclass
class PairFeed:
    """The transfers of one job by step. Rows are pairs of ranks."""

    pairs: PairStore
    job: str
    _cursor: int | None = field(default=None, init=False)
    _time: float = field(default=0.0, init=False)
    _pairs: tuple[Pair, ...] = field(default=(), init=False)
    _entities: tuple[Entity, ...] = field(default=(), init=False)
    _groups: tuple[str, ...] = field(default=(), init=False)

    def read_ready(self, run: RunningJob, now: float) -> Samples | None:
        """Return the steps that became ready since the last call, or None."""
        head = self.pairs.last_step(self.job)
        if head is None:
            return None
        start = self._cursor = _first_step(self.pairs, self.job, self._cursor, head)
        stop = min(head + 1, start + _fit(len(PAIR_SIGNALS) * len(self._pairs)))
        window = self.pairs.window(self.job, start, stop)
        if not len(window.steps):
            self._cursor = stop
            return None
        # The pairs of a step are not known in advance: a step is complete when the next one is reported.
        ready = _ready(window.steps < head, window.steps, window.ends, head, now)
        if not ready:
            return None
        self._cursor = int(window.steps[ready - 1]) + 1
        self._update_entities(window.pairs)
        times = _rising(np.nan_to_num(window.ends[:ready], nan=-np.inf), self._time)
        self._time = float(times[-1])
        return Samples(
            entities=self._entities,
            groups=self._groups,
            signals=PAIR_SIGNALS,
            t=times,
            x=window.values[:ready],
            mesh=run.mesh,
            steps=window.steps[:ready],
        )

    def _update_entities(self, pairs: tuple[Pair, ...]) -> None:
        """Rename the entities only when they change: detectors skip work for identical tuples."""
        if pairs != self._pairs:
            self._pairs = pairs
            self._entities = tuple(Entity(job=self.job, rank=source, peer=target) for source, target in pairs)
            self._groups = ("pair",) * len(pairs)
