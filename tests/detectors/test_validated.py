"""A failed validation is one finding, with the part that broke; what is unknown blames nobody."""

from __future__ import annotations

import pytest

from detectors.blame import blame
from detectors.finding import Cause
from detectors.validated import CAUSES, finding
from detectors.verdict import Criterion, Judgement, MetricVerdict
from probes.benchmarks.defects import Defect
from probes.benchmarks.result import Better
from probes.words import Remedy, Severity, Verdict


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


def judged(*verdicts: MetricVerdict) -> Judgement:
    return Judgement(verdict=Verdict.FAIL, reason="", verdicts=verdicts, points_to=blame(verdicts))


@pytest.mark.parametrize("said", [Verdict.PASS, Verdict.WARN, Verdict.UNKNOWN])
def test_what_did_not_fail_is_no_finding(said: Verdict) -> None:
    assert finding("n1", "quick", judged(verdict("gemm", said=said)), time=5.0) is None


def test_one_slow_device_is_named_with_its_slowdown() -> None:
    found = finding("n1", "quick", judged(verdict("gemm"), verdict("copy", said=Verdict.PASS)), time=5.0)
    assert found is not None
    assert (found.cause, found.severity, found.remedy) == (Cause.FAULTY_GPU, Severity.WARNING, Remedy.WATCH)
    assert found.evidence.numbers["slowdown"] == pytest.approx(0.25)
    assert "failed in 1 of 2 metrics on cuda:0: gemm m: -20.0% against typical" in found.evidence.summary


def test_gpus_that_are_slow_together_are_one_finding_about_the_host() -> None:
    found = finding("n1", "deep", judged(*(verdict("gemm", f"cuda:{i}") for i in range(8))), time=5.0)
    assert found is not None
    assert found.cause is Cause.HOST
    assert found.entity.device is None
    assert "on 8 devices" in found.evidence.summary
    assert "(and 5 more)" in found.evidence.summary


def test_wrong_bits_come_before_slowness() -> None:
    found = finding("n1", "quick", judged(verdict("copy"), verdict("deterministic", unit="", value=7.0)), time=5.0)
    assert found is not None
    assert (found.cause, found.severity, found.remedy) == (Cause.SILENT_CORRUPTION, Severity.CRITICAL, Remedy.INSPECT)


def test_a_benchmark_of_a_newer_node_fails_without_a_cause() -> None:
    found = finding("n1", "quick", judged(verdict("of a newer node")), time=5.0)
    assert found is not None
    assert found.cause is None


def test_every_class_of_defect_has_a_cause() -> None:
    assert set(CAUSES) == set(Defect)
