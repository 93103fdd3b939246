"""Mean, lowest, highest, and number of the samples in each bucket. Arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import WIDE_MISSING

MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Rollup:
    """[row] each; rows are sorted by device, signal, and time."""

    ranks: NDArray[np.int64]
    """Place of the device."""
    signals: NDArray[np.int16]
    """Number of the signal."""
    times: NDArray[np.int64]
    """Start of the bucket, microseconds."""
    mean: NDArray[np.float64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    count: NDArray[np.int32]


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


def roll_up(
    ranks: NDArray[np.int64], times: NDArray[np.int64], signals: Mapping[int, NDArray[np.float32]], seconds: int
) -> Rollup:
    """Roll up samples.

    Args:
        ranks: [row] device; rows are sorted by it, then by time.
        times: [row] microseconds.
        signals: number of the signal → [row] values, NaN where unknown.
        seconds: width of a bucket.
    """
    buckets = times // (seconds * MICRO)
    starts = _starts(ranks, buckets)
    sizes = np.diff(starts, append=len(ranks)).astype(np.int32)
    parts: list[tuple[NDArray[np.generic], ...]] = []
    for number, values in signals.items():
        missing = np.isnan(values)
        if missing.all():
            continue
        count, summed = sizes, values
        if missing.any():
            count = sizes - np.add.reduceat(missing, starts, dtype=np.int32)
            summed = np.where(missing, np.float32(0), values)
        total = np.add.reduceat(summed, starts, dtype=np.float64)
        low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        kept = count > 0
        at = starts[kept]
        parts.append((
            ranks[at], np.full(len(at), number, np.int16), buckets[at] * (seconds * MICRO), total[kept] / count[kept],
            low[kept], high[kept], count[kept],
        ))  # fmt: skip
    if not parts:
        empty = np.empty(0, np.int64)
        parts = [(empty, empty.astype(np.int16), empty, *(empty.astype(t) for t in ("f8", "f4", "f4", "i4")))]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Rollup(*(column[order] for column in columns))


def coarsen(fine: Rollup, seconds: int) -> Rollup:
    """Roll up once more, to buckets that are whole multiples of the present ones."""
    buckets = fine.times // (seconds * MICRO)
    starts = _starts(fine.ranks, fine.signals, buckets)
    if not len(starts):
        return fine
    count = np.add.reduceat(fine.count, starts)
    return Rollup(
        fine.ranks[starts],
        fine.signals[starts],
        buckets[starts] * (seconds * MICRO),
        np.add.reduceat(fine.mean * fine.count, starts) / count,
        np.minimum.reduceat(fine.low, starts),
        np.maximum.reduceat(fine.high, starts),
        count,
    )


def _starts(*keys: NDArray[np.generic]) -> NDArray[np.intp]:
    """Where a new group of equal keys begins."""
    changes = np.zeros(max(len(keys[0]) - 1, 0), bool)
    for key in keys:
        changes |= key[1:] != key[:-1]
    return np.concatenate([[0], np.flatnonzero(changes) + 1]) if len(keys[0]) else np.empty(0, np.intp)
