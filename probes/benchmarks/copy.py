"""Copies between host and device; on a machine without GPUs the stated twin: host memory to host memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Sizes
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

if TYPE_CHECKING:
    import torch

_ROUTES = {
    "cpu": ("memcpy",),
    "cuda": ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable"),
}


class Copy(Benchmark):
    """Bytes per second one way. The twin ``memcpy`` says nothing of a PCIe link and does not share its names."""

    name: ClassVar[str] = "copy"
    catches: ClassVar[str] = "a PCIe link that trained down in width or generation; slow host memory beside it"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.HOST_LINK, Defect.HOST_MEMORY)
    gpu_sizes: ClassVar[Sizes] = {"mebibytes": 256}

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        mebibytes: int = 64

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        return tuple(
            Metric(name=self._metric(route), unit="B/s", better=Better.HIGHER) for route in _ROUTES[device.kind]
        )

    def _metric(self, route: str) -> str:
        return f"{route}_{self.config.mebibytes}MiB"

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        watch = Stopwatch(device, clock)
        size = self.config.mebibytes << 20
        readings = BenchmarkReadings()
        for route in _ROUTES[device.kind]:
            source, target = _buffers(route, size, device)
            seconds = watch.repeat(partial(target.copy_, source, non_blocking=True), self.config.budget_seconds)
            readings.values[self._metric(route)] = [size / s for s in seconds]
            if not bool((target.cpu() == source.cpu()).all()):
                raise RuntimeError(f"{route} copied wrong bytes")
        return readings


def _buffers(route: str, size: int, device: Device) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target of ``size`` bytes; the source holds a pattern that a shifted copy would not match."""
    import torch

    pattern = torch.arange(size, dtype=torch.int32).remainder_(251).to(torch.uint8)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=route.endswith("pinned"))
    if route == "memcpy":
        return pattern, host
    if route.startswith("h2d"):
        return host.copy_(pattern), torch.empty(size, dtype=torch.uint8, device=device.label)
    return pattern.to(device.label), host
