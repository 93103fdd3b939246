"""When failures come: independent of one another, every so often, or a known number anywhere in a time.

Every process gives instants in seconds from the start, ascending, of the shape (runs, failures): runs with fewer than
others are filled with inf. ``estimate`` sums up what one value came to over all runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Z95 = 1.96
"""Standard errors on either side of the mean that hold 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over runs with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    spread: float
    """Standard deviation between runs."""
    runs: int


def estimate(values: Array) -> Estimate:
    """Mean and 95 % interval (normal approximation) of one value a run; a lone run has an interval of width 0."""
    mean, runs = float(values.mean()), len(values)
    spread = float(values.std(ddof=1)) if runs > 1 else 0.0
    half = Z95 * spread / math.sqrt(runs)
    return Estimate(mean, mean - half, mean + half, spread, runs)


def exponential(mtbf_s: float, horizon_s: float, runs: int, rng: np.random.Generator) -> Array:
    """A Poisson process: gaps are exponential with mean ``mtbf_s``.

    Raises:
        ValueError: a mean or a horizon that is not above 0, or fewer than one run.
    """
    if not (mtbf_s > 0.0 and 0.0 < horizon_s < math.inf and runs >= 1):
        raise ValueError(f"mean and horizon above 0 s and at least one run, not {mtbf_s}, {horizon_s}, {runs}")
    expected = horizon_s / mtbf_s
    # Eight standard deviations above the mean: fewer than one run in 1e14 has more failures than fit.
    most = math.ceil(expected + 8.0 * math.sqrt(expected) + 8.0)
    instants = np.cumsum(rng.exponential(mtbf_s, (runs, most)), axis=1)
    return np.asarray(np.where(instants < horizon_s, instants, np.inf))
