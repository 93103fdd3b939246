"""Counters become per-second rates on the way in: what is judged and drawn is never a running total.

A reading that is missing, the first one, or lower than the one before (a reset) has no rate: NaN, which is unknown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING


class CounterRates:
    """The last reading of every (column, counter), so that rates continue across frames.

    Args:
        counters: number of counters a column has.
    """

    def __init__(self, counters: int) -> None:
        self._counters = counters
        self._value: NDArray[np.int64] = np.empty((0, counters), np.int64)
        self._time: NDArray[np.float64] = np.empty((0, counters), np.float64)

    def feed(
        self, columns: NDArray[np.intp], readings: NDArray[np.int64], *, t0: float, dt: float
    ) -> NDArray[np.float32]:
        """Rates per second.

        Args:
            columns: [entity] row of each entity in the state.
            readings: [entity, counter, time] totals, ``WIDE_MISSING`` where unknown.
            t0: Unix seconds of the first sample.
            dt: seconds between samples.

        Returns:
            [entity, counter, time]; readings older than the newest one seen give NaN.
        """
        self._reserve(int(columns.max(initial=-1)) + 1)
        value, seen = self._value[columns], self._time[columns]
        if (readings != WIDE_MISSING).all() and (t0 > seen).all():
            self._value[columns] = readings[:, :, -1]
            self._time[columns] = t0 + (readings.shape[2] - 1) * dt
            return _all_at_once(value, seen, readings, t0, dt)
        rates = np.full(readings.shape, np.nan, np.float32)
        for k in range(readings.shape[2]):
            now, reading = t0 + k * dt, readings[:, :, k]
            elapsed = now - seen
            newer = (reading != WIDE_MISSING) & (elapsed > 0)
            rated = newer & (value != WIDE_MISSING) & (reading >= value)
            rates[:, :, k][rated] = (reading[rated] - value[rated]) / elapsed[rated]
            value[newer], seen[newer] = reading[newer], now
        self._value[columns], self._time[columns] = value, seen
        return rates

    def totals(self, columns: NDArray[np.intp], since: float) -> NDArray[np.int64]:
        """[column, counter] last readings, ``WIDE_MISSING`` where there was none at or after ``since``."""
        self._reserve(int(columns.max(initial=-1)) + 1)
        return np.where(self._time[columns] >= since, self._value[columns], WIDE_MISSING)

    def forget(self, columns: NDArray[np.intp]) -> None:
        """Reset columns that are assigned to other entities."""
        known = columns[columns < len(self._value)]
        self._value[known], self._time[known] = WIDE_MISSING, -np.inf

    def _reserve(self, columns: int) -> None:
        have = len(self._value)
        if columns <= have:
            return
        grown = max(columns, 2 * have, 16)
        value = np.full((grown, self._counters), WIDE_MISSING, np.int64)
        seen = np.full((grown, self._counters), -np.inf)
        value[:have], seen[:have] = self._value, self._time
        self._value, self._time = value, seen


def _all_at_once(
    value: NDArray[np.int64], seen: NDArray[np.float64], readings: NDArray[np.int64], t0: float, dt: float
) -> NDArray[np.float32]:
    """The usual case, no reading missing and all newer than what was seen: the same rates without a loop."""
    before = np.concatenate([value[:, :, None], readings[:, :, :-1]], axis=2)
    # Where there was no reading before, the difference means nothing (and may wrap): it is masked below.
    rates: NDArray[np.float32] = (readings - before).astype(np.float32)
    unknown = readings < before
    unknown[:, :, 0] |= value == WIDE_MISSING
    rates[:, :, 0] /= t0 - seen
    rates[:, :, 1:] /= dt
    rates[unknown] = np.nan
    return rates
