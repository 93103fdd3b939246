"""All-reduce over the ranks of one machine: real processes, bus bandwidth as nccl-tests define it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric

_KIB = 1024
_SIZES: dict[str, tuple[int, ...]] = {
    "gloo": (4 * _KIB, 1024 * _KIB, 16384 * _KIB),
    "nccl": (4 * _KIB, 1 << 24, 1 << 28),
}
"""Bytes of the float32 tensor that every rank holds. The first is timed (latency), the others give bandwidth."""


class AllReduce(Benchmark):
    """NCCL with one rank a GPU where there are two GPUs or more; otherwise gloo over host ranks, under other names.

    busbw = bytes / seconds * 2 (n - 1) / n: what each link carries, for any number of ranks n. A repetition counts
    as long as its slowest rank.
    """

    name: ClassVar[str] = "allreduce"
    catches: ClassVar[str] = "a bad link between the GPUs of a node (NVLink, switch, PCIe), or a rank that lags"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_LINK, Defect.HOST_CPU)
    each_device: ClassVar[bool] = False

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        host_ranks: int = 2
        """Ranks where GPUs are fewer than two."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.host_ranks < 2:
                raise ValueError(f"host_ranks must be at least 2, not {self.host_ranks}")

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        backend = backend_of(device)
        small, *large = _SIZES[backend]
        latency = Metric(name=f"{backend}_latency_{size_name(small)}", unit="s", better=Better.LOWER)
        rates = (Metric(name=f"{backend}_busbw_{size_name(n)}", unit="B/s", better=Better.HIGHER) for n in large)
        return (latency, *rates)

    def where(self, device: Device) -> str:
        return "cuda" if backend_of(device) == "nccl" else "cpu"

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        from mainstay.probes.benchmarks.ranks import run_ranks

        backend = backend_of(device)
        world = device.count if backend == "nccl" else self.config.host_ranks
        answers = run_ranks(world, backend, lambda rank: self._rank(rank, backend, clock))
        factor = 2 * (world - 1) / world
        readings = BenchmarkReadings()
        for size, metric in zip(_SIZES[backend], self.metrics(device), strict=True):
            slowest = [max(seconds) for seconds in zip(*(a[str(size)] for a in answers), strict=True)]
            rate = metric.better is Better.HIGHER
            readings.values[metric.name] = [factor * size / s for s in slowest] if rate else slowest
        return readings

    def _rank(self, rank: int, backend: str, clock: Clock) -> dict[str, Any]:
        """One rank's seconds per call: size in bytes -> one value a repetition."""
        where = f"cuda:{rank}" if backend == "nccl" else "cpu"
        return {str(size): _timed(size, where, self.config.budget_seconds, clock) for size in _SIZES[backend]}


def backend_of(device: Device) -> str:
    """NCCL where there are two GPUs or more, else gloo."""
    return "nccl" if device.kind == "cuda" and device.count > 1 else "gloo"


def size_name(size: int) -> str:
    """``64KiB``, ``256MiB``."""
    return f"{size >> 20}MiB" if size >= 1 << 20 else f"{size >> 10}KiB"


def _timed(size: int, where: str, budget: float, clock: Clock) -> list[float]:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(size // 4, device=where)
    dist.all_reduce(tensor)
    if not bool((tensor == dist.get_world_size()).all()):
        raise RuntimeError(f"the sum of ones over {dist.get_world_size()} ranks is wrong")
    tensor.zero_()

    def once(calls: int) -> float:
        dist.barrier()
        begun = clock()
        for _ in range(calls):
            dist.all_reduce(tensor)
        if where != "cpu":
            torch.cuda.synchronize()
        return (clock() - begun) / calls

    calls, repeats = agreed(once, budget, where)
    return [once(calls) for _ in range(repeats)]


def agreed(once: Callable[[int], float], budget: float, where: str) -> tuple[int, int]:
    """Calls a repetition (about 10 ms) and repetitions (3 to 50): every rank must make the same number."""
    import torch
    import torch.distributed as dist

    seconds = torch.tensor([once(3)], dtype=torch.float64, device=where)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    each = max(float(seconds), 1e-6)
    calls = max(1, round(0.01 / each))
    return calls, min(50, max(3, round(budget / (calls * each))))
