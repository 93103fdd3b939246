"""NVIDIA's ``all_reduce_perf`` (nccl-tests): the figure that everybody quotes, from the program that everybody runs."""

from __future__ import annotations

from typing import ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.external_tool import ExternalToolBenchmark
from mainstay.probes.benchmarks.nccl_tests_output import read
from mainstay.probes.benchmarks.result import Better, Metric

_RATES = {2 << 20: "busbw_2MiB", 16 << 20: "busbw_16MiB", 1 << 30: "busbw_1GiB"}
_LATENCY = {8: "latency_8B"}


class NcclTests(ExternalToolBenchmark):
    """One process, a thread's worth of GPUs; results are checked by the program, and wrong ones are an error here."""

    name: ClassVar[str] = "nccl_tests"
    catches: ClassVar[str] = "a bad link between the GPUs of a node, by the program that vendors quote"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_LINK,)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    programs: ClassVar[tuple[str, ...]] = ("all_reduce_perf",)
    run_seconds: ClassVar[float] = 20.0

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        latency = (Metric(name=name, unit="s", better=Better.LOWER) for name in _LATENCY.values())
        return (*latency, *(Metric(name=name, unit="B/s", better=Better.HIGHER) for name in _RATES.values()))

    def supported(self, device: Device) -> tuple[bool, str]:
        if device.kind == "cuda" and device.count < 2:
            return False, "all_reduce_perf needs two GPUs or more"
        return super().supported(device)

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        del clock
        readings = BenchmarkReadings()
        for _ in range(max(1, self.config.repeats)):
            # 8 B to 1 GiB, times eight each; checked once, since checking is slow
            rows = read(
                self.output("all_reduce_perf", "-b", "8", "-e", "1G", "-f", "8", "-g", str(device.count), "-c", "1")
            )
            for size, row in rows.items():
                if size in _LATENCY:
                    readings.values.setdefault(_LATENCY[size], []).append(row.seconds)
                elif size in _RATES:
                    readings.values.setdefault(_RATES[size], []).append(row.bus)
        return readings
