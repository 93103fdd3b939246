"""Thresholds from the tail of a healthy stretch: peaks over threshold with a generalized Pareto distribution.

Siffer et al., "Anomaly detection in streams with extreme value theory" (KDD 2017), with two changes: peaks are maxima
of clusters, because a smoothed score stays high for a while, and a threshold is asked for by how many clusters a day
may pass it. The fit is that of Zhang and Stephens (Technometrics 51, 2009): no iteration that could fail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Floats

LEAST_PEAKS = 10
"""Below, a tail has no shape: it is taken as exponential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Clusters over ``start``: so many a sample, with excesses of a generalized Pareto distribution."""

    start: float
    rate: float
    shape: float
    """xi: 0 = exponential, above = heavy."""
    scale: float

    def threshold(self, rate: float) -> float:
        """What ``rate`` clusters a sample pass; never below ``start``."""
        if rate >= self.rate:
            return self.start
        ratio = rate / self.rate
        if abs(self.shape) < 1e-6:  # the limit of the formula below
            return self.start - self.scale * float(np.log(ratio))
        return self.start + self.scale / self.shape * (float(ratio**-self.shape) - 1.0)

    def log_rate(self, score: Floats) -> Floats:
        """The inverse: logarithm of how many clusters a sample pass each score [T]; +inf below ``start``."""
        excess = np.maximum(score - self.start, 0.0) / self.scale
        if abs(self.shape) >= 1e-6:
            with np.errstate(divide="ignore"):  # beyond the end of a short tail: never
                excess = np.log(np.maximum(1.0 + self.shape * excess, 0.0)) / self.shape
        return np.where(score < self.start, np.inf, np.log(self.rate) - excess)


def tail(score: Floats, *, quantile: float = 0.98, apart: int = 30) -> Tail:
    """The tail of a healthy score.

    Args:
        score: [T], one a sample, of data that the model was not fitted to.
        quantile: where the tail starts; the KDD paper's 0.98.
        apart: samples between two clusters.

    Raises:
        ValueError: a score is not finite, or there is none.
    """
    if not len(score) or not np.isfinite(score).all():
        raise ValueError("a tail needs finite scores, at least one")
    start = float(np.quantile(score, quantile))
    over = np.flatnonzero(score > start)
    groups = np.split(over, np.flatnonzero(np.diff(over) > apart) + 1)
    excess = np.array([score[group].max() - start for group in groups if len(group)])
    rate = max(len(excess), 1) / len(score)
    if len(excess) < LEAST_PEAKS:
        return Tail(start=start, rate=rate, shape=0.0, scale=float(excess.mean()) if len(excess) else 1e-9)
    shape, scale = pareto(excess)
    return Tail(start=start, rate=rate, shape=shape, scale=scale)


def pareto(excess: Floats) -> tuple[float, float]:
    """Shape and scale of a generalized Pareto distribution: Zhang and Stephens' weighted mean over likely values.

    The shape is drawn towards 0 as if ten more excesses had said so (their remark for few data), and kept below 1,
    where the mean would not exist.
    """
    x = np.sort(excess)
    n = len(x)
    count = 20 + int(np.sqrt(n))
    quarter = x[max(int(n / 4 + 0.5) - 1, 0)]
    theta = 1 / x[-1] + (1 - np.sqrt(count / (np.arange(1, count + 1) - 0.5))) / (3 * (quarter or 1e-12 * x[-1]))
    k = -np.log1p(-theta[:, None] * x).mean(axis=1)
    scale = np.divide(k, theta, out=np.full(count, x.mean()), where=theta != 0)  # at 0 its limit, of an exponential
    profile = n * (k - np.log(scale) - 1)
    weight = np.exp(profile - profile.max())
    best = float(np.sum(theta * weight) / weight.sum())
    k_best = -float(np.log1p(-best * x).mean())
    shape = -k_best * n / (n + 10)
    return min(shape, 0.9), k_best / best if best else float(x.mean())
