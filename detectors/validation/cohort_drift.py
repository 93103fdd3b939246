"""What an update did to a cohort: a shift of all devices is the update's, a shift of some is theirs.

After a new driver or firmware every criterion learned before it may be wrong at once. The same devices measured before
and after tell the two apart: the median of their changes is the cohort's, its confidence interval is that of the sign
test (order statistics, no shape assumed), and a device is blamed only for what lies beyond it. Alibaba's Aegis acts the
same way: mass failure in a check before delivery rolls back the last update instead of draining nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.statistics.conformal import LEAST
from mainstay.detectors.validation.criterion_limits import MIN_RUNS, TIMES, Run, robust_scale, student_t
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict

LEAST_SHIFT = 0.01
"""A shift of the whole cohort that matters: half of what may fail one device, since it hits all of them at once."""


MOST_HIDDEN = 0.05
"""A slowdown that a comparison must be able to rule out before it says that nothing moved."""


class TooFewDevicesError(ValueError):
    """Nothing can be said of a cohort of so few devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortShift:
    """How a metric of a cohort moved; shares, positive = worse."""

    shift: float
    low: float
    high: float
    """Confidence interval of ``shift``."""
    paired: bool
    """The same devices were measured before and after; otherwise two populations are compared."""
    devices: int
    """Pairs, or the fewer of both populations."""
    worse: bool
    """The cohort became slower by more than ``LEAST_SHIFT`` for sure."""
    better: bool
    """... or faster."""
    explained: tuple[str, ...] = ()
    """Devices that are slower than before by as much as would fail them, and no slower than the cohort's shift says."""
    slower: tuple[str, ...] = ()
    """Devices that are slower than the shift explains: a fault of their own, after any update."""

    @property
    def moved(self) -> bool:
        return self.worse or self.better

    @property
    def sure(self) -> bool:
        """Something was seen, or a slowdown of 5 % is ruled out; otherwise it is unknown."""
        return self.moved or bool(self.slower) or self.high <= MOST_HIDDEN

    @property
    def description(self) -> str:
        """One sentence."""
        of = f"{self.devices} devices" if self.paired else f"two populations of {self.devices} devices or more"
        range_ = f"{self.low:+.1%} to {self.high:+.1%}"
        if self.worse:
            said = f"{of} became slower by {self.shift:.1%} ({range_}): blame the update, not the nodes"
        elif self.better:
            said = f"{of} became faster by {-self.shift:.1%} ({range_}): learn the criteria again"
        elif self.high <= MOST_HIDDEN:
            said = f"{of} did not move as a whole ({self.shift:+.1%}, {range_})"
        else:
            said = f"too few or too noisy to tell: {of} moved by {self.shift:+.1%} ({range_})"
        return said + (f"; slower by themselves: {', '.join(self.slower)}" if self.slower else "")


def judge_change(
    before: Mapping[str, Run], after: Mapping[str, Run], better: Better, *, false_alarms: float
) -> tuple[CohortShift | None, Verdict, str]:
    """What :func:`compare` finds, whether it is a slowdown, and why; UNKNOWN where that cannot be told.

    Args:
        before: device → all that was measured of it before the update; empty: nothing was.
        after: the same after it.
        better: which way the metric improves.
        false_alarms: chance to blame an update, or an unchanged device, that did nothing.
    """
    if not before or not after:
        return None, Verdict.UNKNOWN, f"not measured {'after' if before else 'before'}"
    try:
        shift = compare(before, after, better, false_alarms=false_alarms)
    except TooFewDevicesError as error:
        return None, Verdict.UNKNOWN, str(error)
    except ValueError as error:
        return None, Verdict.UNKNOWN, f"broken: {error}"
    if shift.worse or shift.slower:
        return shift, Verdict.FAIL, shift.description
    return shift, Verdict.PASS if shift.sure else Verdict.UNKNOWN, shift.description


