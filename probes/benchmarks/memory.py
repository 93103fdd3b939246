"""Memory bandwidth after McCalpin's STREAM: copy, scale, add, triad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Sizes
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

if TYPE_CHECKING:
    import torch

_MOVED = {"copy": 2, "scale": 2, "add": 3, "triad": 3}
"""Arrays read or written per kernel, as STREAM counts them (without the write-allocate)."""


class Memory(Benchmark):
    """Three float64 arrays of ``mebibytes`` each. STREAM wants each at least four times the last cache."""

    name: ClassVar[str] = "memory"
    catches: ClassVar[str] = "slow memory: a missing or slow DIMM, HBM with remapped rows, wrong NUMA placement"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_MEMORY, Defect.HOST_MEMORY)
    together: ClassVar[bool] = True
    gpu_sizes: ClassVar[Sizes] = {"mebibytes": 1024}
    """1 GiB is twenty times an H100's L2 cache."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        mebibytes: int = 256

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        return tuple(Metric(name=self._metric(kernel), unit="B/s", better=Better.HIGHER) for kernel in _MOVED)

    def _metric(self, kernel: str) -> str:
        return f"{kernel}_{self.config.mebibytes}MiB"

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        import torch

        watch = Stopwatch(device, clock)
        size = self.config.mebibytes << 20
        a, b, c = (torch.full((size // 8,), float(i), dtype=torch.float64, device=device.label) for i in (1, 2, 3))
        readings = BenchmarkReadings()
        for kernel, (work, target, expected) in _kernels(a, b, c).items():
            seconds = watch.repeat(work, self.config.budget_seconds)
            readings.values[self._metric(kernel)] = [_MOVED[kernel] * size / s for s in seconds]
            if not bool((target == expected).all()):
                raise RuntimeError(f"{kernel} left wrong numbers in memory: expected {expected} everywhere")
        return readings


def _kernels(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> dict[str, tuple[Callable[[], torch.Tensor], torch.Tensor, float]]:
    """Kernel -> (work, what it writes, the value it must leave), run in this order from a = 1."""
    import torch

    return {
        "copy": (lambda: c.copy_(a), c, 1.0),
        "scale": (lambda: torch.mul(c, 3.0, out=b), b, 3.0),
        "add": (lambda: torch.add(a, b, out=c), c, 4.0),
        "triad": (lambda: torch.add(b, c, alpha=3.0, out=a), a, 15.0),
    }
