"""Results for people and the remarks on them."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.cpu_contention import CpuUsage
from mainstay.probes.benchmarks.result import (
    BenchmarkResult,
    BenchmarkState,
    contention_note,
    format_value,
    with_contention_note,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (27.04e9, "B/s", "27.0 GB/s"),
        (989.4e12, "FLOP/s", "989 TFLOP/s"),
        (4.2e-6, "s", "4.20 µs"),
        (0.0017, "s", "1.70 ms"),
        (12.0, "s", "12.0 s"),
        (3e-10, "s", "0.30 ns"),
        (float(0x3324AA59B902), "", "3324aa59b902"),
    ],
)
def test_a_value_reads_as_people_write_it(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def result(state: BenchmarkState = BenchmarkState.OK, error: str | None = None) -> BenchmarkResult:
    return BenchmarkResult(benchmark="gemm", state=state, error=error, seconds=1.0, device="cpu", metrics=())


def test_a_disturbance_is_a_remark_that_can_be_found_again() -> None:
    noisy = with_contention_note(result(error="int8: no"), "other processes used 48% of the processor")
    assert noisy.error == "int8: no; disturbed: other processes used 48% of the processor"
    assert contention_note(noisy) == "other processes used 48% of the processor"
    assert contention_note(result(error="int8: no")) is None
    assert with_contention_note(result(), None) == result()


def test_a_failure_keeps_its_reason() -> None:
    failed = result(BenchmarkState.TIMEOUT, "still running")
    assert with_contention_note(failed, "anything") == failed


def test_others_are_told_from_oneself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    before = CpuUsage(busy=100.0, stolen=5.0, own=10.0, at=0.0)
    alone = CpuUsage(busy=140.0, stolen=5.1, own=50.0, at=10.0)
    assert alone.since(before) is None
    crowded = CpuUsage(busy=140.0, stolen=11.0, own=30.0, at=10.0)
    said = crowded.since(before)
    assert said == "other processes used 50% of the processor and the hypervisor withheld 15% of it"


def test_the_kernel_is_read_right() -> None:
    first, second = CpuUsage.now(lambda: 0.0), CpuUsage.now(lambda: 1.0)
    assert 0 < first.busy <= second.busy
    assert 0 < first.own <= second.own <= second.busy
