"""Copies between a device and the memory of every NUMA node: slow near memory points to a wrong placement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.numa import beside, processors_by_node
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

if TYPE_CHECKING:
    import torch

_ROUTES = {"cpu": ("memcpy",), "cuda": ("h2d", "d2h")}


class NumaCopy(Benchmark):
    """Bytes per second between the device and pinned memory that was first touched beside each memory node.

    The twin copies from every node's memory into that of the first: on a machine with one node a plain ``memcpy``.
    """

    name: ClassVar[str] = "numa_copy"
    catches: ClassVar[str] = "a GPU, switch or memory behind the wrong socket, and a slow link between sockets"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.HOST_LINK, Defect.HOST_MEMORY)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    gpu_sizes: ClassVar[Sizes] = {"mebibytes": 256}

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        threads: int = 1
        mebibytes: int = 64

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        return tuple(
            Metric(name=self._metric(route, node), unit="B/s", better=Better.HIGHER)
            for node in range(device.numa_nodes)
            for route in _ROUTES[device.kind]
        )

    def _metric(self, route: str, place: int) -> str:
        return f"{route}_numa{place}_{self.config.mebibytes}MiB"

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        watch = Stopwatch(device, clock)
        size = self.config.mebibytes << 20
        readings = BenchmarkReadings()
        nodes = list(processors_by_node().values())
        home = nodes[0]
        for place, near in enumerate(nodes[: device.numa_nodes]):
            with beside(near):
                host = _touched(size, pinned=device.kind == "cuda")
            with beside(near if device.kind == "cuda" else home):
                for route in _ROUTES[device.kind]:
                    far = _touched(size) if device.kind == "cpu" else host.to(device.label)
                    source, target = (far, host) if route == "d2h" else (host, far)
                    work = partial(target.copy_, source, non_blocking=True)
                    seconds = watch.repeat(work, self.config.budget_seconds)
                    readings.values[self._metric(route, place)] = [size / s for s in seconds]
        return readings


def _touched(size: int, *, pinned: bool = False) -> torch.Tensor:
    """Bytes of which every page was written by the processors that run this."""
    import torch

    return torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(7)
