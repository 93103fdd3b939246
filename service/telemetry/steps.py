"""Step records of running jobs as arrays: ``values[slot, signal, rank]`` float32, a slot a step (``step % depth``).

A step that is done again after a recovery replaces what stood there, and what came after it is gone. ``ends[slot,
rank]`` is when the rank committed the step, Unix seconds; NaN is unknown everywhere. Memory is bounded: a job's ring is
as deep as its share of the budget allows (24 signals of 16,384 ranks are 1.7 MB a step), and the least recently written
job leaves when all of them together exceed it. A slot takes memory when it is first written, all ranks side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING, SignalSource, names
from mainstay.service.telemetry.catalogs import STEP_END
from mainstay.service.telemetry.check import CheckedSamples
from mainstay.service.telemetry.job_rings import StepRings
from mainstay.service.telemetry.slots import StepSlots

STEP_SIGNALS: Final = names(SignalSource.RANK, wide=False)
MIN_STEPS: Final = 64
"""However large the job: detectors learn from the last dozens of steps after a restart."""
DEFAULT_BYTES: Final = 1024 * 2**20
_RANK_BYTES: Final = 4 * len(STEP_SIGNALS) + 8


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Steps of one job, copies.

    ``values`` is [rank, signal, step] float32 in the order of ``signals``; ``ends`` [rank, step] Unix seconds.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float32]
    ends: NDArray[np.float64]
    signals: tuple[str, ...] = STEP_SIGNALS

    def signal(self, name: str) -> NDArray[np.float32]:
        """[rank, step] of one signal."""
        chosen: NDArray[np.float32] = self.values[:, self.signals.index(name), :]
        return chosen


class StepRing:
    """The last steps of one job: at most ``depth`` of them, fewer where ``nbytes`` would exceed ``budget``."""

    def __init__(self, depth: int, budget: int = DEFAULT_BYTES // 2) -> None:
        self._most, self._budget = depth, budget
        self.slots = StepSlots(depth)
        self._values = np.empty((depth, len(STEP_SIGNALS), 0), np.float32)
        self._ends = np.empty((depth, 0), np.float64)

    @property
    def ranks(self) -> int:
        return self._values.shape[2]

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._ends.nbytes + self.slots.nbytes

    def write(self, samples: CheckedSamples) -> None:
        frame = samples.frame
        ranks = np.array([int(entity) for entity in frame.entities], np.intp)
        self._reserve(int(ranks.max()) + 1)
        placement = samples.compiled.placements[SignalSource.RANK]
        ends = samples.wide[:, samples.compiled.catalog.wide.index(STEP_END), :]
        stamped = np.where(ends == WIDE_MISSING, np.nan, ends / 1e9)
        for k in range(frame.samples):
            step = int(frame.t0) + k
            self.slots.note(step, ranks, stamped[:, k])
            slot = self._open(step)
            if slot is None:
                continue
            # A frame may carry only some ranks, or NaN for a rank that was lost: keep what others said.
            for row, carried in zip(placement.narrow_rows, placement.narrow, strict=True):
                _keep(self._values[slot, row], ranks, samples.narrow[:, carried, k])
            _keep(self._ends[slot], ranks, stamped[:, k])

    def _open(self, step: int) -> int | None:
        opened = self.slots.open(step)
        if opened is None:
            return None
        slot, stale = opened
        if stale:
            self._values[slot], self._ends[slot] = np.nan, np.nan
        return slot

    def _reserve(self, ranks: int) -> None:
        have = self.ranks
        if ranks <= have:
            return
        depth = min(self._most, max(MIN_STEPS, self._budget // (ranks * _RANK_BYTES)))
        old, new = self.slots.resized(depth)
        # Not filled: a slot is cleared when it is opened, and no other is ever read.
        values, ends = np.empty((depth, len(STEP_SIGNALS), ranks), np.float32), np.empty((depth, ranks))
        for before, after in zip(old, new, strict=True):
            values[after, :, :have], ends[after, :have] = self._values[before], self._ends[before]
            values[after, :, have:], ends[after, have:] = np.nan, np.nan
        self._values, self._ends = values, ends
        self.slots.reserve(ranks)

    def window(self, start: int, stop: int, stride: int, signals: tuple[str, ...] = STEP_SIGNALS) -> StepWindow:
        steps = self.slots.within(start, stop)[::stride]
        slots = steps % self.slots.depth
        rows = np.array([STEP_SIGNALS.index(name) for name in signals], np.intp)
        values = self._values[slots] if signals == STEP_SIGNALS else self._values[slots[:, None], rows]
        return StepWindow(steps, values.transpose(2, 1, 0), self._ends[slots].T, signals)


def _keep(line: NDArray[np.floating], ranks: NDArray[np.intp], said: NDArray[np.floating]) -> None:
    """Write what is known into one line of ranks."""
    known = ~np.isnan(said)
    line[ranks[known]] = said[known]


class StepStore(StepRings[StepRing]):
    """Step rings of all jobs behind one lock.

    Args:
        depth: steps kept of each job, at most.
        budget: bytes of all jobs together; one job gets at most half.
    """

    def __init__(self, depth: int, budget: int = DEFAULT_BYTES) -> None:
        self.depth = depth
        super().__init__(budget)

    def _new(self) -> StepRing:
        return StepRing(self.depth, self._budget // 2)

    def ranks(self, job: str) -> int:
        """Ranks 0 up to this number have a row; 0 for an unknown job."""
        ring = self._rings.get(job)
        return 0 if ring is None else ring.ranks

    def window(
        self,
        job: str,
        start: int = 0,
        stop: int | None = None,
        *,
        points: int | None = None,
        signals: tuple[str, ...] = STEP_SIGNALS,
    ) -> StepWindow:
        """Steps ``start`` up to but not including ``stop``, thinned by a stride to at most ``points``.

        Steps that no rank reported are left out. An unknown job has no ranks and no steps.
        """
        with self._lock:
            ring = self._rings.get(job) or StepRing(1)
            end = ring.slots.head + 1 if stop is None else stop
            stride = 1
            if points is not None:
                stride = max(1, -(-len(ring.slots.within(start, end)) // max(points, 1)))
            return ring.window(start, end, stride, signals)
