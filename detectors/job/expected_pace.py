"""How long a step should take for the work that its slowest replica was given: tokens and squared sequence lengths.

Synchronous training waits for the replica with the most work, so the step's seconds are regressed on the largest work
of a rank: ``seconds = a + b tokens + c squares``, robust, as for single ranks
(``mainstay.detectors.straggler.normalize``). A fit says nothing beyond the work that it has seen. There, more work
explains at most its own growth (no cost grows faster than in proportion), and less work explains nothing.
"""

from __future__ import annotations

import numpy as np

from mainstay.detectors.base import Bools, Floats, Samples
from mainstay.detectors.straggler.normalize import fit_cost

SIGNALS = ("tokens", "sequence_squares", "micro_batches")


def work_of(samples: Samples, k: int, trains: Bools) -> tuple[Floats, Floats]:
    """Work of each rank [3, R] and the largest of those that train [3]; NaN where it is not reported.

    Micro-batches count only where no rank reports its tokens, which contain them.
    """
    work = np.stack([samples.signal(k, name) for name in SIGNALS])
    work[~(work > 0.0) | ~trains] = np.nan
    if np.isfinite(work[0]).any():
        work[2] = np.nan
    known = np.isfinite(work)
    largest = np.where(known.any(axis=1), np.where(known, work, 0.0).max(axis=1, initial=0.0), np.nan)
    return work, largest


class ExpectedPace:
    """Log seconds of a step by its work; zero until fitted and where no work is reported."""

    def __init__(self) -> None:
        self._columns = np.zeros(len(SIGNALS), np.bool_)
        self._cost = self._low = self._high = np.zeros(0)

    def fit(self, x: Floats, work: Floats) -> None:
        """Learn from log seconds ``x`` [T] and ``work`` [T, 3]; kinds of work that most steps lack are left out."""
        columns = np.isfinite(work).mean(axis=0) > 0.5
        part = work[:, columns]
        whole = np.isfinite(part).all(axis=1)
        cost = fit_cost(np.exp(x[whole]), part[whole].T) if columns.any() else None
        self._columns = columns if cost is not None else np.zeros_like(columns)
        if cost is not None:
            self._cost, self._low, self._high = cost, part[whole].min(axis=0), part[whole].max(axis=0)

    def expected(self, work: Floats) -> Floats:
        """[...] log seconds for ``work`` [..., 3]; NaN where a part of it is missing."""
        if not self._columns.any():
            return np.zeros(work.shape[:-1])
        part = work[..., self._columns]
        seconds = self._cost[0] + np.clip(part, self._low, self._high) @ self._cost[1:]
        beyond = np.maximum(np.log(part / self._high).max(axis=-1), 0.0)
        return np.asarray(np.log(np.where(seconds > 0.0, seconds, np.nan)) + beyond)
