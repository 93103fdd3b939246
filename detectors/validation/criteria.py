"""Criteria: what a healthy machine measures (``learning`` makes them), and the verdict of a run against them.

Invariant: unknown is never healthy. Only a finite value can PASS, one that a criterion of the same benchmark, metric
and cohort covers; all that is missing, broken, hung, unsupported or without a criterion is UNKNOWN with its reason. And
a worse value never gives its device a better verdict (``whole_node``: what its siblings measured may).

Pure: results and criteria in, verdicts out. The clock is the data's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from mainstay.detectors.validation.defect_attribution import attribute_defects, describe_defects
from mainstay.detectors.validation.validator import judge_run
from mainstay.detectors.validation.verdict import (
    Criteria,
    Criterion,
    MetricVerdict,
    RefusedMetric,
    RunVerdict,
    SuiteVerdict,
)
from mainstay.detectors.validation.whole_node import relax_whole_node
from mainstay.probes.benchmarks.result import (
    BenchmarkResult,
    BenchmarkState,
    Better,
    MetricValues,
    SuiteResult,
    contention_note,
    format_value,
)
from mainstay.probes.core_types import Verdict

BADNESS = {Verdict.PASS: 0, Verdict.WARN: 1, Verdict.UNKNOWN: 2, Verdict.FAIL: 3}
"""A known fault is worse than ignorance; ignorance is worse than a known blemish."""

WHOLE = "*"
"""In place of a metric's name: the benchmark as a whole."""

HOW_TO_LEARN = (
    "No criteria, so nothing can pass. Learn some from machines you trust: run `mainstay validate --output run-N.json` "
    "five times or more, then `mainstay criteria fit run-*.json --output criteria.json`, "
    "then `mainstay validate --criteria criteria.json`."
)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of several verdicts; nothing at all is UNKNOWN."""
    return max(verdicts, key=BADNESS.__getitem__, default=Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one cohort, by benchmark and metric."""

    cohort: str
    criteria: dict[tuple[str, str], Criterion]
    refused: dict[tuple[str, str], str]

    def why_not(self, benchmark: str, metric: str) -> str:
        """Why there is no criterion."""
        refused = self.refused.get((benchmark, metric))
        return f"no criterion: {refused}" if refused else f"no criterion for cohort {self.cohort}"


def judge(
    results: Iterable[BenchmarkResult],
    criteria: Iterable[Criterion],
    *,
    cohort: str,
    expected: Collection[str] = (),
    refused: Iterable[RefusedMetric] = (),
) -> RunVerdict:
    """The verdict on every metric of a run, and on the run.

    Args:
        results: what was measured.
        criteria: of any cohort; only those of ``cohort`` are used.
        cohort: the machine's.
        expected: names of benchmarks that must be among the results (the suite's).
        refused: what was refused when the criteria were learned; only makes reasons clearer.
    """
    results = tuple(results)
    known = _Known(
        cohort=cohort,
        criteria={(c.benchmark, c.metric): c for c in criteria if c.cohort == cohort},
        refused={(r.benchmark, r.metric): r.reason for r in refused if r.cohort == cohort},
    )
    verdicts = relax_whole_node([verdict for result in results for verdict in _judge_result(result, known)])
    absent = sorted(set(expected) - {result.benchmark for result in results})
    verdicts += [_unknown(name, "", WHOLE, "the benchmark is missing from the result") for name in absent]
    overall = worst(verdict.verdict for verdict in verdicts)
    points_to = attribute_defects(verdicts, results)
    reason = "; ".join(filter(None, (_headline(overall, verdicts), describe_defects(points_to))))
    return RunVerdict(verdict=overall, reason=reason, verdicts=tuple(verdicts), points_to=points_to)


