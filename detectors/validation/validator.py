"""The Validator: a criterion learned from the distributions that a cohort's devices measured.

After the SuperBench paper (ATC'24): the criterion is the medoid of all runs, found by iterative exclusion of those too
far from it; a run is judged by its one-sided similarity to it (``similarity``) and by its median, whichever is worse.
What that paper fixes, alpha = 0.95 for every metric, is learned here from the metric's own noise and a stated
false-alarm budget (``conformal``).

``Validator`` compares a device with its cohort: it needs no past, and cannot see less than devices differ by nature.
``OwnPast`` compares a device with its own earlier runs: it sees what the device's own noise allows, and only changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import Floats
from mainstay.detectors.statistics import conformal
from mainstay.detectors.statistics.conformal import ConformalScores, Thresholds, Views
from mainstay.detectors.statistics.similarity import Sample, medoid, shortfalls
from mainstay.detectors.validation.criterion_limits import (
    MIN_RUNS,
    CriterionLimits,
    Distribution,
    LimitEstimator,
    NotAGateError,
    RobustLimits,
    Run,
)
from mainstay.detectors.validation.repeatability import NEEDED, Repeatability, repeatability
from mainstay.detectors.validation.sessions import Groups, Mask, drifted, numbered
from mainstay.detectors.validation.verdict import Criterion
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict

_MOST_VALUES = 256
"""Values kept of a reference: more quantiles than any verdict can tell apart."""
_OTHER = {Better.LOWER: Better.HIGHER, Better.HIGHER: Better.LOWER}
Verdicts = list[Verdict]


@dataclass(frozen=True, slots=True)
class RunGrouping:
    """Of which device and which session each run is."""

    devices: Sequence[str] | None
    sessions: Sequence[str] | None
    groups: Groups | None
    """[runs] ``sessions``, numbered."""

    @classmethod
    def from_runs(cls, count: int, devices: Sequence[str] | None, sessions: Sequence[str] | None) -> RunGrouping:
        if any(len(names) != count for names in (devices, sessions) if names is not None):
            raise ValueError(f"{count} runs: name one device and one session a run, or none")
        return cls(devices, sessions, None if sessions is None else numbered(sessions))

    def repeats(self, runs: Sequence[Sample], keep: Mask) -> Repeatability:
        """How well runs repeat within a session where any device did so, else over sessions."""
        kept = [run for run, left in zip(runs, keep, strict=True) if left]
        names = None if self.devices is None else [name for name, left in zip(self.devices, keep, strict=True) if left]
        if names is not None and self.groups is not None:
            within = repeatability(kept, [f"{name}@{one}" for name, one in zip(names, self.groups[keep], strict=True)])
            if within.is_gate is not None and not within.from_halves:
                return within
        return repeatability(kept, names)

    def drifted(self, out: Mask) -> Mask:
        """Outliers that are a session's drift."""
        if self.groups is None:
            return np.zeros_like(out)
        return drifted(out, self.groups, numbered(self.devices or [""] * len(out)))


class Validator(LimitEstimator):
    """One metric's criterion in one cohort, from the runs of many devices (or many runs of one).

    ``limits_.distribution`` is None for fingerprints only.
    """

    def _learn(
        self, runs: Sequence[Run], better: Better, devices: Sequence[str] | None, sessions: Sequence[str] | None
    ) -> CriterionLimits:
        if any(not run.size or not np.isfinite(run).all() or run.min() <= 0 for run in runs):
            raise NotAGateError("some runs measured nothing above zero")
        whose = RunGrouping.from_runs(len(runs), devices, sessions)
        healthy, reference, views = _exclude(runs, better, whose)
        repeats = whose.repeats(runs, healthy)
        if repeats.similarity < NEEDED:
            raise NotAGateError(f"repeats agree to {repeats.similarity:.3f} only, {NEEDED:.2f} makes a gate")
        groups = None if whose.groups is None else whose.groups[healthy]
        thresholds = conformal.thresholds(views[healthy], repeats.one_sided, self.false_alarms, groups=groups)
        return _limits(reference, thresholds, better, repeats, excluded=int((~healthy).sum()))

    def predict(self, runs: Sequence[Run]) -> Verdicts:
        """PASS, WARN, FAIL or, where a run has no sound value, UNKNOWN; one a run."""
        return [judge_run(run, self.limits_, self.better_)[0] for run in runs]


