"""A failed validation is one finding, with the part that broke; what is unknown blames no device."""

from __future__ import annotations

import pytest

from mainstay.detectors.finding import Cause
from mainstay.detectors.validation.defect_attribution import attribute_defects
from mainstay.detectors.validation.validation_finding import CAUSES, _since, finding_of_validation
from mainstay.detectors.validation.verdict import Criterion, MetricVerdict, RunVerdict
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import RecommendedAction, Severity, Verdict


def verdict(
    benchmark: str, device: str = "cuda:0", said: Verdict = Verdict.FAIL, value: float = 80.0, unit: str = "B/s"
) -> MetricVerdict:
    criterion = Criterion(
        benchmark=benchmark, metric="m", cohort="c", better=Better.HIGHER, low=90.0, high=None, n=5, source="x",
        center=100.0,
    )  # fmt: skip
    return MetricVerdict(
        benchmark=benchmark, device=device, metric="m", unit=unit, value=value, verdict=said, criterion=criterion,
        reason="-20.0% against typical",
    )  # fmt: skip


def judged(*verdicts: MetricVerdict) -> RunVerdict:
    return RunVerdict(verdict=Verdict.FAIL, reason="", verdicts=verdicts, points_to=attribute_defects(verdicts))


@pytest.mark.parametrize("said", [Verdict.PASS, Verdict.WARN, Verdict.UNKNOWN])
def test_what_did_not_fail_is_no_finding(said: Verdict) -> None:
    assert finding_of_validation("n1", "quick", judged(verdict("gemm", said=said)), time=5.0) is None


def test_one_slow_device_is_named_with_its_slowdown() -> None:
    found = finding_of_validation("n1", "quick", judged(verdict("gemm"), verdict("copy", said=Verdict.PASS)), time=5.0)
    assert found is not None
    assert (found.cause, found.severity, found.recommended_action) == (
        Cause.FAULTY_GPU,
        Severity.WARNING,
        RecommendedAction.MONITOR,
    )
    assert found.evidence.numbers["slowdown"] == pytest.approx(0.25)
    assert "failed in 1 of 2 metrics on cuda:0: gemm m: -20.0% against typical" in found.evidence.summary


def test_gpus_that_are_slow_together_are_one_finding_about_the_host() -> None:
    found = finding_of_validation("n1", "deep", judged(*(verdict("gemm", f"cuda:{i}") for i in range(8))), time=5.0)
    assert found is not None
    assert found.cause is Cause.HOST
    assert found.entity.device is None
    assert "on 8 devices" in found.evidence.summary
    assert "(and 5 more)" in found.evidence.summary


def test_wrong_bits_come_before_slowness() -> None:
    found = finding_of_validation(
        "n1", "quick", judged(verdict("copy"), verdict("deterministic", unit="", value=7.0)), time=5.0
    )
    assert found is not None
    assert (found.cause, found.severity, found.recommended_action) == (
        Cause.SILENT_CORRUPTION,
        Severity.CRITICAL,
        RecommendedAction.INSPECT_NODE,
    )


@pytest.mark.parametrize(("hours", "age"), [(1.5, "1.5 h"), (47.0, "47.0 h"), (60.0, "2.5 days")])
def test_it_says_how_long_ago_bits_were_right(hours: float, age: str) -> None:
    wrong = judged(verdict("deterministic", unit="", value=7.0))
    said = finding_of_validation("n1", "quick", wrong, time=1e6, sound_at=1e6 - hours * 3600, shown=True)
    assert said is not None
    assert said.evidence.summary.endswith(f"Its bits were last seen right {age} before.")
    unknown = finding_of_validation("n1", "quick", wrong, time=1e6, sound_at=1e6 - hours * 3600)
    assert unknown is not None
    assert unknown.evidence.summary.endswith("No earlier run showed that its bits were right.")


def test_a_benchmark_of_a_newer_node_fails_without_a_cause() -> None:
    found = finding_of_validation("n1", "quick", judged(verdict("of a newer node")), time=5.0)
    assert found is not None
    assert found.cause is None


def test_every_class_of_defect_has_a_cause() -> None:
    assert set(CAUSES) == set(Defect)


@pytest.mark.parametrize(
    ("seconds", "age"), [(5400, "1.5 h"), (172_799, "48.0 h"), (172_800, "2.0 days"), (864_000_000, "10000.0 days")]
)
def test_an_age_is_in_hours_and_then_in_days(seconds: float, age: str) -> None:
    assert _since(seconds, shown=True) == f"Its bits were last seen right {age} before."
    assert _since(seconds, shown=False) == "No earlier run showed that its bits were right."
