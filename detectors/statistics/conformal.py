"""From the distances of healthy samples to the distance that fails: exclusion, then a quantile with a stated budget.

Sources: iterative exclusion as the SuperBench paper's Validator (ATC'24); split conformal prediction (Vovk et al.): of
n + 1 exchangeable scores the next exceeds the k-th smallest of n with probability at most 1 - k / (n + 1). A budget
below 1 / (n + 1) is beyond what n samples can show of themselves; there the tail is extrapolated, and the limit is
never below the worst healthy score seen. Runs of one session are not exchangeable with those of the next: where
sessions are known they are counted instead, with the quantile of all of their runs (Dunn, Wasserman & Ramdas 2022,
pooling of groups), and below that many the prediction limit of ``sessions``.

A sample has two scores. Its **median** against the reference's has short tails: it sees a uniform slowdown, and who is
to be left out. The distance of the **whole** distribution sees that a share of the repetitions is slow, and has the
long tail that a host gives its benchmarks (a few repetitions disturbed by tens of per cent are normal somewhere in a
fleet): one limit for both would be blind, or would call every disturbed run a defect. Each has half of the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import Floats
from mainstay.detectors.statistics.spot import tail
from mainstay.detectors.validation.criterion_limits import (
    MAX_SCATTER,
    TIMES,
    WARN_FACTOR,
    NotAGateError,
    exchangeable,
    reach,
    robust_scale,
)
from mainstay.detectors.validation.sessions import Components, Groups, Sessions, components

Mask = NDArray[np.bool_]

LEAST = 0.02
"""No failure for less than 2 %: below it temperature and placement move a healthy device (reference: alpha_m is
``1 - max(2 %, 4 x repeatability distance)``)."""
MOST = 0.5
"""A distance of 0.5 is twice as slow: a failure however few samples were seen."""
_TAIL_SAMPLES = 100
"""Ten beyond nine tenths: fewer show no tail."""
MOST_EXCLUDED = 1.0 / 3.0
"""Samples that may be left out before there is no majority to call healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformalScores:
    """Distances of samples from their reference."""

    worse: Floats
    """[samples] one-sided, what judges."""
    signed: Floats
    """[samples] worse less better: spreads on both sides, so that a scale can be had from it."""

    def __getitem__(self, keep: Mask) -> ConformalScores:
        return ConformalScores(worse=self.worse[keep], signed=self.signed[keep])

    def __len__(self) -> int:
        return len(self.worse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """Both scores of the same samples."""

    median: ConformalScores
    whole: ConformalScores

    def __getitem__(self, keep: Mask) -> Views:
        return Views(median=self.median[keep], whole=self.whole[keep])


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Distances from which a sample fails or warns."""

    fail: float
    warn: float
    detectable: float
    """The uniform slowdown, as a share, from which 95 % of devices fail: what a criterion can promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Of both scores: a sample fails by either."""

    median: Threshold
    whole: Threshold
    sessions: Sessions | None = None
    """What is known of the sessions that the samples are of, by their medians."""

    @property
    def detectable(self) -> float:
        """By whichever sees it first."""
        return min(self.median.detectable, self.whole.detectable)


def healthy(views: Views, repeatability: float) -> Mask:
    """Which samples are no outliers in the worse direction; shape [samples].

    A median may lie four robust deviations out, which up to a third of slow samples does not change. A whole
    distribution may lie as far out as the tail of the rest reaches.

    Args:
        views: of all samples that are left.
        repeatability: mean one-sided distance between repeats; NaN if unknown.
    """
    least = max(LEAST, TIMES * float(np.nan_to_num(repeatability)))
    usual = views.median.worse < max(least, _reach(views.median.signed))
    edge = max(least, _reach(views.whole.signed[usual]), _tail_reach(views.whole.worse[usual]))
    return np.asarray(usual & (views.whole.worse < edge))


def _reach(signed: Floats) -> float:
    return float(np.median(signed)) + TIMES * robust_scale(signed)


def _tail_reach(worse: Floats) -> float:
    """Where the worst of n would lie if the tail beyond nine tenths were exponential; its scale from two quantiles."""
    if len(worse) < _TAIL_SAMPLES:
        return 0.0
    start, later = (float(q) for q in np.quantile(worse, (0.9, 0.97)))
    return start + (later - start) / math.log(0.1 / 0.03) * math.log(len(worse))


def thresholds(
    views: Views, repeatability: float, budget: float, independent: int | None = None, groups: Groups | None = None
) -> Thresholds:
    """The limits that healthy samples pass with probability ``budget`` and, for warnings, ten times that.

    Args:
        views: of samples taken to be healthy.
        repeatability: mean one-sided distance between repeats; NaN if unknown.
        budget: chance that a healthy sample fails; each of both scores gets half.
        independent: how many samples are independent of each other; None: all. Four GPUs that ran one job together
            moved together, and show no more than one of them would.
        groups: [samples] the session of each: then the sample that passes is of a session to come, and sessions are
            what is independent.

    Raises:
        NotAGateError: healthy samples scatter so much that a limit would prove nothing.
    """
    floor = max(LEAST, TIMES * float(np.nan_to_num(repeatability)))
    known = None if groups is None else [components(scores.signed, groups) for scores in (views.median, views.whole)]
    alike = [exchangeable(scores.signed, independent) for scores in (views.median, views.whole)]
    median, whole = alike if known is None or not known[0].describe else known
    return Thresholds(
        median=_threshold(views.median, floor, budget / 2, median, heavy=False),
        whole=_threshold(views.whole, floor, budget / 2, whole, heavy=True),
        sessions=None if known is None else known[0].kept,
    )


def _threshold(scores: ConformalScores, floor: float, budget: float, spread: Components, *, heavy: bool) -> Threshold:
    if spread.total > MAX_SCATTER:
        raise NotAGateError(f"runs scatter by {spread.total:.0%}: more than {MAX_SCATTER:.0%} proves nothing")
    fail = min(MOST, max(floor, _quantile(scores, budget, spread, heavy=heavy)))
    warn = min(fail, max(LEAST, _quantile(scores, min(0.1, WARN_FACTOR * budget), spread, heavy=heavy)))
    needed = min(fail - float(np.quantile(scores.signed, 0.05)), 0.99)
    return Threshold(fail=fail, warn=warn, detectable=needed / (1.0 - needed))


def _quantile(scores: ConformalScores, budget: float, spread: Components, *, heavy: bool) -> float:
    n = spread.count
    rank = math.ceil((n + 1) * (1.0 - budget))
    if rank <= n:
        return float(np.sort(scores.worse)[math.ceil(rank * len(scores) / n) - 1])
    overlap = float(np.median(scores.worse - np.maximum(scores.signed, 0.0)))
    """What noise adds to a one-sided distance where curves cross."""
    limit = max(float(scores.worse.max()), spread.center + reach(spread.parts, budget) + overlap)
    shape = n if spread.between is None else len(scores)  # samples that may show the shape of a tail
    if heavy and shape >= _TAIL_SAMPLES:
        limit = max(limit, tail(scores.worse, quantile=0.9, apart=0).threshold(budget))
    return limit