class BestLimits(LimitEstimator):
    """The Validator where a metric repeats well enough for one, wide robust limits where it does not.

    What is not of gate quality cannot show a slowdown of some per cent; that a link runs at half its speed it can.
    """

    best_estimator_: LimitEstimator
    """The one whose limits these are."""

    def fit(
        self,
        runs: Sequence[Run],
        better: Better,
        devices: Sequence[str] | None = None,
        sessions: Sequence[str] | None = None,
    ) -> Self:
        self.best_estimator_ = Validator(self.false_alarms)  # also of what must be equal
        return super().fit(runs, better, devices, sessions)

    def _learn(
        self, runs: Sequence[Run], better: Better, devices: Sequence[str] | None, sessions: Sequence[str] | None
    ) -> CriterionLimits:
        try:
            self.best_estimator_.fit(runs, better, devices, sessions)
        except NotAGateError:
            self.best_estimator_ = RobustLimits(self.false_alarms).fit(runs, better, devices, sessions)
        return self.best_estimator_.limits_


class OwnPast:
    """How much a device may differ from its own past, learned from devices that were measured twice.

    The limit is common to the cohort; the reference is each device's own. A canary after a repair or an update, and
    the repeated sweep of an existing fleet, are judged so.

    Args:
        false_alarms: chance that a healthy device fails a comparison.
    """

    def __init__(self, false_alarms: float = 0.005) -> None:
        self.false_alarms = false_alarms

    better_: Better
    thresholds_: Thresholds

    @property
    def alpha_(self) -> float:
        """A device fails at this similarity to its past or less."""
        return 1.0 - self.thresholds_.whole.fail

    def fit(
        self, before: Sequence[Run], after: Sequence[Run], better: Better, nodes: Sequence[str] | None = None
    ) -> Self:
        """Learn from devices that did not change but for a minority.

        Args:
            before: [devices] earlier runs of each, as one array.
            after: [devices] later runs of the same.
            better: which way the metric improves.
            nodes: [devices] where each is, if those of one node ran together: then only nodes are independent.

        Raises:
            NotAGateError: no limit can be learned from them.
            ValueError: as many befores as afters are needed; a fingerprint has no distance.
        """
        if len(before) < MIN_RUNS:
            raise NotAGateError(f"only {len(before)} devices measured twice, {MIN_RUNS} are needed")
        views = _changes(before, after, better)
        unchanged = conformal.healthy(views, math.nan)
        changes = views.median.signed
        slower, faster = (int(np.count_nonzero(sign * changes > conformal.LEAST)) for sign in (1.0, -1.0))
        if slower - faster > conformal.MOST_EXCLUDED * len(unchanged):  # noise alone moves as many up as down
            raise NotAGateError(f"{slower} of {len(unchanged)} devices became slower: look at the update")
        apart = None if nodes is None else len({node for node, same in zip(nodes, unchanged, strict=True) if same})
        self.thresholds_ = conformal.thresholds(views[unchanged], math.nan, self.false_alarms, apart)
        self.better_ = better
        return self

    def predict(self, before: Sequence[Run], after: Sequence[Run]) -> Verdicts:
        """PASS, WARN or FAIL, one a device, by whichever of median and distribution is worse.

        Raises:
            ValueError: a sample is empty or not above zero.
        """
        views, limits = _changes(before, after, self.better_), self.thresholds_
        median, whole = views.median.worse, views.whole.worse
        fails = (median >= limits.median.fail) | (whole >= limits.whole.fail)
        warns = (median >= limits.median.warn) | (whole >= limits.whole.warn)
        return [
            Verdict.FAIL if fail else Verdict.WARN if warn else Verdict.PASS
            for fail, warn in zip(fails, warns, strict=True)
        ]


def judge_run(values: Run, limits: CriterionLimits | Criterion, better: Better) -> tuple[Verdict, float]:
    """A run against a criterion that was kept: the verdict and the similarity; UNKNOWN and NaN without sound values.

    The worse verdict of two: that of the distribution and that of the median.
    """
    similarity = _similarity(values, limits, better)
    if math.isnan(similarity):
        return Verdict.UNKNOWN, similarity
    kept = limits.distribution
    if kept is None:
        return (Verdict.PASS if similarity == 1.0 else Verdict.FAIL), similarity
    sign, limit = (1.0, limits.low) if better is Better.HIGHER else (-1.0, limits.high)
    median = sign * float(np.median(values))
    if similarity <= kept.alpha or (limit is not None and median < sign * limit):
        return Verdict.FAIL, similarity
    if similarity <= kept.warn_alpha or (limits.warn is not None and median < sign * limits.warn):
        return Verdict.WARN, similarity
    return Verdict.PASS, similarity


