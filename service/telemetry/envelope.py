"""Thinning a series for a chart: mean, lowest and highest of each bucket, so that no spike is averaged away."""

from __future__ import annotations

from collections.abc import Sequence
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
class Points:
    """[point] each, in any order: samples, or buckets of a roll-up."""

    times: NDArray[np.float64]
    """Unix seconds."""
    mean: NDArray[np.floating]
    """NaN is unknown and left out."""
    low: NDArray[np.floating]
    high: NDArray[np.floating]
    count: NDArray[np.int32]
    """Samples of each point."""

    @classmethod
    def of_samples(cls, times: NDArray[np.float64], values: NDArray[np.floating]) -> Points:
        """Points of one sample each."""
        return cls(times, values, values, values, np.ones(len(times), np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Points]) -> Points:
        names = ("times", "mean", "low", "high", "count")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, slots=True)
class Buckets:
    """``count`` buckets of ``width`` seconds from ``start``."""

    start: float
    width: float
    count: int

    @classmethod
    def over(cls, start: float, stop: float, points: int, resolution: int = 1) -> Buckets:
        """At most ``points`` buckets over ``[start, stop)``, none finer than ``resolution`` seconds.

        Edges lie on whole widths, and a width is a multiple of the resolution.
        """
        width = resolution * max(1.0, float(np.ceil((stop - start) / max(points, 1) / resolution)))
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
        return self.combine(Points.of_samples(times, values))

    def combine(self, points: Points) -> Envelope:
        """Envelope of points, each of which lies in one bucket."""
        place = np.floor((points.times - self.start) / self.width).astype(np.int64)
        kept = ~np.isnan(points.mean) & (place >= 0) & (place < self.count)
        place, count = place[kept], points.count[kept]
        number = np.bincount(place, weights=count, minlength=self.count)
        total = np.bincount(place, weights=points.mean[kept].astype(np.float64) * count, minlength=self.count)
        low, high = np.full(self.count, np.inf), np.full(self.count, -np.inf)
        np.minimum.at(low, place, points.low[kept].astype(np.float64))
        np.maximum.at(high, place, points.high[kept].astype(np.float64))
        empty = number == 0
        low[empty], high[empty] = np.nan, np.nan
        with np.errstate(invalid="ignore"):
            return Envelope(np.where(empty, np.nan, total / np.maximum(number, 1)), low, high)


def as_json(values: NDArray[np.float64]) -> list[float | None]:
    """NaN becomes null: unknown is never zero."""
    return [None if np.isnan(value) else float(value) for value in values]
