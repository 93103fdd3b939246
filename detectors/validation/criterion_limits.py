"""Where a metric stops being healthy, learned from runs of machines that are trusted.

Every estimator has scikit-learn's manners: the constructor only stores parameters, ``fit`` learns and returns self,
what was learned ends in an underscore. Invariant: data that cannot carry a limit raise ``NotAGateError`` with the
reason; no estimator ever answers with a limit that could not fire.

``validator.Validator`` learns from the distributions instead.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.validation.sessions import (
    Components,
    Groups,
    Sessions,
    VarianceComponent,
    components,
    drifted,
    numbered,
)
from mainstay.probes.benchmarks.result import Better

Run = NDArray[np.float64]
"""The repetitions of one run of one metric on one device, shape [repetitions], finite."""

MIN_RUNS = 5
"""The median and the MAD of fewer runs are decided by any one of them."""
FAIL_SLACK = 0.05
"""No failure for less than 5 %: healthy devices of one cohort differ by a few percent. On TACC Longhorn 4 of 376 V100s
lie beyond a SGEMM limit of 5.3 %, 13 beyond 3.1 %, and 39 of 336 do for the noisier ResNet."""
WARN_SLACK = 0.02
"""No warning for less than 2 %: below it, temperature and placement move a healthy device."""
MAX_SLACK = math.log(2)
"""Twice as slow is a failure however few runs were seen: the loosest limit in other systems (DLRover, 2 x median)."""
MAX_SCATTER = 0.15
"""Runs that scatter more than this (robust coefficient of variation) make no fine gate: ``MAX_SLACK`` would be within
reach of a healthy run (4.6 sigma). Known benchmarks lie between 0.1 % and 12 %."""
COARSEST: Final = math.log(10)
"""What scatters more than ``MAX_SCATTER`` still finds the gross: a late rank is 20 times as slow, a narrow link 50
times. Its limit is where the budget puts it, beyond ``MAX_SLACK``; one beyond ten times would find next to nothing."""
TIMES = 4.0
"""Deviations between healthy samples, or repeatability distances, that are not yet a defect."""
MIN_SHARE = 0.25
"""A fingerprint seen in fewer runs than this is one device's wrong bits, not a legitimate second answer."""
WARN_FACTOR = 10.0
"""A warning costs a look, a failure costs a node: ten times the false-alarm budget."""


class NotAGateError(ValueError):
    """No limit can be learned from these runs; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionLimits:
    """The edges of the healthy region. A failure lies beyond ``low`` or ``high``, a warning beyond ``warn``."""

    low: float | None = None
    high: float | None = None
    warn: float | None = None
    center: float | None = None
    """The typical value."""
    allowed: tuple[float, ...] = ()
    """For fingerprints: the values that are right."""
    distribution: Distribution | None = None
    """What a criterion on the whole distribution compares with; the limits above then hold for the median."""
    sessions: Sessions | None = None
    """What the limits were learned from; None: the session of each run is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A reference sample and how similar to it a run has to be."""

    reference: tuple[float, ...]
    """Values of the run that stands for all healthy ones, rising."""
    alpha: float
    """Fails at this one-sided similarity or less."""
    warn_alpha: float
    repeatability: float | None
    """Mean similarity of two runs of the same device; None if that was not seen."""
    detectable: float
    """The uniform slowdown, as a share, from which 95 % of devices fail."""
    excluded: int
    """Runs left out as slow."""

    def __post_init__(self) -> None:
        if not self.reference or not all(math.isfinite(value) and value > 0 for value in self.reference):
            raise ValueError("a distribution's reference needs values above zero, at least one")
        if not 0 < self.alpha <= self.warn_alpha < 1:
            raise ValueError(f"0 < alpha <= warn_alpha < 1 must hold: {self.alpha:g}, {self.warn_alpha:g}")


class LimitEstimator(ABC):
    """Learns the limits of one metric in one cohort.

    Args:
        false_alarms: chance that a healthy run fails.
    """

    def __init__(self, false_alarms: float = 0.005) -> None:
        self.false_alarms = false_alarms

    limits_: CriterionLimits
    better_: Better

    def fit(
        self,
        runs: Sequence[Run],
        better: Better,
        devices: Sequence[str] | None = None,
        sessions: Sequence[str] | None = None,
    ) -> Self:
        """Learn from runs that are healthy but for a minority.

        Args:
            runs: what was measured, one array a run, its repetitions in the order taken.
            better: which way the metric improves.
            devices: of which device each run is: repeats of one device show how well the metric repeats.
            sessions: of which session each run is (``sessions``): limits then hold for runs of sessions to come.

        Raises:
            NotAGateError: these runs cannot carry a limit; the message says why.
        """
        runs = [np.asarray(run, dtype=np.float64) for run in runs]
        if len(runs) < MIN_RUNS:
            raise NotAGateError(f"only {len(runs)} runs, {MIN_RUNS} are needed")
        learned = fingerprints(runs) if better is Better.EQUAL else self._learn(runs, better, devices, sessions)
        self.limits_, self.better_ = learned, better
        return self

    @abstractmethod
    def _learn(
        self, runs: Sequence[Run], better: Better, devices: Sequence[str] | None, sessions: Sequence[str] | None
    ) -> CriterionLimits:
        """The limits of a rate or a time, from enough runs."""


class RobustLimits(LimitEstimator):
    """One-sided prediction limits on the logarithm of each run's median.

    The next healthy run falls beyond the failure limit with probability ``false_alarms``, beyond the warning limit with
    ten times that. Center: median. Scale: MAD, corrected for small samples (Croux & Rousseeuw 1992). Quantile:
    Student's t with (n - 1) / 2 degrees of freedom, because the MAD is worth about half its sample; in simulation the
    realised rate is within twice the budget from n = 5 to 80. Logarithms, because times and rates are ratios: a limit
    can then never reach zero, where it could not fire. With sessions, the limits are those of ``sessions``: for a run
    of one that was not seen.
    """

    def _learn(
        self, runs: Sequence[Run], better: Better, devices: Sequence[str] | None, sessions: Sequence[str] | None
    ) -> CriterionLimits:
        """Whose runs they are makes no difference here, but for what is a session's drift."""
        medians = np.array([np.median(run) for run in runs])
        if not np.all(medians > 0):
            raise NotAGateError("some runs measured nothing above zero")
        logs, sign = np.log(medians), -1.0 if better is Better.HIGHER else 1.0
        names = devices or [""] * len(runs)
        known = None if sessions is None else _components(logs, sign, numbered(names), numbered(sessions))
        spread = known if known is not None and known.describe else exchangeable(logs)
        fail = self._slack(spread, self.false_alarms, FAIL_SLACK)
        if fail > COARSEST:
            raise NotAGateError(f"runs scatter by {spread.total:.0%}: a limit beyond ten times as slow proves nothing")
        warn = min(fail, self._slack(spread, min(0.1, WARN_FACTOR * self.false_alarms), WARN_SLACK))
        limit = math.exp(spread.center + sign * fail)
        return CriterionLimits(
            low=limit if better is Better.HIGHER else None,
            high=limit if better is Better.LOWER else None,
            warn=math.exp(spread.center + sign * warn),
            center=math.exp(spread.center),
            sessions=None if known is None else known.kept,
        )

    def _slack(self, spread: Components, probability: float, least: float) -> float:
        """Distance from center to limit, in logarithms."""
        limit = max(least, reach(spread.parts, probability))
        return limit if spread.total > MAX_SCATTER else min(MAX_SLACK, limit)


