"""Devices that are slow together are one warning about their node; one that stands out fails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from mainstay.detectors.validation.criteria import judge
from mainstay.detectors.validation.verdict import Criterion, MetricVerdict
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues
from mainstay.probes.core_types import Verdict

PASS, WARN, FAIL = Verdict.PASS, Verdict.WARN, Verdict.FAIL


def verdicts(times: Sequence[float], better: Better = Better.LOWER) -> list[MetricVerdict]:
    """A node whose devices take so long, where 1 is typical and 2 % slower fails."""
    lower = better is Better.LOWER
    criterion = Criterion(
        benchmark="b", metric="m", cohort="c", better=better, unit="s", center=1.0, n=100, source="", learned_at=None,
        low=None if lower else 1 / 1.02, high=1.02 if lower else None,
    )  # fmt: skip
    results = [
        BenchmarkResult(
            benchmark="b", state=BenchmarkState.OK, error=None, seconds=1.0, device=f"cuda:{i}",
            metrics=(MetricValues(name="m", unit="s", better=better, values=(value,)),),
        )
        for i, value in enumerate(times)
    ]  # fmt: skip
    return list(judge(results, [criterion], cohort="c").verdicts)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.03], [PASS, PASS, PASS, FAIL]),
        ([1.03, 1.03, 1.03, 1.035], [WARN] * 4),
        ([1.03, 1.03, 1.03, 1.0], [WARN, WARN, WARN, PASS]),
        ([1.03, 1.03, 1.03, 1.06], [WARN, WARN, WARN, FAIL]),
        ([1.06, 1.06, 1.06, 1.06], [FAIL] * 4),
        ([1.03, 1.0], [FAIL, PASS]),
        ([1.03], [FAIL]),
    ],
    ids=["one", "all", "most", "one beyond the others", "too slow", "one of two", "no siblings"],
)
def test_who_fails(times: list[float], expected: list[Verdict]) -> None:
    assert [one.verdict for one in verdicts(times)] == expected
    rates = [1 / seconds for seconds in times]
    assert [one.verdict for one in verdicts(rates, Better.HIGHER)] == expected


def test_the_reason_names_the_node_and_what_it_shares() -> None:
    reason = verdicts([1.03] * 8)[0].reason
    assert reason == (
        "8 devices of the node are slow together, by 3.0% in the middle: cooling, power, or host; a node fails from 5%"
    )


@pytest.mark.parametrize("others", [[1.0, 1.0], [1.03, 1.03], [1.03, 1.0], [1.06, 1.06]])
def test_a_worse_value_never_gives_its_device_a_better_verdict(others: list[float]) -> None:
    order = [PASS, WARN, FAIL]
    ranks = [order.index(verdicts([math.exp(k / 500), *others])[0].verdict) for k in range(60)]
    assert ranks == sorted(ranks)
