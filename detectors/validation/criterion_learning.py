"""Criteria from runs: one per benchmark, metric and cohort, with the false-alarm budget shared among them.

Pure: samples in, criteria out. The clock is the data's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from mainstay.detectors.validation.criterion_limits import LimitEstimator, NotAGateError, RobustLimits
from mainstay.detectors.validation.sessions import common
from mainstay.detectors.validation.verdict import VERSION, Criteria, Criterion, RefusedMetric
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better

FALSE_ALARMS = 0.005
"""Chance that a healthy machine fails a run, over all of its metrics together: one false alarm in 200 nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """What one run measured of one metric on one device; a criterion is learned from several."""

    benchmark: str
    metric: str
    unit: str
    better: Better
    cohort: str
    values: tuple[float, ...]
    time: float | None = None
    """Unix seconds, when the run ended."""
    device: str = ""
    """Whose: ``machine/device``; empty if unknown."""
    session: str = ""
    """Runs of one session share conditions (``sessions``); empty if unknown."""


def samples_of(
    results: Iterable[BenchmarkResult],
    *,
    cohort: str,
    time: float | None = None,
    machine: str = "",
    session: str = "",
) -> Iterator[MetricSample]:
    """The samples in one run's results; metrics that were not measured give none.

    Args:
        results: of one run on one machine.
        cohort: the machine's.
        time: Unix seconds, when the run ended.
        machine: its name, if known: repeats on one device tell how well a metric repeats.
        session: of the run, if known: limits then hold for sessions to come.
    """
    for result in results:
        for metric in result.metrics:
            values = tuple(value for value in metric.values if math.isfinite(value))
            if result.state is BenchmarkState.OK and values:
                yield MetricSample(
                    benchmark=result.benchmark,
                    metric=metric.name,
                    unit=metric.unit,
                    better=metric.better,
                    cohort=cohort,
                    values=values,
                    time=time,
                    device=f"{machine}/{result.device}" if machine else "",
                    session=session,
                )


def learn_criteria(
    samples: Iterable[MetricSample],
    *,
    false_alarms: float = FALSE_ALARMS,
    estimator: Callable[[float], LimitEstimator] = RobustLimits,
) -> Criteria:
    """One criterion per benchmark, metric and cohort, or the reason why there is none.

    Args:
        samples: of any number of runs; cohorts are kept apart. Sessions count where that of every run is known.
        false_alarms: chance that a healthy machine fails a run, shared equally among the verdicts that a run of its
            cohort consists of: each metric on each device.
        estimator: makes an estimator for a metric's share of that budget.

    Raises:
        ValueError: samples of one metric disagree about its unit or direction.
    """
    groups: dict[tuple[str, str, str], list[MetricSample]] = {}
    for sample in samples:
        groups.setdefault((sample.benchmark, sample.metric, sample.cohort), []).append(sample)
    criteria: list[Criterion] = []
    refused: list[RefusedMetric] = []
    verdicts: dict[str, int] = defaultdict(int)
    for (_, _, cohort), group in groups.items():
        verdicts[cohort] += _devices(group)
    for key, group in sorted(groups.items()):
        share = false_alarms / verdicts[key[2]]
        try:
            criteria.append(_criterion(group, estimator(share)))
        except NotAGateError as error:
            refused.append(RefusedMetric(benchmark=key[0], metric=key[1], cohort=key[2], reason=str(error)))
    return Criteria(criteria=tuple(criteria), refused=tuple(refused), false_alarms=false_alarms, version=VERSION)


def _devices(group: Sequence[MetricSample]) -> int:
    """Most devices of one machine on which a metric was measured; 1 where machines are not known."""
    machines: dict[str, set[str]] = defaultdict(set)
    for sample in group:
        machine, _, device = sample.device.rpartition("/")
        machines[machine].add(device)
    return max(len(devices) for devices in machines.values())


def _criterion(group: Sequence[MetricSample], estimator: LimitEstimator) -> Criterion:
    first = group[0]
    if any((sample.unit, sample.better) != (first.unit, first.better) for sample in group):
        raise ValueError(f"{first.benchmark}/{first.metric}: runs disagree about its unit or direction")
    devices = [sample.device for sample in group]
    runs = [np.array(sample.values) for sample in group]
    sessions = common([sample.session for sample in group])
    limits = estimator.fit(runs, first.better, devices if all(devices) else None, sessions).limits_
    best = getattr(estimator, "best_estimator_", estimator)
    return Criterion(
        benchmark=first.benchmark,
        metric=first.metric,
        cohort=first.cohort,
        better=first.better,
        unit=first.unit,
        n=len(group),
        source=f"learned:{type(best).__name__}",
        learned_at=max((sample.time for sample in group if sample.time is not None), default=None),
        **{field.name: getattr(limits, field.name) for field in fields(limits)},
    )