def compare(
    before: Mapping[str, Run], after: Mapping[str, Run], better: Better, *, false_alarms: float = 0.005
) -> CohortShift:
    """Whether an update moved a cohort.

    Devices in both are compared with themselves; if fewer than five are, the two populations are.

    Args:
        before: device → all that was measured of it before the update, one array.
        after: the same after it.
        better: which way the metric improves.
        false_alarms: chance to blame an update, or an unchanged device, that did nothing.

    Raises:
        TooFewDevicesError: fewer than five devices on one side.
        ValueError: a sample is empty or not above zero, or ``better`` is ``equal``.
    """
    if better is Better.EQUAL:
        raise ValueError("a fingerprint does not drift: it is right or wrong")
    both = sorted(before.keys() & after.keys())
    if len(both) < MIN_RUNS:
        return _populations(before, after, better, false_alarms)
    changes = _logs(after, both, better) - _logs(before, both, better)
    center, (low, high) = float(np.median(changes)), _interval(changes, false_alarms)
    own = changes - center
    beyond = student_t(1.0 - false_alarms / len(both), max(2, (len(both) - 1) // 2))
    limit = max(math.log1p(LEAST), min(beyond, 2 * TIMES) * robust_scale(own))
    slower = tuple(name for name, value in zip(both, own, strict=True) if value > limit)
    failing = (name for name, value in zip(both, changes, strict=True) if value > math.log1p(LEAST))
    return _shift(
        center,
        low,
        high,
        paired=True,
        devices=len(both),
        slower=slower,
        explained=tuple(name for name in failing if name not in slower),
    )


def _populations(
    before: Mapping[str, Run], after: Mapping[str, Run], better: Better, false_alarms: float
) -> CohortShift:
    fewest = min(len(before), len(after))
    if fewest < MIN_RUNS:
        raise TooFewDevicesError(
            f"{len(before)} devices before and {len(after)} after: {MIN_RUNS} of each, or in both, are needed"
        )
    early, late = _logs(before, sorted(before), better), _logs(after, sorted(after), better)
    (early_low, early_high), (late_low, late_high) = (_interval(logs, false_alarms / 2) for logs in (early, late))
    shift = float(np.median(late) - np.median(early))
    return _shift(shift, late_low - early_high, late_high - early_low, paired=False, devices=fewest)


def _shift(
    center: float,
    low: float,
    high: float,
    *,
    paired: bool,
    devices: int,
    slower: tuple[str, ...] = (),
    explained: tuple[str, ...] = (),
) -> CohortShift:
    edge = math.log1p(LEAST_SHIFT)
    worse = low > edge
    return CohortShift(
        shift=math.expm1(center),
        low=math.expm1(low),
        high=math.expm1(high),
        paired=paired,
        devices=devices,
        worse=worse,
        better=high < -edge,
        slower=slower,
        explained=explained if worse else (),
    )


def _logs(of: Mapping[str, Run], names: list[str], better: Better) -> Floats:
    """Logarithm of each device's median, positive = worse."""
    medians = np.array([float(np.median(of[name])) if len(of[name]) else math.nan for name in names])
    if not np.isfinite(medians).all() or not (medians > 0).all():
        raise ValueError("a device's sample needs values above zero, at least one")
    return np.asarray(np.log(medians) * (1.0 if better is Better.LOWER else -1.0))


def _interval(values: Floats, false_alarms: float) -> tuple[float, float]:
    """Of the median, by the sign test: between order statistics; infinite where values are too few for that."""
    n = len(values)
    ordered = np.concatenate(([-math.inf], np.sort(values), [math.inf]))
    k = _lower_rank(n, false_alarms / 2)
    return float(ordered[k]), float(ordered[n + 1 - k])


def _lower_rank(n: int, tail: float) -> int:
    """Largest k with ``P(Binomial(n, 1/2) < k) <= tail``; 0 if there is none."""
    if n > 1000:  # the normal approximation is good to one rank
        return max(0, int(n / 2 + NormalDist().inv_cdf(tail) * math.sqrt(n) / 2))
    total, k = 0, 0
    while k <= n:
        total += math.comb(n, k)
        if total / 2**n > tail:
            return k
        k += 1
    return 0