def judge_suite(result: SuiteResult, criteria: Criteria) -> SuiteVerdict:
    """``judge`` for a whole suite; one that ended early is at best UNKNOWN."""
    judged = judge(
        result.benchmarks,
        criteria.criteria,
        cohort=result.cohort if criteria.judge_as is None else criteria.judge_as,
        refused=criteria.refused,
    )
    verdict, reason = judged.verdict, judged.reason
    if result.error is not None:
        verdict, reason = worst((verdict, Verdict.UNKNOWN)), f"{result.error} ({reason})"
    return SuiteVerdict(
        **msgspec.structs.asdict(result), **msgspec.structs.asdict(judged) | {"verdict": verdict, "reason": reason}
    )


def _judge_result(result: BenchmarkResult, known: _Known) -> Iterator[MetricVerdict]:
    present = {metric.name for metric in result.metrics}
    for metric in result.metrics:
        yield _judge_metric(result, metric, known)
    for (benchmark, name), criterion in sorted(known.criteria.items()):
        if benchmark == result.benchmark and name not in present:
            reason = "a criterion is known but the metric is missing from the result"
            yield _unknown(benchmark, result.device, name, reason, unit=criterion.unit, criterion=criterion)
    if not result.metrics:
        yield _unknown(result.benchmark, result.device, WHOLE, _why_nothing(result))


def _judge_metric(result: BenchmarkResult, metric: MetricValues, known: _Known) -> MetricVerdict:
    criterion = known.criteria.get((result.benchmark, metric.name))
    value = _typical(metric)
    if result.state is not BenchmarkState.OK or value is None:
        verdict, reason = Verdict.UNKNOWN, _why_no_value(result, metric)
    elif (broken := _broken(metric)) is not None:
        verdict, reason = broken
    elif criterion is None:
        verdict, reason = Verdict.UNKNOWN, known.why_not(result.benchmark, metric.name)
    elif (mismatch := _mismatch(metric, criterion)) is not None:
        verdict, reason = Verdict.UNKNOWN, mismatch
    else:
        verdict, reason = _compare(value, metric.values, criterion, metric.unit)
        if verdict in (Verdict.FAIL, Verdict.WARN) and (words := contention_note(result)) is not None:
            reason = f"{reason}; {words} meanwhile"
        if verdict in (Verdict.FAIL, Verdict.WARN) and criterion.sessions is not None:
            reason = f"{reason} ({criterion.sessions.description})"
    return MetricVerdict(
        benchmark=result.benchmark,
        device=result.device,
        metric=metric.name,
        unit=metric.unit,
        value=value if result.state is BenchmarkState.OK else None,
        verdict=verdict,
        criterion=criterion,
        reason=reason,
    )


def _unknown(
    benchmark: str, device: str, metric: str, reason: str, *, unit: str = "", criterion: Criterion | None = None
) -> MetricVerdict:
    return MetricVerdict(
        benchmark=benchmark,
        device=device,
        metric=metric,
        unit=unit,
        value=None,
        verdict=Verdict.UNKNOWN,
        criterion=criterion,
        reason=reason,
    )


def _typical(metric: MetricValues) -> float | None:
    """The median of the repetitions; None if there are none or one of them is not a number."""
    if not metric.values or not all(math.isfinite(value) for value in metric.values):
        return None
    return float(np.median(metric.values))


def _why_no_value(result: BenchmarkResult, metric: MetricValues) -> str:
    if result.state is BenchmarkState.OK and metric.values:
        return "the measurement is broken: it has values that are not finite"
    return _why_nothing(result)


def _why_nothing(result: BenchmarkResult) -> str:
    said = result.error or "no reason given"
    return f"not measured: {said}" if result.state is BenchmarkState.OK else f"{result.state}: {said}"


def _broken(metric: MetricValues) -> tuple[Verdict, str] | None:
    """A measurement that no criterion is needed to distrust."""
    if metric.better is Better.EQUAL:
        different = len(set(metric.values))
        words = f"the same computation gave {different} different answers in {len(metric.values)} repetitions"
        return (Verdict.FAIL, words) if different > 1 else None
    if min(metric.values) <= 0:
        return Verdict.UNKNOWN, "the measurement is broken: a rate or a time that is not above zero"
    return None


