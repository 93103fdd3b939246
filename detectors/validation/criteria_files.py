"""Result files against each other: how well metrics repeat, what an update moved, and what slow devices share. Pure.

What ``mainstay criteria repeatability``, ``compare`` and ``check`` print, as data.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.validation.cohort_drift import CohortShift, judge_change
from mainstay.detectors.validation.criterion_learning import MetricSample, samples_of
from mainstay.detectors.validation.node_clusters import SlowGroup, group
from mainstay.detectors.validation.repeatability import NEEDED, repeatability
from mainstay.detectors.validation.verdict import SuiteVerdict
from mainstay.probes.benchmarks.result import Better, SuiteResult
from mainstay.probes.core_types import Verdict

Key = tuple[str, str, str]
"""Cohort, benchmark, metric."""


class MetricRepeats(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the repeatability report."""

    cohort: str
    benchmark: str
    metric: str
    runs: int
    devices: int
    """Devices that ran twice or more."""
    similarity: float | None
    """Mean over pairs of runs of the same device; None where nothing was repeated."""
    verdict: Verdict
    """PASS: may be a gate; FAIL: may not; UNKNOWN: nothing was repeated."""
    reason: str


class MetricShift(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the drift report."""

    cohort: str
    benchmark: str
    metric: str
    verdict: Verdict
    """FAIL: the cohort or some devices became slower; UNKNOWN: it cannot be told."""
    reason: str
    shift: CohortShift | None


def repeats(results: Iterable[SuiteResult]) -> list[MetricRepeats]:
    """How well each metric repeats on the same device.

    Raises:
        ValueError: a metric has a value that is not above zero.
    """
    return [_repeats(key, samples) for key, samples in sorted(_by_metric(results).items())]


def _repeats(key: Key, samples: Sequence[MetricSample]) -> MetricRepeats:
    cohort, benchmark, metric = key
    runs, devices = [np.array(sample.values) for sample in samples], [sample.device for sample in samples]
    similarity, repeated, verdict, reason = math.nan, 0, Verdict.UNKNOWN, "no device ran twice"
    if samples[0].better is Better.EQUAL:
        reason = "a fingerprint is right or wrong: nothing to repeat"
        verdict = Verdict.PASS
    elif min(run.min() for run in runs) <= 0:
        reason = "broken: a rate or a time that is not above zero"
    else:
        found = repeatability(runs, devices)
        if found.is_gate is not None and not found.from_halves:
            similarity, repeated = found.similarity, found.devices
            verdict = Verdict.PASS if found.is_gate else Verdict.FAIL
            reason = "a gate" if found.is_gate else f"not a gate: {NEEDED} is needed"
    return MetricRepeats(
        cohort=cohort,
        benchmark=benchmark,
        metric=metric,
        runs=len(runs),
        devices=repeated,
        similarity=None if math.isnan(similarity) else similarity,
        verdict=verdict,
        reason=reason,
    )


def shifts(before: Iterable[SuiteResult], after: Iterable[SuiteResult], *, false_alarms: float) -> list[MetricShift]:
    """What moved between two sets of results, metric by metric.

    Args:
        before: of a cohort before an update.
        after: of the same, or of other machines of the cohort, after it.
        false_alarms: chance to blame an update that did nothing, over all metrics together.
    """
    early, late = _by_metric(before), _by_metric(after)
    keys = sorted(key for key in early.keys() | late.keys() if not _is_fingerprint(early, late, key))
    return [_shift(key, early.get(key, ()), late.get(key, ()), false_alarms / len(keys)) for key in keys]


def _is_fingerprint(
    early: Mapping[Key, Sequence[MetricSample]], late: Mapping[Key, Sequence[MetricSample]], key: Key
) -> bool:
    return (early.get(key) or late[key])[0].better is Better.EQUAL


def _shift(key: Key, before: Sequence[MetricSample], after: Sequence[MetricSample], budget: float) -> MetricShift:
    better = (before or after)[0].better
    shift, verdict, reason = judge_change(_by_device(before), _by_device(after), better, false_alarms=budget)
    cohort, benchmark, metric = key
    return MetricShift(cohort=cohort, benchmark=benchmark, metric=metric, verdict=verdict, reason=reason, shift=shift)


def slow_groups(judged: Sequence[SuiteVerdict]) -> tuple[SlowGroup, ...]:
    """Devices that FAIL some metric, by what they share; of results of several machines."""
    nodes = {f"{one.host}/{v.device}": one.host for one in judged for v in one.verdicts if v.device}
    slow = {f"{one.host}/{v.device}" for one in judged for v in one.verdicts if v.device and v.verdict is Verdict.FAIL}
    return group(slow, nodes)


def _by_metric(results: Iterable[SuiteResult]) -> dict[Key, list[MetricSample]]:
    found: dict[Key, list[MetricSample]] = defaultdict(list)
    for result in results:
        for sample in samples_of(result.benchmarks, cohort=result.cohort, time=result.finished_at, machine=result.host):
            found[sample.cohort, sample.benchmark, sample.metric].append(sample)
    return dict(found)


def _by_device(samples: Iterable[MetricSample]) -> dict[str, Floats]:
    values: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        values[sample.device] += sample.values
    return {device: np.array(of) for device, of in values.items()}
