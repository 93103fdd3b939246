"""Mean, lowest, highest, and number of the samples in each bucket. Arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING

MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class SortedRows:
    """Rows sorted by device and time, each once. Signals have their numbers in ``ring_signals``."""

    codes: NDArray[np.int32]
    """[device]"""
    devices: NDArray[np.intp]
    """[row] index into ``codes``."""
    times: NDArray[np.int64]
    """[row]"""
    is_first: NDArray[np.bool_]
    """[row] the first one of its device that is known: its counters have no rates."""
    series: dict[int, NDArray[Any]]
    """Signal → [row]."""
    rates: dict[int, NDArray[np.float32]]
    """The counters among ``series`` → [row]."""
    still: dict[int, NDArray[Any]]
    """Signal that no device changes → [device]."""

    def within(self, start: int, stop: int) -> SortedRows:
        """The rows of ``[start, stop)`` Unix seconds."""
        kept = (self.times >= start * MICRO) & (self.times < stop * MICRO)
        if kept.all():
            return self
        series, rated = ({n: v[kept] for n, v in some.items()} for some in (self.series, self.rates))
        return SortedRows(
            self.codes, self.devices[kept], self.times[kept], self.is_first[kept], series, rated, self.still
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rollup:
    """Grids [signal, bucket]; buckets are sorted by device and time."""

    signals: NDArray[np.int32]
    """[signal] their numbers, ascending."""
    devices: NDArray[np.intp]
    """[bucket]"""
    times: NDArray[np.int64]
    """[bucket] start, microseconds."""
    total: NDArray[np.float64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    count: NDArray[np.int32]
    """0 where the signal is unknown."""


def rates(ranks: NDArray[np.int64], times: NDArray[np.int64], totals: NDArray[np.int64]) -> NDArray[np.float32]:
    """Rates per second of a counter; NaN where it is missing, new, or was reset.

    Args:
        ranks: [row] device; rows are sorted by it, then by time.
        times: [row] microseconds.
        totals: [row] readings, ``WIDE_MISSING`` where unknown.
    """
    found = np.full(len(totals), np.nan, np.float32)
    known = totals != WIDE_MISSING
    if not known.all():
        at = np.flatnonzero(known)
        found[at] = rates(ranks[at], times[at], totals[at]) if len(at) else ()
        return found
    grown = totals[1:] - totals[:-1]
    good = (ranks[1:] == ranks[:-1]) & (grown >= 0)
    np.divide(grown, (times[1:] - times[:-1]) / MICRO, out=found[1:], where=good, casting="same_kind")
    return found


def roll_up(rows: SortedRows, seconds: int) -> Rollup:
    """Roll up samples to buckets of ``seconds``."""
    buckets = rows.times // (seconds * MICRO)
    starts = starts_of(rows.devices, buckets)
    sizes = np.diff(starts, append=len(buckets)).astype(np.int32)
    rated = sizes - np.add.reduceat(rows.is_first, starts, dtype=np.int32)
    known = {n: values for n, values in rows.still.items() if not is_missing(values).all()}
    numbers = sorted({*rows.series, *known})
    shape = (len(numbers), len(starts))
    rolled = Rollup(
        np.array(numbers, np.int32), rows.devices[starts], buckets[starts] * (seconds * MICRO),
        np.zeros(shape), np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.int32),
    )  # fmt: skip
    per_device = np.bincount(rolled.devices, minlength=len(rows.codes))
    for row, number in enumerate(numbers):
        total, low, high, count = rolled.total[row], rolled.low[row], rolled.high[row], rolled.count[row]
        if number in known:
            values, is_gauge = known[number], known[number].dtype == np.float32
            low[:] = high[:] = np.repeat(values if is_gauge else np.float32(0) * values, per_device)
            count[:] = np.where(np.repeat(is_missing(values), per_device), 0, sizes if is_gauge else rated)
            np.multiply(low, count, out=total, where=count > 0, dtype=np.float64)
            continue
        samples = rows.rates.get(number, rows.series[number])
        each, missing = _per_bucket(samples, starts), np.isnan(samples)
        low[:], high[:], count[:] = each(np.fmin), each(np.fmax), sizes
        if missing.any():
            count -= np.add.reduceat(missing, starts, dtype=np.int32)
            each = _per_bucket(np.where(missing, np.float32(0), samples), starts)
        total[:] = each(np.add, np.float64)
    return rolled


def coarsen(fine: Rollup, seconds: int) -> Rollup:
    """Roll up once more, to buckets that are whole multiples of the present ones."""
    buckets = fine.times // (seconds * MICRO)
    starts = starts_of(fine.devices, buckets)
    return Rollup(
        fine.signals,
        fine.devices[starts],
        buckets[starts] * (seconds * MICRO),
        _per_bucket(fine.total, starts)(np.add),
        _per_bucket(fine.low, starts)(np.fmin),
        _per_bucket(fine.high, starts)(np.fmax),
        _per_bucket(fine.count, starts)(np.add),
    )


def _per_bucket(values: NDArray[Any], starts: NDArray[np.intp]) -> Callable[..., NDArray[Any]]:
    """Reduces [..., row] to [..., bucket]; where all buckets have as many rows, across arrays and not along them."""
    size, rest = divmod(values.shape[-1], len(starts))
    if rest or (starts != np.arange(len(starts)) * size).any():
        return lambda ufunc, dtype=None: ufunc.reduceat(values, starts, axis=-1, dtype=dtype)
    turned = np.ascontiguousarray(np.moveaxis(values.reshape(*values.shape[:-1], -1, size), -1, 0))
    return lambda ufunc, dtype=None: ufunc.reduce(turned, axis=0, dtype=dtype)


def is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where values as they are in frames are unknown."""
    missing: NDArray[np.bool_] = np.isnan(values) if values.dtype == np.float32 else values == WIDE_MISSING
    return missing


def starts_of(*keys: NDArray[np.generic]) -> NDArray[np.intp]:
    """Where a new group of equal keys begins."""
    changes = np.zeros(max(len(keys[0]) - 1, 0), bool)
    for key in keys:
        changes |= key[1:] != key[:-1]
    return np.concatenate([[0], np.flatnonzero(changes) + 1]) if len(keys[0]) else np.empty(0, np.intp)
