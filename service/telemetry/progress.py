"""What every rank of a running job is doing, second by second: ``[slot, rank]`` float64 for each signal that is sent.

Counts are whole numbers below 2^53, which float64 holds exactly. Within one second the last known value stays. A signal
without data (the group kinds that a job does not have) takes no memory; depth follows from the job's share of the
budget (all 15 signals of 16,384 ranks are 2 MB a second), the least recently written job leaves first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING, SignalSource, names
from mainstay.service.telemetry.check import CheckedSamples
from mainstay.service.telemetry.job_rings import JobRings

PROGRESS_SIGNALS: Final = names(SignalSource.PROGRESS, wide=False) + names(SignalSource.PROGRESS, wide=True)
MOVES: Final = tuple(name for name in PROGRESS_SIGNALS if name == "progress_step" or name.endswith("_completed"))
"""What grows when training moves."""
MIN_SECONDS: Final = 60
"""However large the job: what a hang detector has to see again after a restart."""
DEFAULT_BYTES: Final = 512 * 2**20
_NEVER: Final = -1
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ProgressWindow:
    """Seconds of one job, copies: ``x[second, signal, rank]`` float64, NaN where nothing was heard."""

    seconds: NDArray[np.int64]
    signals: tuple[str, ...]
    x: Floats


@dataclass(frozen=True, slots=True)
class Latest:
    """The last word of each rank."""

    head: int
    """Unix second of the newest word of any rank."""
    moved_at: float
    """When a step or collective of any rank was last seen to end, Unix seconds; NaN before the second reading."""
    heard: Floats
    """[rank] when its last report came, Unix seconds; NaN for a rank without a report (or too long ago)."""
    values: dict[str, Floats]
    """Signal -> [rank]; absent without data."""


class ProgressRing:
    """The last seconds of one job."""

    def __init__(self, seconds: int, budget: int) -> None:
        self._most, self._budget = seconds, budget
        self.depth = seconds
        self.head = _NEVER
        self.ranks = 0
        self.moved_at = float("nan")
        self._stamp = np.full(seconds, _NEVER, np.int64)
        self._values: dict[str, Floats] = {}
        self._heard = np.empty(0, np.float64)
        self._sent = np.empty(0, np.float64)
        self._moves = np.empty((len(MOVES), 0), np.float64)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self._stamp, self._heard, self._sent, self._moves, *self._values.values()))

    def write(self, samples: CheckedSamples) -> None:
        frame, made = samples.frame, samples.compiled.catalog
        ranks = np.array([int(entity) for entity in frame.entities], np.intp)
        self._reserve(int(ranks.max()) + 1)
        wide = np.where(samples.wide == WIDE_MISSING, np.nan, samples.wide.astype(np.float64))
        carried = [(name, samples.narrow[:, i]) for i, name in enumerate(made.narrow)]
        carried += [(name, wide[:, i]) for i, name in enumerate(made.wide)]
        for k in range(frame.samples):
            self._put(frame.t0 + k * frame.dt, ranks, [(name, said[:, k]) for name, said in carried])

    def _put(self, time: float, ranks: NDArray[np.intp], said: Sequence[tuple[str, NDArray[np.floating]]]) -> None:
        slot = self._open(int(time))
        if slot is None:
            return
        spoke = np.zeros(len(ranks), bool)
        for name, values in said:
            known = ~np.isnan(values)
            if not known.any():
                continue
            if name not in self._values:
                self._values[name] = self._blank(self._stamp != _NEVER)
            self._values[name][slot, ranks[known]] = values[known]
            spoke |= known
            if name in MOVES:
                self._follow(MOVES.index(name), ranks[known], values[known], time)
        # A silent rank is recorded as well: no reader needs to wait for a rank that has stopped.
        self._sent[ranks] = np.fmax(self._sent[ranks], time)
        rows = ranks[spoke]
        self._heard[rows] = np.fmax(self._heard[rows], time)

    def _follow(self, row: int, ranks: NDArray[np.intp], counts: NDArray[np.floating], time: float) -> None:
        """Whether something ended. After a restart counts start from zero: any difference counts, not only growth."""
        newer = ~(self._heard[ranks] > time)  # an older report that came late shows no movement
        before = self._moves[row, ranks]
        if (newer & (before != counts) & ~np.isnan(before)).any():
            self.moved_at = float(np.fmax(self.moved_at, time))
        self._moves[row, ranks[newer]] = counts[newer]

    def _open(self, second: int) -> int | None:
        slot = second % self.depth
        if self._stamp[slot] > second or second <= self.head - self.depth:
            return None
        if self._stamp[slot] < second:
            for values in self._values.values():
                values[slot] = np.nan
            self._stamp[slot] = second
            self.head = max(self.head, second)
        return slot

    def _reserve(self, ranks: int) -> None:
        if ranks <= self.ranks:
            return
        have, self.ranks = self.ranks, ranks
        depth = min(self._most, max(MIN_SECONDS, self._budget // (ranks * 8 * len(PROGRESS_SIGNALS))))
        seconds = self._within(self.head + 1 - min(depth, self.depth), self.head + 1)
        old, new = seconds % self.depth, seconds % depth
        self.depth, self._stamp = depth, np.full(depth, _NEVER, np.int64)
        self._stamp[new] = seconds
        for name, values in self._values.items():
            self._values[name] = self._blank(self._stamp != _NEVER)
            self._values[name][new, :have] = values[old]
        self._heard = np.concatenate([self._heard, np.full(ranks - have, np.nan)])
        self._sent = np.concatenate([self._sent, np.full(ranks - have, np.nan)])
        self._moves = np.concatenate([self._moves, np.full((len(MOVES), ranks - have), np.nan)], axis=1)

    def _blank(self, opened: NDArray[np.bool_]) -> Floats:
        """[slot, rank], unknown where a slot is open; the others take no memory until they are opened and cleared."""
        values = np.empty((self.depth, self.ranks), np.float64)
        values[opened] = np.nan
        return values

    def _within(self, start: int, stop: int) -> NDArray[np.int64]:
        seconds = np.arange(max(start, 0), max(start, stop, 0), dtype=np.int64)
        here: NDArray[np.int64] = seconds[self._stamp[seconds % self.depth] == seconds]
        return here

    def oldest(self) -> int:
        held = self._within(self.head + 1 - self.depth, self.head + 1)
        return int(held[0]) if held.size else 0

    def reached(self, since: float) -> int | None:
        """The newest second that all ranks active since ``since`` have reported; None when none has."""
        sent = self._sent[self._sent >= since]
        return int(sent.min()) if sent.size else None

    def window(self, start: int, stop: int, signals: tuple[str, ...]) -> ProgressWindow:
        start = max(start, stop - self.depth)
        seconds = np.arange(start, max(start, stop), dtype=np.int64)
        slots, here = seconds % self.depth, self._stamp[seconds % self.depth] == seconds
        x = np.full((len(seconds), len(signals), self.ranks), np.nan)
        for i, name in enumerate(signals):
            if name in self._values:
                x[here, i] = self._values[name][slots[here]]
        return ProgressWindow(seconds, signals, x)

    def latest(self) -> Latest:
        heard = self._heard.copy()
        seconds = np.where(np.isnan(heard), 0, heard).astype(np.int64)
        slots, columns = seconds % self.depth, np.arange(self.ranks)
        here = ~np.isnan(heard) & (self._stamp[slots] == seconds)
        heard[~here] = np.nan
        values = {name: np.where(here, x[slots, columns], np.nan) for name, x in self._values.items()}
        return Latest(self.head, self.moved_at, heard, values)


class ProgressStore(JobRings[ProgressRing]):
    """Progress of all jobs behind one lock.

    Args:
        seconds: kept of each job, at most.
        budget: bytes of all jobs together; one job gets at most half.
    """

    def __init__(self, seconds: int = 600, budget: int = DEFAULT_BYTES) -> None:
        self._seconds = seconds
        super().__init__(budget)

    def _new(self) -> ProgressRing:
        return ProgressRing(self._seconds, self._budget // 2)

    def reached(self, job: str, since: float) -> int | None:
        """The newest second that all ranks active since ``since`` have reported; None when none has."""
        with self._lock:
            ring = self._rings.get(job)
            return None if ring is None else ring.reached(since)

    def oldest(self, job: str) -> int:
        """The first Unix second that is kept; 0 for an unknown job."""
        with self._lock:
            ring = self._rings.get(job)
            return 0 if ring is None else ring.oldest()

    def ranks(self, job: str) -> int:
        """Ranks 0 up to this number have a column; 0 for an unknown job."""
        ring = self._rings.get(job)
        return 0 if ring is None else ring.ranks

    def window(self, job: str, start: int, stop: int, signals: tuple[str, ...] = PROGRESS_SIGNALS) -> ProgressWindow:
        """Unix seconds ``start`` up to but not including ``stop``, the newest that are kept."""
        with self._lock:
            ring = self._rings.get(job) or ProgressRing(1, 0)
            return ring.window(start, stop, signals)

    def latest(self, job: str) -> Latest | None:
        """The last word of each rank; None for a job that sends no progress."""
        with self._lock:
            ring = self._rings.get(job)
            return None if ring is None else ring.latest()

    def moved(self, job: str) -> tuple[int, float] | None:
        """When the job was last heard and when it last moved (NaN: not seen yet), Unix seconds."""
        ring = self._rings.get(job)
        return None if ring is None else (ring.head, ring.moved_at)
