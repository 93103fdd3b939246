"""Counters become per-second rates on the way in: what is judged and drawn is never a running total.

A reading that is missing, the first one, or lower than the one before (a reset) has no rate: NaN, which is unknown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING
from mainstay.service.telemetry.ring_seconds import Run, mesh


class CounterRates:
    """The last reading of every (counter, column), so that rates continue across frames.

    Args:
        counters: number of counters a column has.
    """

    def __init__(self, counters: int) -> None:
        self._counters = counters
        self._value: NDArray[np.int64] = np.empty((counters, 0), np.int64)
        self._time: NDArray[np.float64] = np.empty((counters, 0), np.float64)
        """Unix seconds of the last reading; NaN where there was none."""

    def feed(
        self, counters: Run, columns: Run, readings: NDArray[np.int64], *, starts: NDArray[np.float64], dt: float
    ) -> NDArray[np.float32]:
        """Rates per second.

        Args:
            counters: [counter] row of each counter in the state.
            columns: [column] column of each entity in the state.
            readings: [time, counter, column] totals, ``WIDE_MISSING`` where unknown.
            starts: [column] Unix seconds of the first sample.
            dt: seconds between samples.

        Returns:
            [time, counter, column]; readings older than the newest one seen give NaN.
        """
        rates = np.full(readings.shape, np.nan, np.float32)
        if not readings.shape[1]:
            return rates
        self._reserve(columns.stop if isinstance(columns, slice) else int(columns.max(initial=-1)) + 1)
        at = mesh(counters, columns)
        value, seen = self._value[at], self._time[at]
        for k, reading in enumerate(readings):
            now = starts + k * dt
            is_newer = (reading != WIDE_MISSING) & ~(now <= seen)
            # Where there was no reading before, the difference means nothing (and may wrap), and NaN seconds have
            # passed. To divide everything and mask afterwards is several times faster than numpy's ``where``.
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = (reading - value) / (now - seen)
            np.copyto(rates[k], rate, where=is_newer & (reading >= value), casting="same_kind")
            np.copyto(value, reading, where=is_newer)
            np.copyto(seen, now, where=is_newer)
        self._value[at], self._time[at] = value, seen
        return rates

    def totals(self, counter: int, columns: Run, since: float) -> NDArray[np.int64]:
        """[column] last readings of one, ``WIDE_MISSING`` where there was none at or after ``since``."""
        self._reserve(columns.stop if isinstance(columns, slice) else int(columns.max(initial=-1)) + 1)
        return np.where(self._time[counter, columns] >= since, self._value[counter, columns], WIDE_MISSING)

    def forget(self, columns: NDArray[np.intp]) -> None:
        """Reset columns that are assigned to other entities."""
        known = columns[columns < self._value.shape[1]]
        self._value[:, known], self._time[:, known] = WIDE_MISSING, np.nan

    def _reserve(self, columns: int) -> None:
        have = self._value.shape[1]
        if columns <= have:
            return
        grown = max(columns, have + have // 4, 16)
        value = np.full((self._counters, grown), WIDE_MISSING, np.int64)
        seen = np.full((self._counters, grown), np.nan)
        value[:, :have], seen[:, :have] = self._value, self._time
        self._value, self._time = value, seen