def reach(parts: Sequence[VarianceComponent], probability: float) -> float:
    """How far from the center the next one lies with ``probability`` at most: one t for each part (``sessions``)."""
    return math.sqrt(sum(student_t(1.0 - probability, part.freedom) ** 2 * part.variance for part in parts))


def exchangeable(values: NDArray[np.float64], independent: int | None = None) -> Components:
    """Where values lie that are all alike, and how far from there the next one is to be expected.

    Args:
        values: [values].
        independent: how many of them are independent of each other; None: all.
    """
    scatter, n = robust_scale(values), independent or len(values)
    part = VarianceComponent(scatter**2 * (1.0 + 1.0 / n), max(2, (n - 1) // 2))
    return Components(count=n, center=float(np.median(values)), within=scatter, between=None, parts=(part,))


def _components(logs: NDArray[np.float64], sign: float, devices: Groups, sessions: Groups) -> Components:
    """Of runs that are no outliers; a session that differs is none."""
    out = sign * (logs - np.median(logs)) > TIMES * robust_scale(logs)
    keep = ~out | drifted(out, sessions, devices)
    return components(logs[keep], sessions[keep])


def fingerprints(runs: Sequence[Run]) -> CriterionLimits:
    """The fingerprints that enough runs agree on.

    Raises:
        NotAGateError: there is none.
    """
    seen = Counter(float(run[0]) for run in runs if np.all(run == run[0]))
    allowed = tuple(sorted(value for value, count in seen.items() if count >= MIN_SHARE * len(runs)))
    if not allowed:
        raise NotAGateError(f"{len(seen)} different values in {len(runs)} runs: no value is repeated often enough")
    return CriterionLimits(low=allowed[0], high=allowed[-1], center=seen.most_common(1)[0][0], allowed=allowed)


def robust_scale(values: NDArray[np.float64]) -> float:
    """Standard deviation from the MAD, corrected for small samples."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) * _small_sample(len(values))


_MAD_FACTORS = {5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


def _small_sample(n: int) -> float:
    """The MAD of n normal values is too small by this factor (Croux & Rousseeuw 1992, section 3)."""
    return _MAD_FACTORS.get(n, n / (n - 0.8))


@cache
def student_t(probability: float, freedom: int) -> float:
    """Quantile of Student's t, by bisection of the closed form for whole degrees of freedom.

    Args:
        probability: 0.5 < probability < 1.
        freedom: degrees of freedom, at least 1; above 200 the normal quantile is returned (0.3 % off).
    """
    if freedom > 200:
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, freedom) < probability else (low, middle)
    return high


def _t_below(t: float, freedom: int) -> float:
    """P(T < t) for t >= 0 (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    if freedom == 1:
        total = 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    both = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + both / 2
