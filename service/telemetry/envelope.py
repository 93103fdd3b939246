"""Thinning a series for a chart: mean, lowest and highest of each bucket, so that no spike is averaged away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Envelope:
    """[bucket] each; NaN where a bucket holds nothing."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Buckets:
    """``count`` buckets of ``width`` seconds from ``start``."""

    start: float
    width: float
    count: int

    @classmethod
    def over(cls, start: float, stop: float, points: int) -> Buckets:
        """At most ``points`` buckets over ``[start, stop)``, none shorter than a second, edges on whole widths."""
        width = max(1.0, float(np.ceil((stop - start) / max(points, 1))))
        first = np.floor(start / width) * width
        return cls(float(first), width, max(1, int(np.ceil((stop - first) / width))))

    @property
    def times(self) -> NDArray[np.float64]:
        """The start of each bucket, Unix seconds."""
        return np.float64(self.start) + np.float64(self.width) * np.arange(self.count, dtype=np.float64)

    def thin(self, times: NDArray[np.float64], values: NDArray[np.floating]) -> Envelope:
        """Envelope of one series.

        Args:
            times: [sample] Unix seconds, in any order.
            values: [sample]; NaN is unknown and left out.
        """
        place = np.floor((times - self.start) / self.width).astype(np.int64)
        kept = ~np.isnan(values) & (place >= 0) & (place < self.count)
        place, known = place[kept], values[kept].astype(np.float64)
        number = np.bincount(place, minlength=self.count)
        total = np.bincount(place, weights=known, minlength=self.count)
        low, high = np.full(self.count, np.inf), np.full(self.count, -np.inf)
        np.minimum.at(low, place, known)
        np.maximum.at(high, place, known)
        empty = number == 0
        low[empty], high[empty] = np.nan, np.nan
        with np.errstate(invalid="ignore"):
            return Envelope(np.where(empty, np.nan, total / np.maximum(number, 1)), low, high)


def as_json(values: NDArray[np.float64]) -> list[float | None]:
    """NaN becomes null: unknown is never zero."""
    return [None if np.isnan(value) else float(value) for value in values]
