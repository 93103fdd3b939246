"""Transfers between ranks by step: ``values[slot, signal, column]`` float32, a column a pair of ranks, for each job.

The last steps only: what is drawn and judged is a median over some tens of them. Pairs that said nothing for the whole
ring give their columns back; beyond ``MAX_PAIRS`` a job's further pairs are in the blocks only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.frame import MAX_ENTITIES
from mainstay.probes.signals import WIDE_MISSING, SignalSource, names
from mainstay.service.telemetry.catalogs import STEP_END
from mainstay.service.telemetry.check import CheckedSamples
from mainstay.service.telemetry.job_rings import StepRings
from mainstay.service.telemetry.slots import StepSlots

PAIR_SIGNALS: Final = names(SignalSource.PAIR, wide=False)
DEPTH: Final = 256
MAX_PAIRS: Final = MAX_ENTITIES
"""Of one job: four neighbors each of 16,384 ranks; 134 MB at full depth."""
DEFAULT_BYTES: Final = 512 * 2**20
Pair = tuple[int, int]
"""(sending rank, receiving rank)"""


@dataclass(frozen=True, slots=True)
class PairWindow:
    """Steps of one job, copies: ``values[step, signal, pair]`` float32 in the order of ``PAIR_SIGNALS``."""

    steps: NDArray[np.int64]
    pairs: tuple[Pair, ...]
    values: NDArray[np.float32]
    ends: NDArray[np.float64]
    """[step] when the last receiver committed it, Unix seconds."""


class PairRing:
    """The last steps of one job."""

    def __init__(self, depth: int, most: int) -> None:
        self.slots = StepSlots(depth)
        self.pairs: tuple[Pair, ...] = ()
        """In the order of the columns."""
        self._most = most
        self._column: dict[Pair, int] = {}
        self._last: tuple[tuple[str, ...], NDArray[np.intp]] = ((), np.empty(0, np.intp))
        self._values = np.empty((depth, len(PAIR_SIGNALS), 0), np.float32)
        self._ends = np.full(depth, np.nan)

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._ends.nbytes + self.slots.nbytes

    def write(self, samples: CheckedSamples) -> None:
        frame = samples.frame
        columns = self._columns_of(frame.entities)
        mine = columns >= 0
        columns = columns[mine]
        placement = samples.compiled.placements[SignalSource.PAIR]
        ends = samples.wide[mine, samples.compiled.catalog.wide.index(STEP_END), :]
        stamped = np.where(ends == WIDE_MISSING, np.nan, ends / 1e9)
        for k in range(frame.samples):
            step = int(frame.t0) + k
            self.slots.note(step, columns, stamped[:, k])
            opened = self.slots.open(step)
            if opened is None:
                continue
            slot, stale = opened
            if stale:
                self._values[slot], self._ends[slot] = np.nan, np.nan
            new = samples.narrow[mine][:, placement.narrow, k].T
            place = np.ix_(placement.narrow_rows, columns)
            self._values[slot][place] = np.where(np.isnan(new), self._values[slot][place], new)
            self._ends[slot] = np.fmax(self._ends[slot], np.fmax.reduce(stamped[:, k], initial=np.nan))

    def _columns_of(self, entities: tuple[str, ...]) -> NDArray[np.intp]:
        """Each entity's column, -1 where there is no room. A job's frames name the same pairs again and again."""
        if entities != self._last[0]:
            pairs = [_pair(entity) for entity in entities]
            self._reserve(pairs)
            self._last = (entities, np.array([self._column.get(pair, -1) for pair in pairs], np.intp))
        return self._last[1]

    def _reserve(self, pairs: list[Pair]) -> None:
        new = [pair for pair in pairs if pair not in self._column]
        if not new:
            return
        if len(self.pairs) + len(new) > self._most:
            self._reclaim()
        new = new[: self._most - len(self.pairs)]
        have = len(self.pairs)
        self.pairs += tuple(new)
        self._column |= {pair: have + i for i, pair in enumerate(new)}
        room = self._values.shape[2]
        if len(self.pairs) > room:
            # Doubling: pairs may come one by one, and each growth copies the ring.
            more = min(self._most, max(len(self.pairs), 2 * room)) - room
            blank = np.full((*self._values.shape[:2], more), np.nan, np.float32)
            self._values = np.concatenate([self._values, blank], axis=2)
            self.slots.reserve(room + more)

    def _reclaim(self) -> None:
        """Give back the columns of pairs of which no step is left."""
        alive = ~np.isnan(self._values[:, :, : len(self.pairs)]).all(axis=(0, 1))
        keep = np.flatnonzero(alive)
        self.pairs = tuple(self.pairs[i] for i in keep)
        self._column = {pair: i for i, pair in enumerate(self.pairs)}
        self._values[:, :, : len(keep)] = self._values[:, :, keep]
        self._values[:, :, len(keep) :] = np.nan
        self.slots.forget(keep)

    def window(self, start: int, stop: int) -> PairWindow:
        steps = self.slots.within(start, stop)
        slots = steps % self.slots.depth
        values = self._values[slots][:, :, : len(self.pairs)]
        return PairWindow(steps, self.pairs, values, self._ends[slots])


class PairStore(StepRings[PairRing]):
    """Pair rings of all jobs behind one lock.

    Args:
        depth: steps kept of each job.
        budget: bytes of all jobs together; the least recently written leaves first.
        most: pairs of one job.
    """

    max_jobs = 64

    def __init__(self, depth: int = DEPTH, budget: int = DEFAULT_BYTES, most: int = MAX_PAIRS) -> None:
        self.depth = depth
        self._most = most
        super().__init__(budget)

    def _new(self) -> PairRing:
        return PairRing(self.depth, self._most)

    def window(self, job: str, start: int = 0, stop: int | None = None) -> PairWindow:
        """Steps ``start`` up to but not including ``stop``; steps without data are left out."""
        with self._lock:
            ring = self._rings.get(job) or PairRing(1, 0)
            return ring.window(start, ring.slots.head + 1 if stop is None else stop)


def _pair(entity: str) -> Pair:
    source, _, target = entity.partition(">")
    return int(source), int(target)
