"""How long it takes to start one small operation: the launch path, not the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

_LATENCIES = {"cpu": ("dispatch",), "cuda": ("launch", "round_trip")}


class Launch(Benchmark):
    """Seconds for one operation on one number.

    ``launch``: kernels queued back to back; ``round_trip``: queued and waited for, one by one; ``dispatch``: the twin
    on a processor, torch's dispatch of the operation. One thread: nothing here is worth sharing out.
    """

    name: ClassVar[str] = "launch"
    catches: ClassVar[str] = "a slow launch path: processor power states, PCIe latency, a contended or old driver"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.HOST_CPU, Defect.HOST_LINK)

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        threads: int = 1

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        return tuple(Metric(name=name, unit="s", better=Better.LOWER) for name in _LATENCIES[device.kind])

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        import torch

        watch = Stopwatch(device, clock)
        number = torch.zeros(1, device=device.label)

        def queue() -> None:
            number.add_(1.0)

        def wait() -> None:
            number.add_(1.0)
            torch.cuda.synchronize()

        works = {"dispatch": queue, "launch": queue, "round_trip": wait}
        budget = self.config.budget_seconds
        return BenchmarkReadings(values={name: watch.repeat(works[name], budget) for name in _LATENCIES[device.kind]})
