"""Launch latency: seconds per operation, and what a GPU alone can be asked is asked of GPUs only."""

from __future__ import annotations

from collections.abc import Callable

from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.launch import Launch
from mainstay.probes.benchmarks.result import BenchmarkResult


def tiny() -> Launch:
    return Launch(Launch.Config(budget_seconds=0.0))


def test_it_is_microseconds_and_not_milliseconds(run: Callable[..., BenchmarkResult]) -> None:
    """Dispatching one addition takes some microseconds anywhere; a unit mistake would be a thousand times off."""
    (metric,) = run(tiny()).metrics
    assert 1e-7 < min(metric.values) < 1e-3


def test_only_a_gpu_has_a_round_trip(cpu: Device) -> None:
    assert [metric.name for metric in tiny().metrics(cpu)] == ["dispatch"]
    assert [metric.name for metric in tiny().metrics(Device(kind="cuda", model="any"))] == ["launch", "round_trip"]
