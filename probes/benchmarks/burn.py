"""Sustained matrix multiplies: what is left of the rate once the device is warm, with the clock beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import ClassVar, Self

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Effort, Kind, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.gemm import multiply, same_as
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

_FORMAT: dict[Kind, str] = {"cpu": "fp32", "cuda": "bf16"}
_SECONDS = {SuiteTier.QUICK: 5.0, SuiteTier.STANDARD: 45.0, SuiteTier.DEEP: 300.0}
_MOST = 120
"""Slices, and so values, of the load test."""
_LEAST = 8


class Burn(Benchmark):
    """n x n multiplies without a pause, in slices.

    ``rate``: of the second half, when the device is warm. ``steady``: rate of the last quarter by that of the first, so
    that power or cooling which gives in shows without any criterion learned from others. ``clock``: of the processor or
    the GPU, after each slice. ``repeat``: whether one product a slice has the bits of the first, as gpu-burn compares.
    All GPUs burn at once: a chassis that cannot cool or feed eight shows only then.
    """

    name: ClassVar[str] = "burn"
    catches: ClassVar[str] = "power, cooling or clocks that give in under lasting load, and bits that flip when hot"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.THERMAL, Defect.COMPUTE, Defect.NUMERICS)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    together: ClassVar[bool] = True
    gpu_sizes: ClassVar[Sizes] = {"size": 8192}

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        size: int = 512
        seconds: float = 45.0
        """Length of the load, for any budget."""

    config: Config

    def tuned(self, effort: Effort) -> Self:
        return type(self)(replace(self.config, budget_seconds=effort.budget_seconds, seconds=_SECONDS[effort.tier]))

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        kind = f"{_FORMAT[device.kind]}_n{self.config.size}"
        return (
            Metric(name=f"{kind}_rate", unit="FLOP/s", better=Better.HIGHER),
            Metric(name="steady", unit="ratio", better=Better.HIGHER),
            Metric(name="clock", unit="Hz", better=Better.HIGHER),
            Metric(name=f"{kind}_repeat", unit="", better=Better.EQUAL),
        )

    @classmethod
    def points_to(cls, metric: str) -> tuple[Defect, ...]:
        """A rate that is low throughout is slow arithmetic; one that falls, or a low clock, is power or cooling."""
        if metric.endswith("_rate"):
            return (Defect.COMPUTE, Defect.THERMAL)
        return (Defect.NUMERICS,) if metric.endswith("_repeat") else (Defect.THERMAL,)

    def expected_seconds(self, device: Device) -> float:
        del device
        return self.set_up_seconds + 1.1 * self.config.seconds

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        rate, steady, speed, repeat = (metric.name for metric in self.metrics(device))
        n = self.config.size
        work, watch = multiply(_FORMAT[device.kind], n, device), Stopwatch(device, clock)
        length = self.config.seconds / _MOST
        first = work().clone()
        calls = max(1, round(length / max(watch.seconds(work), 1e-6)))
        rates: list[float] = []
        clocks: list[float] = []
        readings = BenchmarkReadings(values={repeat: [1.0]})
        end = clock() + self.config.seconds
        while len(rates) < _LEAST or (clock() < end and len(rates) < 2 * _MOST):
            rates.append(2.0 * n**3 / watch.seconds(work, calls))
            try:
                clocks.append(_hertz(device))
            except (OSError, RuntimeError, ImportError) as error:  # no NVML, or a kernel that does not tell
                readings.problems[speed] = f"no clock to read: {str(error).splitlines()[0]}"
            readings.values[repeat].append(same_as(first, work()))
        quarter = len(rates) // 4
        readings.values[rate] = rates[len(rates) // 2 :]
        readings.values[steady] = [median(rates[-quarter:]) / median(rates[:quarter])]
        if speed not in readings.problems:
            readings.values[speed] = clocks[len(clocks) // 2 :]
        return readings


def _hertz(device: Device) -> float:
    """Clock of the SMs, or the mean over the processor's cores.

    Raises:
        OSError, RuntimeError, ImportError: no library reports the temperature and the power.
    """
    if device.kind == "cuda":
        import torch

        return torch.cuda.clock_rate(device.label) * 1e6
    told = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if not told:
        raise OSError("the kernel does not tell the processor's clock")
    return fmean(float(megahertz) for megahertz in told) * 1e6
