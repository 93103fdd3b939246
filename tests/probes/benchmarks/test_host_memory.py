"""Host memory: the processor is measured, with or without GPUs."""

from __future__ import annotations

from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.host_memory import HostMemory


def tiny() -> HostMemory:
    return HostMemory(HostMemory.Config(budget_seconds=0.0, mebibytes=1))


def test_a_machine_with_gpus_measures_its_processor(ticking: Clock) -> None:
    result = tiny().run(Device(kind="cuda", model="any", count=8), ticking)
    assert result.device == "host"
    assert all(metric.values for metric in result.metrics)
