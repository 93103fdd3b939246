"""All-reduce over the ranks of one machine: real processes, bus bandwidth as nccl-tests define it."""

from __future__ import annotations

from typing import Any, ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.rank_benchmark import RankBenchmark, backend_of, size_name, slowest, timed
from mainstay.probes.benchmarks.result import Better, Metric

_KIB = 1024
_SIZES: dict[str, tuple[int, ...]] = {
    "gloo": (4 * _KIB, 1024 * _KIB, 16384 * _KIB),
    "nccl": (4 * _KIB, 1 << 24, 1 << 28),
}
"""Bytes of the float32 tensor that every rank holds. The first is timed (latency), the others give bandwidth."""


class AllReduce(RankBenchmark):
    """All-reduce of three sizes.

    busbw = bytes / seconds * 2 (n - 1) / n: what each link carries, for any number of ranks n. A repetition counts
    as long as its slowest rank.
    """

    name: ClassVar[str] = "allreduce"
    catches: ClassVar[str] = "a bad link between the GPUs of a node (NVLink, switch, PCIe), or a rank that lags"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_LINK, Defect.HOST_CPU)

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        backend = backend_of(device)
        small, *large = _SIZES[backend]
        latency = Metric(name=f"{backend}_latency_{size_name(small)}", unit="s", better=Better.LOWER)
        rates = (Metric(name=f"{backend}_busbw_{size_name(n)}", unit="B/s", better=Better.HIGHER) for n in large)
        return (latency, *rates)

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        from mainstay.probes.benchmarks.ranks import run_ranks

        backend = backend_of(device)
        world = self.world(device)
        answers = run_ranks(world, backend, lambda rank: self._rank(rank, backend, clock))
        factor = 2 * (world - 1) / world
        readings = BenchmarkReadings()
        for size, metric in zip(_SIZES[backend], self.metrics(device), strict=True):
            seconds = slowest(answers, str(size))
            rate = metric.better is Better.HIGHER
            readings.values[metric.name] = [factor * size / s for s in seconds] if rate else seconds
        return readings

    def _rank(self, rank: int, backend: str, clock: Clock) -> dict[str, Any]:
        """One rank's seconds per call: size in bytes -> one value a repetition."""
        where = f"cuda:{rank}" if backend == "nccl" else "cpu"
        return {str(size): time_all_reduce(size, where, self.config.budget_seconds, clock) for size in _SIZES[backend]}


def time_all_reduce(size: int, where: str, budget: float, clock: Clock) -> list[float]:
    """Seconds of an all-reduce of ``size`` bytes, one value a repetition; the sum is checked first."""
    import torch
    import torch.distributed as dist

    tensor = torch.ones(size // 4, device=where)
    dist.all_reduce(tensor)
    if not bool((tensor == dist.get_world_size()).all()):
        raise RuntimeError(f"the sum of ones over {dist.get_world_size()} ranks is wrong")
    tensor.zero_()
    return timed(lambda: dist.all_reduce(tensor), where, budget, clock)