def _similarity(values: Run, limits: CriterionLimits | Criterion, better: Better) -> float:
    run = np.asarray(values, dtype=np.float64)
    if limits.distribution is None:
        return float(_right(run, limits)) if run.size else math.nan
    if not run.size or not np.isfinite(run).all() or run.min() <= 0:
        return math.nan
    return 1.0 - float(shortfalls([run], np.array(limits.distribution.reference), better)[0])


def _right(run: Run, limits: CriterionLimits | Criterion) -> bool:
    return bool(np.isin(run, limits.allowed).all())


def _exclude(runs: Sequence[Run], better: Better, whose: RunGrouping) -> tuple[NDArray[np.bool_], Floats, Views]:
    """Medoid of those left, drop those too far from it, again until nothing drops.

    Returns:
        Which are left, the medoid's values and everybody's distances from it.

    Raises:
        NotAGateError: so many are slow that the healthy ones are unknown.
    """
    keep = np.ones(len(runs), dtype=np.bool_)
    repeats = whose.repeats(runs, keep)
    while True:
        left = np.flatnonzero(keep)
        reference = _thinned(runs[int(left[medoid([runs[int(i)] for i in left])])])
        views = _views(runs, reference, better)
        still = keep.copy()
        still[left] = conformal.healthy(views[keep], repeats.one_sided)
        still |= keep & whose.drifted(~still)
        if still.mean() < 1.0 - conformal.MOST_EXCLUDED:
            raise NotAGateError(f"{(~still).sum()} of {len(runs)} runs are slow against the rest: two cohorts in one?")
        if np.array_equal(still, keep):
            return keep, reference, views
        keep = still


def _views(runs: Sequence[Run], reference: Floats, better: Better) -> Views:
    worse = shortfalls(runs, reference, better)
    center, medians = float(np.median(reference)), np.array([np.median(run) for run in runs])
    apart = (medians - center) / np.maximum(medians, center) * (1.0 if better is Better.LOWER else -1.0)
    return Views(
        median=ConformalScores(worse=np.maximum(apart, 0.0), signed=apart),
        whole=ConformalScores(worse=worse, signed=worse - shortfalls(runs, reference, _OTHER[better])),
    )


def _changes(before: Sequence[Run], after: Sequence[Run], better: Better) -> Views:
    if len(before) != len(after):
        raise ValueError(f"{len(before)} devices before but {len(after)} after")
    each = [
        _views([np.asarray(late, np.float64)], np.asarray(early, np.float64), better)
        for early, late in zip(before, after, strict=True)
    ]
    return Views(median=_joined([one.median for one in each]), whole=_joined([one.whole for one in each]))


def _joined(scores: Sequence[ConformalScores]) -> ConformalScores:
    return ConformalScores(
        worse=np.array([one.worse[0] for one in scores]), signed=np.array([one.signed[0] for one in scores])
    )


def _thinned(run: Run) -> Floats:
    ordered = np.sort(run)
    if len(ordered) <= _MOST_VALUES:
        return ordered
    return np.asarray(np.quantile(ordered, (np.arange(_MOST_VALUES) + 0.5) / _MOST_VALUES))


def _limits(
    reference: Floats, thresholds: Thresholds, better: Better, repeats: Repeatability, *, excluded: int
) -> CriterionLimits:
    center, median, whole = float(np.median(reference)), thresholds.median, thresholds.whole
    higher = better is Better.HIGHER
    limit, warn = (center * (1.0 - t) if higher else center / (1.0 - t) for t in (median.fail, median.warn))
    return CriterionLimits(
        low=limit if higher else None,
        high=None if higher else limit,
        warn=warn,
        center=center,
        sessions=thresholds.sessions,
        distribution=Distribution(
            reference=tuple(map(float, reference)),
            alpha=1.0 - whole.fail,
            warn_alpha=1.0 - whole.warn,
            repeatability=None if math.isnan(repeats.similarity) else repeats.similarity,
            detectable=thresholds.detectable,
            excluded=excluded,
        ),
    )
