"""How many nodes there will be: short forecasts from what was seen, for jobs on nodes that come and go.

A forecast is asked with the counts of all intervals so far, the last of which is now, and answers with paths: possible
counts of the next intervals, each as likely as the others. Simple ones give one path. All are pure: the same counts
give the same paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Forecast = Callable[[Sequence[int], int], Array]
"""Counts so far (at least one) and intervals ahead (at least one) -> counts, shape (paths, ahead); not rounded."""

RECENT: Final = 12
"""Intervals that a fit looks back on: as many as Parcae's (NSDI'24) looks ahead at most."""
WEIGHT: Final = 0.5
"""Of the newest count in exponential smoothing."""
FELT: Final = 50
"""Counts that a double still feels at that weight."""
DAMPING: Final = 0.8
"""Of a trend, each interval."""
STEADY: Final = 0.95
"""Least distance of a fitted coefficient from 1 is 1 - this: a trend must end, and a mean must draw."""
PATHS: Final = 32
"""Sampled futures."""
SEED: Final = 12


def last_value(counts: Sequence[int], ahead: int) -> Array:
    """All stays as it is."""
    return np.full((1, ahead), float(counts[-1]))


def smoothed(counts: Sequence[int], ahead: int) -> Array:
    """Exponential smoothing: the level of late."""
    level, *later = map(float, counts[-FELT:])
    for count in later:
        level += WEIGHT * (count - level)
    return np.full((1, ahead), level)


def damped_trend(counts: Sequence[int], ahead: int) -> Array:
    """Holt's linear trend, damped (Gardner and McKenzie, 1985)."""
    level, *later = map(float, counts[-FELT:])
    trend = 0.0
    for count in later:
        before = level
        level = WEIGHT * count + (1.0 - WEIGHT) * (level + DAMPING * trend)
        trend = WEIGHT * (level - before) + (1.0 - WEIGHT) * DAMPING * trend
    return _bounded(level + trend * np.cumsum(DAMPING ** np.arange(1, ahead + 1)), counts)


def arima(counts: Sequence[int], ahead: int) -> Array:
    """ARIMA(1,1,0), as Parcae's: the last change continues, shrinking by a factor that is fitted to recent ones."""
    changes = np.diff(np.asarray(counts[-RECENT - 1 :], dtype=np.float64))
    factor = _factor(changes)
    last = changes[-1] if len(changes) else 0.0
    return _bounded(counts[-1] + last * np.cumsum(factor ** np.arange(1, ahead + 1)), counts)


def reverting(counts: Sequence[int], ahead: int) -> Array:
    """Back to the mean of all that was seen, by a fitted share each interval (an autoregression of order one)."""
    seen = np.asarray(counts, dtype=np.float64)
    mean = float(seen.mean())
    return _bounded(mean + (counts[-1] - mean) * _factor(seen - mean) ** np.arange(1, ahead + 1), counts)


def resampled(counts: Sequence[int], ahead: int) -> Array:
    """What happened may happen again: stretches of past changes, drawn with replacement, continue from now."""
    changes = np.diff(np.asarray(counts, dtype=np.float64))
    if not len(changes):
        return last_value(counts, ahead)
    rng = np.random.default_rng((SEED, len(counts)))
    begin = rng.integers(0, len(changes), PATHS)
    stretches = changes[(begin[:, None] + np.arange(ahead)) % len(changes)]
    paths = np.empty((PATHS, ahead))
    now = np.full(PATHS, float(counts[-1]))
    for i in range(ahead):
        now = np.clip(now + stretches[:, i], 0.0, float(max(counts)))
        paths[:, i] = now
    return paths


FORECASTS: Final[Mapping[str, Forecast]] = {
    "last value": last_value,
    "smoothed": smoothed,
    "damped trend": damped_trend,
    "ARIMA(1,1,0)": arima,
    "reverting": reverting,
    "resampled": resampled,
}


def error(forecast: Forecast, counts: Sequence[int], ahead: int, first: int = 1) -> float:
    """Mean absolute error in nodes, over all intervals ahead, of forecasts made with ``first`` counts or more.

    Several paths are judged by their mean.

    Raises:
        ValueError: too few counts to forecast and see what came.
    """
    if not 1 <= first <= len(counts) - 1:
        raise ValueError(f"{len(counts)} counts leave nothing to judge a forecast by that begins with {first}")
    misses = [
        np.abs(forecast(counts[:now], ahead).mean(axis=0)[: len(counts) - now] - counts[now : now + ahead])
        for now in range(first, len(counts))
    ]
    return float(np.concatenate(misses).mean())


def best(counts: Sequence[int], ahead: int) -> str:
    """The forecast that erred least on what was seen; on a tie the first."""
    return min(FORECASTS, key=lambda name: error(FORECASTS[name], counts, ahead))


def _factor(values: Array) -> float:
    """Least squares of each value by the one before; 0 where that says nothing."""
    before, after = values[:-1], values[1:]
    power = float(before @ before)
    return float(np.clip(before @ after / power, -STEADY, STEADY)) if power > 0.0 else 0.0


def _bounded(path: NDArray[np.floating], counts: Sequence[int]) -> Array:
    """One path of counts that can be: none below zero, none above what there ever was."""
    clipped: Array = np.clip(path, 0.0, float(max(counts)))[None, :]
    return clipped
