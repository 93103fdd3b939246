"""Verdicts: unknown never passes, worse is never better, and what was learned passes its own typical run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstay.detectors.validation.criteria import BADNESS, judge, judge_suite, worst
from mainstay.detectors.validation.criterion_learning import MetricSample, learn_criteria, samples_of
from mainstay.detectors.validation.criterion_limits import Distribution
from mainstay.detectors.validation.validator import Validator
from mainstay.detectors.validation.verdict import Criteria, Criterion, RefusedMetric, SuiteVerdict
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues, SuiteResult
from mainstay.probes.core_types import Verdict

COHORT = "8x-test"
UNITS = {Better.HIGHER: "B/s", Better.LOWER: "s", Better.EQUAL: ""}
positive = st.floats(min_value=1e-12, max_value=1e18)
directions = st.sampled_from([Better.HIGHER, Better.LOWER])


def metric(*values: float, better: Better = Better.HIGHER, name: str = "m") -> MetricValues:
    return MetricValues(name=name, unit=UNITS[better], better=better, values=values)


def result(
    *metrics: MetricValues, state: BenchmarkState = BenchmarkState.OK, error: str | None = None
) -> BenchmarkResult:
    return BenchmarkResult(benchmark="b", state=state, error=error, seconds=1.0, device="cpu", metrics=metrics)


def criterion(better: Better = Better.HIGHER, **over: Any) -> Criterion:
    limits = (
        {"low": 80.0, "high": None, "warn": 90.0}
        if better is Better.HIGHER
        else {"low": None, "high": 120.0, "warn": 110.0}
    )
    given = {"benchmark": "b", "metric": "m", "cohort": COHORT, "better": better, "n": 9, "source": "test", **limits}
    return Criterion(**(given | over))


def verdict(*values: float, known: Criterion | None = None, better: Better = Better.HIGHER) -> Verdict:
    return judge([result(metric(*values, better=better))], [known] if known else [], cohort=COHORT).verdict


def sample(*values: float, better: Better = Better.HIGHER, cohort: str = COHORT) -> MetricSample:
    return MetricSample(benchmark="b", metric="m", unit=UNITS[better], better=better, cohort=cohort, values=values)


def suite(*results: BenchmarkResult, error: str | None = None) -> SuiteResult:
    return SuiteResult(
        suite="quick",
        started_at=1.0,
        finished_at=2.0,
        host="h",
        device="d",
        cohort=COHORT,
        software="s",
        benchmarks=results,
        error=error,
    )


@pytest.mark.parametrize(
    ("better", "value", "expected"),
    [
        (Better.HIGHER, 100.0, Verdict.PASS),
        (Better.HIGHER, 89.0, Verdict.WARN),
        (Better.HIGHER, 79.0, Verdict.FAIL),
        (Better.LOWER, 100.0, Verdict.PASS),
        (Better.LOWER, 111.0, Verdict.WARN),
        (Better.LOWER, 121.0, Verdict.FAIL),
    ],
)
def test_a_value_against_its_limits(better: Better, value: float, expected: Verdict) -> None:
    assert verdict(value, known=criterion(better), better=better) is expected


@given(st.lists(positive, min_size=1, max_size=5), directions)
def test_without_a_criterion_nothing_passes(values: list[float], better: Better) -> None:
    assert verdict(*values, better=better) is Verdict.UNKNOWN


@given(positive, positive, directions)
def test_a_worse_value_never_gets_a_better_verdict(one: float, other: float, better: Better) -> None:
    worse, good = sorted((one, other), reverse=better is Better.LOWER)
    bad, fine = (verdict(value, known=criterion(better), better=better) for value in (worse, good))
    assert BADNESS[bad] >= BADNESS[fine]


@given(st.lists(positive, min_size=5, max_size=40), directions)
def test_what_was_learned_passes_its_own_median(runs: list[float], better: Better) -> None:
    learned = learn_criteria([sample(run, better=better) for run in runs])
    if learned.criteria:  # otherwise the runs scatter too much, with that reason
        center = math.exp(float(np.median(np.log(runs))))
        assert verdict(center, known=learned.criteria[0], better=better) is Verdict.PASS
    else:
        assert "scatter" in learned.refused[0].reason


@given(st.lists(st.floats(min_value=99, max_value=101), min_size=5, max_size=40), directions)
def test_twice_as_slow_fails_whatever_was_learned(runs: list[float], better: Better) -> None:
    (known,) = learn_criteria([sample(run, better=better) for run in runs]).criteria
    slow = 45.0 if better is Better.HIGHER else 220.0
    assert verdict(slow, known=known, better=better) is Verdict.FAIL


@pytest.mark.parametrize("values", [(math.nan,), (1.0, math.nan), (math.inf,), (0.0,), (-1.0,)])
@pytest.mark.parametrize("better", [Better.HIGHER, Better.LOWER])
def test_a_broken_measurement_is_unknown(values: tuple[float, ...], better: Better) -> None:
    judged = judge([result(metric(*values, better=better))], [criterion(better)], cohort=COHORT)
    assert judged.verdict is Verdict.UNKNOWN
    assert "broken" in judged.verdicts[0].reason
    msgspec.json.encode(judged)


@pytest.mark.parametrize("state", [BenchmarkState.ERROR, BenchmarkState.TIMEOUT, BenchmarkState.UNSUPPORTED])
def test_what_could_not_run_is_unknown_even_if_it_left_good_values(state: BenchmarkState) -> None:
    judged = judge([result(metric(100.0), state=state, error="because")], [criterion()], cohort=COHORT)
    assert judged.verdict is Verdict.UNKNOWN
    assert judged.verdicts[0].reason == f"{state}: because"
    assert judged.verdicts[0].value is None


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([result(metric())], "not measured"),
        ([result(metric(1.0, name="other"))], "missing from the result"),
        ([result(state=BenchmarkState.ERROR, error="gone")], "error: gone"),
        ([], "the benchmark is missing from the result"),
    ],
)
def test_what_is_missing_is_unknown(results: list[BenchmarkResult], words: str) -> None:
    judged = judge(results, [criterion(), criterion(metric="other", low=0.5, warn=0.6)], cohort=COHORT, expected=["b"])
    assert judged.verdict is Verdict.UNKNOWN
    assert any(words in one.reason for one in judged.verdicts if one.verdict is Verdict.UNKNOWN)


def test_nothing_at_all_is_unknown() -> None:
    assert judge([], [], cohort=COHORT).verdict is Verdict.UNKNOWN
    assert judge_suite(suite(error="the driver hangs"), Criteria(criteria=())).reason.startswith("the driver hangs")


def test_a_suite_that_ended_early_does_not_pass() -> None:
    judged = judge_suite(suite(result(metric(100.0)), error="cut off"), Criteria(criteria=(criterion(),)))
    assert [one.verdict for one in judged.verdicts] == [Verdict.PASS]
    assert judged.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"cohort": "other"}, "no criterion for cohort 8x-test"),
        ({"better": Better.LOWER}, "says that lower is better"),
        ({"unit": "s"}, "the criterion is in s"),
        ({"low": None}, "no low limit"),
    ],
)
def test_a_criterion_that_does_not_fit_is_not_used(over: dict[str, Any], words: str) -> None:
    judged = judge([result(metric(100.0))], [criterion(**over)], cohort=COHORT)
    assert judged.verdict is Verdict.UNKNOWN
    assert words in judged.verdicts[0].reason


def test_a_refusal_explains_itself() -> None:
    why = RefusedMetric(benchmark="b", metric="m", cohort=COHORT, reason="runs scatter by 30%")
    judged = judge([result(metric(100.0))], [], cohort=COHORT, refused=[why])
    assert judged.verdicts[0].reason == "no criterion: runs scatter by 30%"


def test_repetitions_that_disagree_fail_without_any_criterion() -> None:
    """The same computation, the same seed, the same machine: no fleet is needed to see that this is wrong."""
    assert verdict(7.0, 7.0, 8.0, better=Better.EQUAL) is Verdict.FAIL
    assert verdict(7.0, 7.0, better=Better.EQUAL) is Verdict.UNKNOWN


def test_a_fingerprint_is_right_or_wrong() -> None:
    (known,) = learn_criteria([sample(7.0, 7.0, better=Better.EQUAL)] * 9 + [sample(8.0, better=Better.EQUAL)]).criteria
    assert known.allowed == (7.0,), "one odd run in ten is one device's wrong bits"
    assert verdict(7.0, known=known, better=Better.EQUAL) is Verdict.PASS
    assert verdict(8.0, known=known, better=Better.EQUAL) is Verdict.FAIL
    stored = msgspec.structs.replace(known, allowed=())
    assert verdict(7.0, known=stored, better=Better.EQUAL) is Verdict.PASS, "a store that keeps low and high only"
    assert verdict(8.0, known=stored, better=Better.EQUAL) is Verdict.FAIL


def test_the_median_decides_and_not_the_worst_repetition() -> None:
    assert verdict(100.0, 100.0, 10.0, known=criterion()) is Verdict.PASS
    assert verdict(100.0, 10.0, 10.0, known=criterion()) is Verdict.FAIL


def test_a_slow_result_says_who_disturbed_it() -> None:
    noisy = result(metric(10.0), error="disturbed: other processes used 48% of the processor")
    judged = judge([noisy], [criterion()], cohort=COHORT)
    assert judged.verdict is Verdict.FAIL
    assert judged.reason.endswith("other processes used 48% of the processor meanwhile")


def test_the_worst_verdict_is_the_whole_verdict() -> None:
    order = [Verdict.PASS, Verdict.WARN, Verdict.UNKNOWN, Verdict.FAIL]
    for place in range(1, 5):
        assert worst(order[:place]) is order[place - 1]
    assert worst([]) is Verdict.UNKNOWN


def test_cohorts_are_learned_apart() -> None:
    fast, slow = ([sample(speed, cohort=name)] * 5 for speed, name in ((100.0, "fast"), (10.0, "slow")))
    learned = learn_criteria(fast + slow)
    assert {one.cohort: round(one.center or 0) for one in learned.criteria} == {"fast": 100, "slow": 10}


def test_too_few_runs_teach_nothing() -> None:
    learned = learn_criteria([sample(100.0)] * 4)
    assert learned.criteria == ()
    assert learned.refused[0].reason == "only 4 runs, 5 are needed"


def test_runs_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="b/m: runs disagree about its unit or direction"):
        learn_criteria([sample(1.0), sample(1.0, better=Better.LOWER)])


def test_what_was_not_measured_is_no_sample() -> None:
    broken = result(metric(1.0), state=BenchmarkState.TIMEOUT, error="late")
    taken = list(samples_of([result(metric(1.0, math.nan)), result(metric()), broken], cohort=COHORT, time=2.0))
    assert [one.values for one in taken] == [(1.0,)]
    assert taken[0].time == 2.0


def test_criteria_and_verdicts_survive_json() -> None:
    learned = learn_criteria([sample(100.0 + i) for i in range(9)] + [sample(1.0, cohort="other")])
    assert msgspec.json.decode(msgspec.json.encode(learned), type=Criteria) == learned
    judged = judge_suite(suite(result(metric(104.0))), learned)
    assert judged.verdict is Verdict.PASS
    assert msgspec.json.decode(msgspec.json.encode(judged), type=SuiteVerdict) == judged


@pytest.mark.parametrize("over", [{"low": math.nan}, {"warn": math.inf}, {"low": 2.0, "high": 1.0}])
def test_a_criterion_that_could_not_judge_is_not_made(over: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="criterion b/m"):
        criterion(**over)


def test_a_distribution_sees_what_the_median_does_not() -> None:
    kept = Distribution(
        reference=(99.0, 100.0, 101.0), alpha=0.95, warn_alpha=0.97, repeatability=None, detectable=0.05, excluded=0
    )
    known = criterion(distribution=kept)
    assert verdict(100.0, 100.0, 100.0, known=known) is Verdict.PASS
    judged = judge([result(metric(100.0, 100.0, 60.0))], [known], cohort=COHORT)
    assert judged.verdict is Verdict.FAIL
    assert "but some repetitions are slow: similarity 0.868, the limit is 0.950" in judged.reason
    assert verdict(100.0, 100.0, 89.0, known=known) is Verdict.WARN
    assert verdict(79.0, known=known) is Verdict.FAIL, "the median's limits still hold"
    assert verdict(100.0, math.nan, known=known) is Verdict.UNKNOWN


@settings(deadline=None)
@given(st.lists(positive, min_size=1, max_size=6), st.integers(0, 5), st.floats(1, 1e6), directions)
def test_a_worse_repetition_never_gets_a_better_verdict(
    values: list[float], which: int, factor: float, better: Better
) -> None:
    center = float(np.median(values))
    kept = Distribution(
        reference=(0.9 * center, center), alpha=0.9, warn_alpha=0.95, repeatability=None, detectable=0.1, excluded=0
    )
    limits = (0.9, 0.95) if better is Better.HIGHER else (1.1, 1.05)
    side = {"low": limits[0] * center, "high": None} if better is Better.HIGHER else {"low": None, "high": 1.1 * center}
    known = criterion(better, **side, warn=limits[1] * center, distribution=kept)
    worse = list(values)
    worse[which % len(values)] *= factor if better is Better.LOWER else 1 / factor
    one, other = (verdict(*of, known=known, better=better) for of in (values, worse))
    assert BADNESS[other] >= BADNESS[one] or min(worse) <= 0


def test_learning_distributions_survives_json_and_passes_its_own_runs() -> None:
    runs = [sample(*(100 + 0.1 * i + 0.2 * j for j in range(8))) for i in range(12)]
    learned = learn_criteria(runs, estimator=Validator)
    assert msgspec.json.decode(msgspec.json.encode(learned), type=Criteria) == learned
    assert learned.criteria[0].source == "learned:Validator"
    assert {verdict(*run.values, known=learned.criteria[0]) for run in runs} == {Verdict.PASS}


@pytest.mark.parametrize(
    "wrong", [{"reference": []}, {"reference": [0.0]}, {"alpha": 0.99}, {"warn_alpha": 1.0}, {"alpha": 0.0}]
)
def test_a_distribution_that_could_not_judge_is_refused(wrong: dict[str, Any]) -> None:
    learned = learn_criteria(
        [sample(*(100 + 0.1 * i + 0.2 * j for j in range(8))) for i in range(12)], estimator=Validator
    )
    document = msgspec.to_builtins(learned)
    document["criteria"][0]["distribution"] |= wrong
    with pytest.raises(msgspec.ValidationError, match="distribution"):
        msgspec.convert(document, Criteria, strict=False)


def test_the_budget_is_a_machines_whatever_its_devices() -> None:
    """Eight GPUs are eight verdicts: each gets an eighth, and its limit lies further out."""
    random = np.random.default_rng(0)
    runs = [sample(100 * math.exp(0.03 * random.standard_normal())) for _ in range(40)]
    one = [replace(run, device=f"node{i}/cuda:0") for i, run in enumerate(runs)]
    eight = [replace(run, device=f"node{i // 8}/cuda:{i % 8}") for i, run in enumerate(runs)]
    limits = [learn_criteria(of).criteria[0].low for of in (one, eight)]
    assert limits == sorted(limits, reverse=True, key=lambda limit: limit or 0.0)
    assert limits[0] != limits[1]
    assert learn_criteria(runs).criteria[0].low == limits[0], "machines not known: one verdict a metric"
