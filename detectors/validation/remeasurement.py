"""Measure again what failed: a disturbance passes, a defect stays.

On a machine that does other work a slow result is as likely that work as a fault. What failed by a rate or a time is
measured again; it fails if it fails every time. Invariant: only a measurement that passes replaces one that failed;
wrong bits and what could not be measured are never asked twice. The price: a slowness that comes and goes may be away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mainstay.detectors.validation.criteria import judge_suite, worst
from mainstay.detectors.validation.verdict import Criteria, MetricVerdict
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, SuiteResult
from mainstay.probes.core_types import Verdict

REMARK = "failed at first, passed when measured again"
_HEALTHY = (Verdict.PASS, Verdict.WARN)

Again = Callable[[Sequence[str]], SuiteResult]
"""Runs the named benchmarks of the suite once more."""


def needs_remeasurement(verdicts: Sequence[MetricVerdict]) -> tuple[str, ...]:
    """Benchmarks that failed by rates or times only, in their order."""
    failed = [verdict for verdict in verdicts if verdict.verdict is Verdict.FAIL]
    exact = {verdict.benchmark for verdict in failed if _is_fingerprint(verdict)}
    return tuple(dict.fromkeys(verdict.benchmark for verdict in failed if verdict.benchmark not in exact))


def confirm_failures(result: SuiteResult, criteria: Criteria, again: Again, times: int) -> SuiteResult:
    """The result with every failure confirmed up to ``times`` times; it ends when the last of them was measured."""
    for _ in range(times):
        names = needs_remeasurement(judge_suite(result, criteria).verdicts)
        if not names:
            break
        more = again(names)
        measured = {(one.benchmark, one.device) for one in more.benchmarks if one.state is BenchmarkState.OK}
        passed = {
            (one.benchmark, one.device): msgspec.structs.replace(
                one, error="; ".join(filter(None, (REMARK, one.error)))
            )
            for one in more.benchmarks
            if one.benchmark in names and _verdict(one, more, criteria) in _HEALTHY
        }
        kept = tuple(
            _asked(one, result, criteria, passed) if (one.benchmark, one.device) in measured else one
            for one in result.benchmarks
        )
        result = msgspec.structs.replace(result, benchmarks=kept, finished_at=more.finished_at)
    return result


def _asked(
    one: BenchmarkResult, result: SuiteResult, criteria: Criteria, passed: dict[tuple[str, str], BenchmarkResult]
) -> BenchmarkResult:
    """What failed, or what passed in its place; on another device of the machine it may have passed at once."""
    if _verdict(one, result, criteria) is not Verdict.FAIL:
        return one
    return msgspec.structs.replace(passed.get((one.benchmark, one.device), one), remeasured=one.remeasured + 1)


def _verdict(one: BenchmarkResult, result: SuiteResult, criteria: Criteria) -> Verdict:
    """Of one benchmark on one device, by the metrics that have a criterion or could not be measured."""
    judged = judge_suite(msgspec.structs.replace(result, benchmarks=(one,), error=None), criteria)
    return worst(v.verdict for v in judged.verdicts if v.criterion is not None or v.value is None)


def _is_fingerprint(verdict: MetricVerdict) -> bool:
    return verdict.criterion.better is Better.EQUAL if verdict.criterion is not None else not verdict.unit