def _mismatch(metric: MetricValues, criterion: Criterion) -> str | None:
    """Why a criterion of the right name cannot be used, if so."""
    if criterion.better is not metric.better:
        return f"the criterion says that {criterion.better} is better, the benchmark {metric.better}"
    if criterion.unit and criterion.unit != metric.unit:
        return f"the criterion is in {criterion.unit}, the benchmark in {metric.unit}"
    return None


def _compare(value: float, values: Sequence[float], criterion: Criterion, unit: str) -> tuple[Verdict, str]:
    """A sound measurement against a criterion of its own kind."""
    if criterion.better is Better.EQUAL:
        return _compare_answer(value, criterion, unit)
    gap = "" if not criterion.center else f"{value / criterion.center - 1:+.1%} against typical, "
    higher = criterion.better is Better.HIGHER
    limit = criterion.low if higher else criterion.high
    if limit is None:
        return Verdict.UNKNOWN, f"the criterion has no {'low' if higher else 'high'} limit"
    sign = 1 if higher else -1
    verdict, words = Verdict.PASS, f"{gap}the limit is {format_value(limit, unit)}"
    if sign * value < sign * limit:
        verdict, words = Verdict.FAIL, f"{gap}beyond the limit of {format_value(limit, unit)}"
    elif criterion.warn is not None and sign * value < sign * criterion.warn:
        verdict = Verdict.WARN
    return _compare_whole(values, criterion, verdict, words) if criterion.distribution else (verdict, words)


def _compare_whole(values: Sequence[float], criterion: Criterion, verdict: Verdict, words: str) -> tuple[Verdict, str]:
    """All repetitions against the criterion's distribution; ``verdict`` and ``words`` are the median's."""
    kept = criterion.distribution
    both, similarity = judge_run(np.array(values), criterion, criterion.better)
    if kept is None or both is verdict:
        return verdict, words
    return both, f"{words}; but some repetitions are slow: similarity {similarity:.3f}, the limit is {kept.alpha:.3f}"


def _compare_answer(value: float, criterion: Criterion, unit: str) -> tuple[Verdict, str]:
    allowed = criterion.allowed or tuple(v for v in (criterion.low, criterion.high) if v is not None)
    if not allowed:
        return Verdict.UNKNOWN, "the criterion allows no value"
    if value in allowed:
        return Verdict.PASS, "the right answer"
    return Verdict.FAIL, f"a wrong answer: {format_value(value, unit)} instead of {_listed(allowed, unit)}"


def _listed(values: Sequence[float], unit: str) -> str:
    return " or ".join(format_value(value, unit) for value in values[:3])


def _headline(overall: Verdict, verdicts: Sequence[MetricVerdict]) -> str:
    """One sentence: how many, and the first that decided it."""
    if not verdicts:
        return "nothing was measured"
    deciding = [verdict for verdict in verdicts if verdict.verdict is overall]
    if overall is Verdict.PASS:
        return f"all {len(verdicts)} metrics are within their criteria"
    first = deciding[0]
    words = {Verdict.FAIL: "failed", Verdict.WARN: "are near their limit", Verdict.UNKNOWN: "are unknown"}[overall]
    counted = f"{len(deciding)} of {len(verdicts)} metrics {words}"
    if len(deciding) > 1 and len({verdict.reason for verdict in deciding}) == 1:
        return f"{counted}: {first.reason}"
    where = f"{first.benchmark} {first.metric}".replace(f" {WHOLE}", "")
    device = f" on {first.device}" if first.device else ""
    more = f" (and {len(deciding) - 1} more)" if len(deciding) > 1 else ""
    return f"{counted}: {where}{device}: {first.reason}{more}"
