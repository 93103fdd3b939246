"""Step records of running jobs as arrays: ``values[rank, signal, slot]`` float32, a slot a step (``step % depth``).

A step that is done again after a recovery replaces what stood there. ``ends[rank, slot]`` is when the rank committed
the step, Unix seconds; NaN is unknown everywhere.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probes.signals import WIDE_MISSING, SignalSource, names
from service.telemetry.check import Samples

STEP_SIGNALS: Final = names(SignalSource.RANK, wide=False)
STEP_END: Final = "step_end_nanoseconds"
MAX_JOBS: Final = 256
"""The least recently written job leaves first; its steps are still in the blocks."""
_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Steps of one job, copies.

    ``values`` is [rank, signal, step] float32 in the order of ``STEP_SIGNALS``; ``ends`` [rank, step] Unix seconds.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float32]
    ends: NDArray[np.float64]

    def signal(self, name: str) -> NDArray[np.float32]:
        """[rank, step] of one signal."""
        chosen: NDArray[np.float32] = self.values[:, STEP_SIGNALS.index(name), :]
        return chosen


class StepRing:
    """The last steps of one job."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.head = _NEVER
        self._stamp = np.full(depth, _NEVER, np.int64)
        self._values = np.empty((0, len(STEP_SIGNALS), depth), np.float32)
        self._ends = np.empty((0, depth), np.float64)

    @property
    def ranks(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._ends.nbytes

    def write(self, samples: Samples) -> None:
        frame = samples.frame
        ranks = np.array([int(entity) for entity in frame.entities], np.intp)
        self._reserve(int(ranks.max()) + 1)
        placement = samples.compiled.placements[SignalSource.RANK]
        ends = samples.wide[:, samples.compiled.catalogue.wide.index(STEP_END), :]
        stamped = np.where(ends == WIDE_MISSING, np.nan, ends / 1e9)
        for k in range(frame.samples):
            slot = self._open(int(frame.t0) + k)
            if slot is None:
                continue
            # A frame may carry only some ranks, or NaN for a rank that was lost: keep what others said.
            place = np.ix_(ranks, placement.narrow_rows, np.array([slot], np.intp))
            new = samples.narrow[:, placement.narrow, k : k + 1]
            self._values[place] = np.where(np.isnan(new), self._values[place], new)
            old = self._ends[ranks, slot]
            self._ends[ranks, slot] = np.where(np.isnan(stamped[:, k]), old, stamped[:, k])

    def _open(self, step: int) -> int | None:
        slot = step % self.depth
        if self._stamp[slot] > step:
            return None
        if self._stamp[slot] < step:
            self._values[:, :, slot], self._ends[:, slot] = np.nan, np.nan
            self._stamp[slot] = step
            self.head = max(self.head, step)
        return slot

    def _reserve(self, ranks: int) -> None:
        have = len(self._values)
        if ranks <= have:
            return
        values = np.full((ranks, len(STEP_SIGNALS), self.depth), np.nan, np.float32)
        ends = np.full((ranks, self.depth), np.nan)
        values[:have], ends[:have] = self._values, self._ends
        self._values, self._ends = values, ends

    def window(self, start: int, stop: int, stride: int) -> StepWindow:
        start = max(start, self.head + 1 - self.depth, 0)
        stop = min(stop, self.head + 1)
        steps = np.arange(start, max(start, stop), dtype=np.int64)
        steps = steps[self._stamp[steps % self.depth] == steps][::stride]
        slots = steps % self.depth
        return StepWindow(steps, self._values[:, :, slots], self._ends[:, slots])


class StepStore:
    """Step rings of all jobs behind one lock.

    Args:
        depth: steps kept of each job.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._rings: OrderedDict[str, StepRing] = OrderedDict()
        self._lock = threading.Lock()

    def write(self, samples: Samples) -> None:
        """Place a checked frame of the step axis."""
        job = samples.frame.subject
        with self._lock:
            ring = self._rings.get(job)
            if ring is None:
                ring = self._rings[job] = StepRing(self.depth)
                if len(self._rings) > MAX_JOBS:
                    self._rings.popitem(last=False)
            self._rings.move_to_end(job)
            ring.write(samples)

    def jobs(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._rings)

    def last_step(self, job: str) -> int | None:
        """The newest step that any rank reported, or None."""
        ring = self._rings.get(job)
        return None if ring is None or ring.head == _NEVER else ring.head

    def window(self, job: str, start: int = 0, stop: int | None = None, *, points: int | None = None) -> StepWindow:
        """Steps ``start`` up to but not including ``stop``, thinned by a stride to at most ``points``.

        Steps that nobody reported are left out. An unknown job has no ranks and no steps.
        """
        with self._lock:
            ring = self._rings.get(job) or StepRing(1)
            end = ring.head + 1 if stop is None else stop
            full = ring.window(start, end, 1)
            stride = 1 if points is None else max(1, -(-len(full.steps) // max(points, 1)))
            return full if stride == 1 else ring.window(start, end, stride)

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(ring.nbytes for ring in self._rings.values())
