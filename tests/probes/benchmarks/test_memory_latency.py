"""Memory latency: loads that depend on each other, beside every memory node."""

from __future__ import annotations

import ctypes
import time

import msgspec
import pytest

from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.memory_latency import MemoryLatency, chase


def tiny() -> MemoryLatency:
    return MemoryLatency(MemoryLatency.Config(budget_seconds=0.0, mebibytes=1))


def quickest(size: int) -> float:
    """Seconds of a load, the least of ten walks."""
    walk, loads = chase(size)

    def once() -> float:
        begun = time.perf_counter()
        walk()
        return (time.perf_counter() - begun) / loads

    return min(once() for _ in range(10))


def test_loads_go_to_memory_one_after_another() -> None:
    """Loads that overlap take 10 ns each, and those from a cache of one core less; no memory answers within 20 ns."""
    cached, loaded = quickest(16 << 10), quickest(256 << 20)
    assert loaded > max(20e-9, 3 * cached)


def test_each_memory_node_has_its_figure(cpu: Device, ticking: Clock) -> None:
    two = msgspec.structs.replace(cpu, numa_nodes=2)
    assert [metric.name for metric in tiny().metrics(two)] == ["latency_numa0_1MiB", "latency_numa1_1MiB"]
    result = tiny().run(Device(kind="cuda", model="any", count=8), ticking)
    assert result.device == "host"
    assert all(metric.values for metric in result.metrics)


def test_another_c_library_is_no_pass(monkeypatch: pytest.MonkeyPatch, cpu: Device, ticking: Clock) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    result = tiny().run(cpu, ticking)
    assert (result.state, result.error) == ("unsupported", "it needs glibc, which walks the chain")
