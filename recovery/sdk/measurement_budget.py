"""What measuring may cost: a hundredth of a step. It measures itself, and thins what is expensive.

Thinned is the norm of the gradients, to every 2nd, 4th, … 16th step. Never thinned are step time, compute time and its
sections (a slow rank is judged by them: one step in sixteen would find it sixteen times later), waits, calls begun and
ended, transfer times (a link that turned slow while few were known would be taken for a usual one), and whether values
are finite.
What was spent and how far things are thinned are signals of the step, so that a gap is not mistaken for health.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final

SHARE: Final = 0.01
"""Of a step, the most that measuring may take of the training thread."""
NORM_SHARE: Final = 0.005
"""Of a step, the most that its gradient norm may cost."""
LONGEST_STRIDE: Final = 16
_STEPS: Final = 15
"""Steps whose median is believed: neighbors on the machine disturb single ones."""
_LEAST: Final = 8
"""Steps before anything is thinned: the first ones connect, allocate and compile."""
_EVERY: Final = 4
"""Steps after which it thinks again: thinking costs too."""
_EASE: Final = 0.8
"""Thin less only where that would cost at most this share of what is allowed: else it goes to and fro."""


def _needed(cost: float, allowed: float) -> int:
    """The stride for ``cost`` seconds each time, where ``allowed`` seconds a step may go in the mean."""
    if cost <= allowed:
        return 1
    if cost >= LONGEST_STRIDE * allowed:
        return LONGEST_STRIDE
    return 1 << math.ceil(math.log2(cost / allowed))


class MeasurementBudget:
    """One step after another: ``learn`` what each cost, and ask whether the norm is ``due`` in the next."""

    def __init__(self) -> None:
        self.every = 1
        """Epochs between two norms, a power of two: ranks that disagree still share every step of the longer stride."""
        self._learned = 0
        self._steps, self._rest, self._norms = (deque[float](maxlen=_STEPS) for _ in range(3))

    def due(self, epoch: int) -> bool:
        return epoch % self.every == 0

    def learn(self, step: float, spent: float, norm: float | None) -> None:
        """A step of ``step`` seconds, ``spent`` seconds of it on measuring.

        Args:
            step: wall time, commit to commit.
            spent: seconds in all.
            norm: of these, on the gradient norm; None where none was taken.
        """
        if not step > 0.0:
            return
        self._steps.append(step)
        self._rest.append(spent - (norm or 0.0))
        if norm is not None:
            self._norms.append(norm)
        self._learned += 1
        if self._learned < _LEAST or self._learned % _EVERY:
            return
        usual = statistics.median(self._steps)
        left = SHARE * usual - statistics.median(self._rest)
        cost, allowed = statistics.median(self._norms) if self._norms else 0.0, min(NORM_SHARE * usual, left)
        needed = _needed(cost, allowed)
        if needed < self.every:  # to thin less, there must be room to spare
            needed = min(self.every, _needed(cost, _EASE * allowed))
        self.every = needed
