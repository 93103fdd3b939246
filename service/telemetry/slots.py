"""Which step each slot of a ring holds, and what a job does again after it went back.

A job that returns to an earlier step, or starts again under the same name, repeats steps. It is detected by one
entity's own clock: it commits a step that is not beyond its newest one, at a later time. (Comparing the clocks of two
nodes would take skew for a step back.) Invariant: no slot holds a step of an execution that was thrown away.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

NEVER: Final = -1
_SAME_SECONDS: Final = 1e-3
"""Two readings of one commit differ by rounding only; two commits of a step are further apart than this."""


class StepSlots:
    """Slots ``step % depth``; entities are numbered from 0 by the caller."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.stamp = np.full(depth, NEVER, np.int64)
        self.head = NEVER
        self._step = np.empty(0, np.int64)
        self._end = np.empty(0, np.float64)
        self._rewound: int | None = None

    @property
    def nbytes(self) -> int:
        return self.stamp.nbytes + self._step.nbytes + self._end.nbytes

    def reserve(self, entities: int) -> None:
        """Make room for entities 0 up to ``entities``."""
        more = entities - len(self._step)
        if more > 0:
            self._step = np.concatenate([self._step, np.full(more, NEVER, np.int64)])
            self._end = np.concatenate([self._end, np.full(more, -np.inf)])

    def forget(self, keep: NDArray[np.intp]) -> None:
        """Keep only the entities ``keep``, renumbered in their order; the others start again."""
        count = len(self._step)
        self._step, self._end = self._step[keep], self._end[keep]
        self.reserve(count)

    def note(self, step: int, entities: NDArray[np.intp], ends: NDArray[np.float64]) -> None:
        """Entities committed ``step`` at ``ends`` (Unix seconds, NaN where unknown): go back if they did it before."""
        known = np.isfinite(ends)
        rows, ends = entities[known], ends[known]
        if ((step <= self._step[rows]) & (ends > self._end[rows] + _SAME_SECONDS)).any():
            self._rewind(step)
        self._step[rows] = np.maximum(self._step[rows], step)
        self._end[rows] = np.maximum(self._end[rows], ends)

    def _rewind(self, step: int) -> None:
        self.stamp[self.stamp >= step] = NEVER
        self.head = int(self.stamp.max())
        self._step = np.minimum(self._step, step - 1)
        self._rewound = step if self._rewound is None else min(self._rewound, step)

    def newest_ends(self) -> NDArray[np.float64]:
        """[entity] when each committed its newest step, Unix seconds, a copy; -inf if unknown."""
        return self._end.copy()

    def take_rewind(self) -> int | None:
        """The lowest step that was begun again since the last call, or None."""
        lowest, self._rewound = self._rewound, None
        return lowest

    def open(self, step: int) -> tuple[int, bool] | None:
        """The slot of ``step`` and whether it must be cleared first; None when the ring has moved past it."""
        slot = step % self.depth
        if self.stamp[slot] > step or step <= self.head - self.depth:
            return None
        stale = bool(self.stamp[slot] < step)
        self.stamp[slot] = step
        self.head = max(self.head, step)
        return slot, stale

    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """The steps from ``start`` up to but not including ``stop`` that are here, ascending."""
        start, stop = max(start, self.head + 1 - self.depth, 0), min(stop, self.head + 1)
        steps = np.arange(start, max(start, stop), dtype=np.int64)
        here: NDArray[np.int64] = steps[self.stamp[steps % self.depth] == steps]
        return here

    def resized(self, depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Change the depth; the slots of the steps that stay, before and after."""
        steps = self.within(self.head + 1 - min(depth, self.depth), self.head + 1)
        old, new = steps % self.depth, steps % depth
        self.depth = depth
        self.stamp = np.full(depth, NEVER, np.int64)
        self.stamp[new] = steps
        return old, new
