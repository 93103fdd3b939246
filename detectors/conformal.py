"""From the distances of healthy samples to the distance that fails: exclusion, then a quantile with a stated budget.

Sources: iterative exclusion as the SuperBench paper's Validator (ATC'24); split conformal prediction (Vovk et al.): of
n + 1 exchangeable scores the next exceeds the k-th smallest of n with probability at most 1 - k / (n + 1). A budget
below 1 / (n + 1) is beyond what n samples can show of themselves; there a prediction limit of Student's t takes over,
and is never below the worst healthy score seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.base import Floats
from detectors.limits import MAX_SCATTER, WARN_FACTOR, NotAGateError, robust_scale, student_t

Mask = NDArray[np.bool_]

LEAST = 0.02
"""No failure for less than 2 %: below it temperature and placement move a healthy device (reference: alpha_m is
``1 - max(2 %, 4 x repeatability distance)``)."""
TIMES = 4.0
"""Repeatability distances, or deviations between healthy samples, that are not yet a defect."""
MOST = 0.5
"""A distance of 0.5 is twice as slow: a failure however few samples were seen."""
MOST_EXCLUDED = 1.0 / 3.0
"""Samples that may be left out before there is no majority to call healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Distances of samples from their reference."""

    worse: Floats
    """[samples] one-sided, what judges."""
    signed: Floats
    """[samples] worse less better: spreads on both sides, so that a scale can be had from it."""

    def __getitem__(self, keep: Mask) -> Scores:
        return Scores(worse=self.worse[keep], signed=self.signed[keep])

    def __len__(self) -> int:
        return len(self.worse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Distances from which a sample fails or warns."""

    fail: float
    warn: float
    detectable: float
    """The uniform slowdown, as a share, from which 95 % of devices fail: what a criterion can promise."""


def healthy(scores: Scores, repeatability: float) -> Mask:
    """Which samples are no outliers in the worse direction; shape [samples].

    Args:
        scores: of all samples that are left.
        repeatability: mean one-sided distance between repeats; NaN if unknown.
    """
    scale = robust_scale(scores.signed)
    edge = max(LEAST, TIMES * np.nan_to_num(repeatability), float(np.median(scores.signed)) + TIMES * scale)
    return np.asarray(scores.worse < edge)


def threshold(scores: Scores, repeatability: float, budget: float) -> Threshold:
    """The limits that healthy samples pass with probability ``budget`` and, for warnings, ten times that.

    Args:
        scores: of samples taken to be healthy.
        repeatability: mean one-sided distance between repeats; NaN if unknown.
        budget: chance that a healthy sample fails.

    Raises:
        NotAGateError: healthy samples scatter so much that a limit would prove nothing.
    """
    scale = robust_scale(scores.signed)
    if scale > MAX_SCATTER:
        raise NotAGateError(f"runs scatter by {scale:.0%}: more than {MAX_SCATTER:.0%} proves nothing")
    floor = max(LEAST, TIMES * float(np.nan_to_num(repeatability)))
    fail = min(MOST, max(floor, _quantile(scores, scale, budget)))
    warn = min(fail, max(LEAST, _quantile(scores, scale, min(0.1, WARN_FACTOR * budget))))
    needed = min(fail - float(np.quantile(scores.signed, 0.05)), 0.99)
    return Threshold(fail=fail, warn=warn, detectable=needed / (1.0 - needed))


def _quantile(scores: Scores, scale: float, budget: float) -> float:
    n = len(scores)
    rank = math.ceil((n + 1) * (1.0 - budget))
    if rank <= n:
        return float(np.sort(scores.worse)[rank - 1])
    center = float(np.median(scores.signed))
    overlap = float(np.median(scores.worse - np.maximum(scores.signed, 0.0)))
    """What noise adds to a one-sided distance where curves cross."""
    beyond = student_t(1.0 - budget, max(2, (n - 1) // 2)) * scale * math.sqrt(1.0 + 1.0 / n)
    return max(float(scores.worse.max()), center + beyond + overlap)
