"""Sessions: variance within and between, limits for a session to come, and the warning where there is one only."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.detectors.validation.criteria import judge
from mainstay.detectors.validation.criterion_learning import MetricSample, learn_criteria
from mainstay.detectors.validation.criterion_limits import NotAGateError, RobustLimits, reach
from mainstay.detectors.validation.sessions import (
    ONE_SESSION,
    Components,
    Sessions,
    by_day,
    by_time,
    common,
    components,
    drifted,
    numbered,
)
from mainstay.detectors.validation.validator import BestLimits, Validator
from mainstay.detectors.validation.verdict import Criteria
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues
from mainstay.probes.core_types import Verdict

BOTH = pytest.mark.parametrize("kind", [Validator, RobustLimits])
HOUR = 3600.0


def runs(sessions: int, each: int, *, drift: float, seed: int = 0, noise: float = 0.004) -> tuple[list[Any], list[str]]:
    """Runs of twelve repetitions and their sessions."""
    random = np.random.default_rng(seed)
    made, names = [], []
    for session in range(sessions):
        level = drift * random.standard_normal()
        for _ in range(each):
            made.append(100.0 * np.exp(level + noise * (random.standard_normal() + random.standard_normal(12))))
            names.append(f"s{session}")
    return made, names


def high(kind: Any, data: tuple[list[Any], list[str]], *, sessions: bool = True, budget: float = 0.001) -> float:
    found = kind(budget).fit(data[0], Better.LOWER, None, data[1] if sessions else None).limits_.high
    assert found is not None
    return float(found)


@pytest.mark.parametrize("drift", [0.0, 1.0, 4.0])
def test_both_variances_are_found(drift: float) -> None:
    random = np.random.default_rng(1)
    groups = np.repeat(np.arange(400), 5)
    found = components(drift * random.standard_normal(400)[groups] + random.standard_normal(2000), groups)
    assert found.within == pytest.approx(1.0, rel=0.05)
    assert found.between == pytest.approx(drift, rel=0.1, abs=0.25)
    assert found.total == pytest.approx(np.hypot(1.0, drift), rel=0.1)


@pytest.mark.parametrize("layout", [(5, 8), (8, 5), (20, 2), (6, 1)])
@pytest.mark.parametrize("drift", [0.0, 1.0, 4.0])
def test_the_limit_keeps_its_budget_in_sessions_to_come(layout: tuple[int, int], drift: float) -> None:
    random = np.random.default_rng(2)
    sessions, each = layout
    groups, over, budget = np.repeat(np.arange(sessions), each), [], 0.01
    for _ in range(300):
        known = components(
            drift * random.standard_normal(sessions)[groups] + random.standard_normal(len(groups)), groups
        )
        later = drift * random.standard_normal(200) + random.standard_normal(200)
        over.append(np.mean(later > known.center + reach(known.parts, budget)))
    assert np.mean(over) <= 1.3 * budget, "the budget, and three standard errors of a count of about 600"


def test_a_run_that_is_out_does_not_move_what_lies_within() -> None:
    values = np.random.default_rng(3).standard_normal(40)
    groups = np.repeat(np.arange(5), 8)
    sane = components(values, groups)
    values[3] = 1e3
    hit = components(values, groups)
    assert hit.within == pytest.approx(sane.within, rel=0.3)
    assert hit.center == pytest.approx(sane.center, abs=0.3)


@BOTH
def test_drift_widens_and_its_absence_costs_little(kind: Any) -> None:
    drifting, quiet = runs(5, 8, drift=0.02), runs(5, 8, drift=0.0)
    assert high(kind, drifting) > high(kind, drifting, sessions=False)
    assert high(kind, quiet) <= 1.03 * high(kind, quiet, sessions=False)


@BOTH
def test_more_sessions_of_the_same_machine_are_worth_more_than_more_runs(kind: Any) -> None:
    few, many = runs(4, 20, drift=0.02), runs(40, 2, drift=0.02)
    assert high(kind, many) < high(kind, few)


@BOTH
def test_of_one_session_the_limits_are_its_own_and_say_so(kind: Any) -> None:
    data = runs(1, 20, drift=0.02)
    assert high(kind, data) == high(kind, data, sessions=False)
    found = kind().fit(data[0], Better.LOWER, None, data[1]).limits_.sessions
    assert (found.count, found.between, found.freedom, found.description) == (1, None, None, ONE_SESSION)
    assert found.within == pytest.approx(0.0045, rel=0.5)


@BOTH
def test_sessions_of_one_run_are_runs(kind: Any) -> None:
    """Nothing tells a session's drift from a run's noise: all runs are alike."""
    data = runs(20, 1, drift=0.01)
    assert high(kind, data) == high(kind, data, sessions=False)
    found = kind().fit(data[0], Better.LOWER, None, data[1]).limits_.sessions
    assert (found.count, found.within) == (20, None)
    assert found.between == pytest.approx(0.01, rel=0.6)


@BOTH
def test_the_order_of_runs_does_not_matter(kind: Any) -> None:
    made, names = runs(5, 4, drift=0.01)
    assert high(kind, (made[::-1], names[::-1])) == pytest.approx(high(kind, (made, names)), rel=1e-12)


@BOTH
def test_sessions_that_scatter_too_much_make_no_gate(kind: Any) -> None:
    made, names = runs(6, 4, drift=0.0)
    apart = [run * (1.0 + 4.0 * (name in ("s1", "s3"))) for run, name in zip(made, names, strict=True)]
    with pytest.raises(NotAGateError, match=r"scatter by \d+%"):
        kind().fit(apart, Better.LOWER, None, names)


def test_a_session_that_differs_is_learned_from_and_a_faulty_device_is_not() -> None:
    made, names = runs(5, 8, drift=0.0)
    shifted = [run * (1.1 if name == "s2" else 1.0) for run, name in zip(made, names, strict=True)]
    assert excluded(shifted, ["a"] * 40, names) == 0, "the same device was well in four other sessions"
    assert excluded(shifted, ["a"] * 40) == 8
    devices = ["b" if name == "s2" else "a" for name in names]
    assert excluded(shifted, devices, names) == 8, "it was never well"


def excluded(runs: list[np.ndarray], devices: list[str], sessions: list[str] | None = None) -> int:
    """How many runs the criterion was not learned from."""
    learned = Validator().fit(runs, Better.LOWER, devices, sessions).limits_.distribution
    assert learned is not None
    return learned.excluded


def test_of_many_sessions_one_that_is_out_is_an_outlier() -> None:
    groups = np.repeat(np.arange(25), 2)
    out = groups == 7
    assert not drifted(out, groups, np.zeros(50, dtype=np.intp)).any()
    few = groups < 10
    assert drifted(out[few], groups[few], np.zeros(20, dtype=np.intp)).sum() == 2
    lone = out.copy()
    lone[15] = False  # half of the session's runs: a disturbed run, no drift
    assert not drifted(lone[few], groups[few], np.zeros(20, dtype=np.intp)).any()


def test_sessions_from_times() -> None:
    times = [0.0, 600.0, 2401.0, 3000.0, None, 100.0]
    machines = ["a", "a", "a", "a", "a", "b"]
    assert by_time(machines, times) == ["a@0", "a@0", "a@2401", "a@2401", "", "b@100"]
    steady = by_time(["a"] * 25, [300.0 * i for i in range(25)])  # two hours without a gap
    assert len(set(steady)) == 2
    assert by_time(["a", "a"], [HOUR, 0.0]) == ["a@3600", "a@0"]
    assert by_day(["a", "a", "b"], [0.0, 86400.0, None]) == ["a@1970-01-01", "a@1970-01-02", ""]
    assert common(["x", ""]) is None
    assert common(["x", "y"]) == ["x", "y"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="2 runs but 3 sessions"):
        components(np.ones(2), np.zeros(3, dtype=np.intp))
    with pytest.raises(ValueError, match="known from two on"):
        Sessions(count=1, within=0.1, between=0.1, freedom=1)
    with pytest.raises(ValueError, match="a count of one at least"):
        Sessions(count=0, within=None, between=None, freedom=None)
    with pytest.raises(ValueError, match="one device and one session a run"):
        Validator().fit(*runs(2, 3, drift=0.0)[:1], Better.LOWER, None, ["s"])


def samples(data: tuple[list[Any], list[str]]) -> list[MetricSample]:
    return [
        MetricSample(
            benchmark="gemm", metric="t", unit="s", better=Better.LOWER, cohort="c", values=tuple(run),
            device="n/cpu", session=name,
        )
        for run, name in zip(*data, strict=True)
    ]  # fmt: skip


def verdict(criteria: Criteria, scale: float) -> tuple[Verdict, str]:
    metric = MetricValues(name="t", unit="s", better=Better.LOWER, values=(100.0 * scale,) * 12)
    result = BenchmarkResult(
        benchmark="gemm", state=BenchmarkState.OK, error=None, seconds=1.0, device="cpu", metrics=(metric,)
    )  # fmt: skip
    (said,) = judge([result], criteria.criteria, cohort="c").verdicts
    return said.verdict, said.reason


def test_a_verdict_says_what_its_limits_know() -> None:
    several, one = (learn_criteria(samples(runs(n, 40 // n, drift=0.01, seed=4)), estimator=BestLimits) for n in (8, 1))
    failed, why = verdict(several, 3.0)
    assert failed is Verdict.FAIL
    assert "(learned from 8 sessions that differ by" in why
    assert verdict(one, 3.0)[1].endswith(f"({ONE_SESSION})")
    assert "session" not in verdict(several, 1.0)[1], "what passes needs no excuse"


def test_criteria_carry_their_sessions_and_old_files_are_read() -> None:
    made = learn_criteria(samples(runs(5, 8, drift=0.01)), estimator=BestLimits)
    text = msgspec.json.encode(made)
    assert msgspec.json.decode(text, type=Criteria) == made
    (one,) = made.criteria
    assert one.sessions is not None
    assert (made.version, one.sessions.count, one.sessions.freedom) == (2, 5, 4)
    old = msgspec.json.decode(text)
    del old["version"], old["criteria"][0]["sessions"]
    read = msgspec.convert(old, Criteria)
    assert (read.version, read.criteria[0].sessions, read.criteria[0].high) == (1, None, one.high)
    with pytest.raises(msgspec.ValidationError, match="criteria of version 3: this mainstay reads 1 to 2"):
        msgspec.convert(old | {"version": 3}, Criteria)


def test_half_a_partition_is_none() -> None:
    made, names = runs(5, 8, drift=0.01)
    (one,) = learn_criteria(samples((made, [*names[:-1], ""])), estimator=BestLimits).criteria
    assert one.sessions is None
    assert list(numbered(["b", "a", "b"])) == [1, 0, 1]


@pytest.mark.parametrize(
    ("within", "between", "total"), [(0.3, 0.4, 0.5), (None, 0.4, 0.4), (0.3, None, 0.3), (None, None, 0.0)]
)
def test_the_scatter_over_sessions_is_of_both_kinds(within: float | None, between: float | None, total: float) -> None:
    known = Components(count=1 if between is None else 3, center=0.0, within=within, between=between, parts=())
    assert known.total == pytest.approx(total)
    assert known.describe is (between is not None and within is not None)
    assert known.kept == Sessions(
        count=known.count, within=within, between=between, freedom=None if between is None else 2
    )


@pytest.mark.parametrize(
    ("count", "within", "between", "why"),
    [
        (0, None, None, "a count of one at least"),
        (2, -0.1, 0.1, "scatters of zero at least"),
        (2, float("nan"), 0.1, "scatters of zero at least"),
        (2, 0.1, float("inf"), "scatters of zero at least"),
        (1, 0.1, 0.1, "never from one"),
        (2, 0.1, None, "known from two on"),
    ],
)
def test_sessions_that_cannot_be_are_refused(count: int, within: float | None, between: float | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Sessions(count=count, within=within, between=between, freedom=None)


def test_what_sessions_say_of_themselves() -> None:
    assert Sessions(count=1, within=0.0, between=None, freedom=None).description == ONE_SESSION
    told = Sessions(count=5, within=0.0, between=0.0312, freedom=4).description
    assert told == "learned from 5 sessions that differ by 3.1%"


def test_a_session_ends_after_a_gap_and_when_it_lasts_too_long() -> None:
    assert by_time(["m"] * 4, [10.0, 1810.0, 1900.0, None]) == ["m@10", "m@10", "m@10", ""]
    assert by_time(["m"] * 3, [10.0, 1810.1, 3610.1]) == ["m@10", "m@1810", "m@1810"], "a gap of more than 1800 s"
    assert by_time(["m"] * 4, [0.0, 1800.0, 3000.0, 3600.0]) == ["m@0"] * 4
    assert by_time(["m"] * 4, [0.0, 1800.0, 3000.0, 3600.1]) == [*["m@0"] * 3, "m@3600"], "longer than an hour"
    assert by_time(["m", "n"], [1.0, 2.0]) == ["m@1", "n@2"]
    assert by_day(["m", "m", "m", "m"], [0.0, 86_399.0, 86_400.0, None]) == [
        "m@1970-01-01", "m@1970-01-01", "m@1970-01-02", "",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="longer"):
        by_day(["m"], [0.0, 1.0])
