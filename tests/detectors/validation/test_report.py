"""Verdicts and criteria as people read them, and the edges between them: worked examples."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from mainstay.detectors.cli_errors import print_unfolded
from mainstay.detectors.validation.criteria import HOW_TO_LEARN, _headline, judge, judge_suite
from mainstay.detectors.validation.criterion_limits import Distribution
from mainstay.detectors.validation.report import criteria_table, headline, render, rows_table
from mainstay.detectors.validation.sessions import Sessions
from mainstay.detectors.validation.verdict import Criteria, Criterion, MetricVerdict, RefusedMetric, SuiteVerdict
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues, SuiteResult
from mainstay.probes.core_types import Verdict


def criterion(better: Better = Better.HIGHER, **over: Any) -> Criterion:
    given = {
        "benchmark": "b", "metric": "m", "cohort": "c", "better": better, "n": 9, "source": "x", "unit": "B/s",
        "low": 80.0 if better is Better.HIGHER else None, "high": 120.0 if better is Better.LOWER else None,
        "warn": 90.0 if better is Better.HIGHER else 110.0, "center": 100.0,
    }  # fmt: skip
    return Criterion(**(given | over))


def suite(*values: float, known: Criterion | None = None, **over: Any) -> SuiteVerdict:
    """One metric for each value, m, n, o, ..."""
    metrics = tuple(
        MetricValues(name=name, unit="B/s", better=Better.HIGHER, values=(value,))
        for name, value in zip("mno", values, strict=False)
    )
    run = BenchmarkResult(
        benchmark="b", state=BenchmarkState.OK, error=None, seconds=1.0, device="cpu", metrics=metrics
    )
    given: dict[str, Any] = {
        "suite": "quick", "started_at": 10.0, "finished_at": 22.4, "host": "w7", "device": "CPU", "cohort": "c",
        "software": "s", "benchmarks": (run,),
    }  # fmt: skip
    return judge_suite(SuiteResult(**(given | over)), Criteria(criteria=() if known is None else (known,)))


def lines(shown: RenderableType) -> list[str]:
    console = Console(width=200, file=StringIO())
    console.print(shown)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_sentence_on_a_suite() -> None:
    judged = suite(79.0, known=criterion())
    said = "w7 (CPU), suite quick, 12 s\n1 of 1 metrics failed: b m on cpu: -21.0% against typical,"
    assert headline(judged).plain == f"\nFAIL  {said} beyond the limit of 80.0 B/s."
    left = msgspec.structs.replace(judged, left_out={"gemm": "no GPU", "copy": "not worth its time"})
    assert headline(left).plain.endswith("80.0 B/s.\nLeft out: gemm (no GPU); copy (not worth its time).")


def test_the_worst_row_comes_last_and_a_reason_that_all_share_is_said_once() -> None:
    shown = lines(render(suite(79.0, 100.0, known=criterion())))
    assert [line.split()[:4] for line in shown[:3]] == [
        ["verdict", "benchmark", "device", "metric"],
        ["UNKNOWN", "b", "cpu", "n"],
        ["FAIL", "b", "cpu", "m"],
    ]
    assert "why" in shown[0]
    assert "79.0 B/s" in shown[2]
    assert HOW_TO_LEARN[:40] not in " ".join(shown)
    alike = lines(render(suite(79.0, 100.0)))
    assert "why" not in alike[0]
    assert HOW_TO_LEARN[:40] in " ".join(alike)


def test_criteria_in_a_table() -> None:
    kept = Distribution(
        reference=(99.0, 101.0), alpha=0.95, warn_alpha=0.97, repeatability=None, detectable=0.062, excluded=2
    )
    several = Sessions(count=5, within=0.01, between=0.031, freedom=4)
    one = Sessions(count=1, within=0.01, between=None, freedom=None)
    known = (
        criterion(sessions=several, distribution=kept),
        criterion(Better.LOWER, sessions=one),
        criterion(distribution=replace(kept, excluded=0)),
        criterion(Better.EQUAL, unit="", low=7.0, high=7.0, warn=None, center=None),
    )
    refused = (RefusedMetric(benchmark="b", metric="q", cohort="c", reason="only 4 runs"),)
    shown = [line.split() for line in lines(criteria_table(Criteria(criteria=known, refused=refused)))]
    edges = ["100", "B/s", "90.0", "B/s", "80.0", "B/s", "9", "5", "±3.1%", "6.2%"]
    assert shown[1] == ["c", "b", "m", *edges, "median,", "similarity", "0.950,", "2", "slow", "runs", "left", "out"]
    assert shown[2] == ["c", "b", "m", "100", "B/s", "110", "B/s", "120", "B/s", "9", "1", "-", "median"]
    assert shown[3][-3:] == ["median,", "similarity", "0.950"]
    assert shown[4] == ["c", "b", "m", "-", "-", "7", "9", "-", "-", "value"]
    assert shown[5] == ["c", "b", "q", "none:", "only", "4", "runs"]


def test_a_log_is_not_folded_at_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_unfolded("x " * 75, rows_table(("a", "b"), [("1", "y" * 120)]), width=160)
    assert [len(line.rstrip()) for line in capsys.readouterr().out.splitlines()] == [149, 4, 123]


def metric(verdict: Verdict, reason: str, name: str = "m", device: str = "cpu") -> MetricVerdict:
    return MetricVerdict(
        benchmark="b", device=device, metric=name, unit="", value=None, verdict=verdict, criterion=None, reason=reason
    )


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([], "nothing was measured"),
        ([metric(Verdict.PASS, "x")] * 2, "all 2 metrics are within their criteria"),
        ([metric(Verdict.PASS, "x"), metric(Verdict.WARN, "y")], "1 of 2 metrics are near their limit: b m on cpu: y"),
        ([metric(Verdict.UNKNOWN, "x", "*", "")], "1 of 1 metrics are unknown: b: x"),
        ([metric(Verdict.FAIL, "x")] * 2, "2 of 2 metrics failed: x"),
        ([metric(Verdict.FAIL, why) for why in "xyy"], "3 of 3 metrics failed: b m on cpu: x (and 2 more)"),
        ([metric(Verdict.FAIL, "x"), metric(Verdict.FAIL, "y")], "2 of 2 metrics failed: b m on cpu: x (and 1 more)"),
    ],
)
def test_a_run_in_a_sentence(verdicts: list[MetricVerdict], said: str) -> None:
    overall = max((one.verdict for one in verdicts), key=list(Verdict).index, default=Verdict.UNKNOWN)
    assert _headline(overall, verdicts) == said


@pytest.mark.parametrize(
    ("better", "value", "verdict", "reason"),
    [
        (Better.HIGHER, 90.0, Verdict.PASS, "-10.0% against typical, the limit is 80.0 B/s"),
        (Better.HIGHER, 89.9, Verdict.WARN, "-10.1% against typical, the limit is 80.0 B/s"),
        (Better.HIGHER, 80.0, Verdict.WARN, "-20.0% against typical, the limit is 80.0 B/s"),
        (Better.HIGHER, 79.9, Verdict.FAIL, "-20.1% against typical, beyond the limit of 80.0 B/s"),
        (Better.LOWER, 110.0, Verdict.PASS, "+10.0% against typical, the limit is 120 B/s"),
        (Better.LOWER, 120.0, Verdict.WARN, "+20.0% against typical, the limit is 120 B/s"),
        (Better.LOWER, 120.1, Verdict.FAIL, "+20.1% against typical, beyond the limit of 120 B/s"),
    ],
)
def test_a_value_at_the_edge_is_within_it(better: Better, value: float, verdict: Verdict, reason: str) -> None:
    measured = MetricValues(name="m", unit="B/s", better=better, values=(value,))
    run = BenchmarkResult(
        benchmark="b", state=BenchmarkState.OK, error=None, seconds=1.0, device="cpu", metrics=(measured,)
    )
    (one,) = judge([run], [criterion(better)], cohort="c").verdicts
    assert (one.verdict, one.reason) == (verdict, reason)
    (told,) = judge([run], [criterion(better, center=None)], cohort="c").verdicts
    assert told.reason == reason.split("typical, ")[1]
