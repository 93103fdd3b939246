"""Counters of a recording as rates: totals that fall were reset, and what is not known has no rate."""

from __future__ import annotations

import numpy as np

from mainstay.detectors.base import Floats


class RecordedRates:
    """The last total of each counter, so that rates continue from window to window.

    Args:
        counters: C.
        entities: E.
    """

    def __init__(self, counters: int, entities: int) -> None:
        self._total = np.full((counters, entities), np.nan)
        self._time = np.full((counters, entities), -np.inf)

    def feed(self, t: Floats, totals: Floats) -> Floats:
        """[T, C, E] totals at times [T] to rates per second: over a gap their mean, NaN where a total fell."""
        rates = np.full(totals.shape, np.nan)
        for k, now in enumerate(t):
            known = np.isfinite(totals[k])
            with np.errstate(invalid="ignore"):
                risen = known & (totals[k] >= self._total)
                rates[k] = np.where(risen, (totals[k] - self._total) / (now - self._time), np.nan)
            self._total = np.where(known, totals[k], self._total)
            self._time = np.where(known, now, self._time)
        return rates
