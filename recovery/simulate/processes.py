"""When failures come: independent of one another, every so often, or a known number anywhere in a time.

Every process gives instants in seconds from the start, ascending, of the shape (runs, failures): runs with fewer than
others are filled with inf.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def exponential(mtbf_s: float, horizon_s: float, runs: int, rng: np.random.Generator) -> Array:
    """A Poisson process: gaps are exponential with mean ``mtbf_s``.

    Raises:
        ValueError: a mean or a horizon that is not above 0, or fewer than one run.
    """
    _check(mtbf_s, horizon_s, runs)
    expected = horizon_s / mtbf_s
    # Eight standard deviations above the mean: fewer than one run in 1e14 has more failures than fit.
    most = math.ceil(expected + 8.0 * math.sqrt(expected) + 8.0)
    instants = np.cumsum(rng.exponential(mtbf_s, (runs, most)), axis=1)
    return np.asarray(np.where(instants < horizon_s, instants, np.inf))


def periodic(every_s: float, horizon_s: float, runs: int = 1) -> Array:
    """A failure every ``every_s``, none at 0 or at the end itself.

    Raises:
        ValueError: as ``exponential``.
    """
    _check(every_s, horizon_s, runs)
    instants = np.arange(1, math.ceil(horizon_s / every_s)) * every_s
    return np.tile(instants, (runs, 1)).astype(np.float64)


def scattered(count: int, horizon_s: float, runs: int, rng: np.random.Generator) -> Array:
    """A Poisson process of which the count is known: ``count`` instants, uniform over the horizon.

    Raises:
        ValueError: a count below 0, or as ``exponential``.
    """
    _check(1.0, horizon_s, runs)
    if count < 0:
        raise ValueError(f"a run has at least 0 failures, not {count}")
    return np.sort(rng.random((runs, count)) * horizon_s, axis=1)


def _check(mean_s: float, horizon_s: float, runs: int) -> None:
    if not (mean_s > 0.0 and horizon_s > 0.0 and math.isfinite(horizon_s) and runs >= 1):
        raise ValueError(f"mean and horizon above 0 s and at least one run, not {mean_s}, {horizon_s}, {runs}")
