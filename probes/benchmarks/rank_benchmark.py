"""What benchmarks over the ranks of one machine share: NCCL between its GPUs, or gloo between host ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mainstay.probes.benchmarks.base import Benchmark, Clock, Device


class RankBenchmark(Benchmark):
    """NCCL with one rank a GPU where there are two GPUs or more; otherwise gloo over host ranks, under other names."""

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

    def where(self, device: Device) -> str:
        return "cuda" if backend_of(device) == "nccl" else "cpu"

    def world(self, device: Device) -> int:
        """How many ranks there are."""
        return device.count if backend_of(device) == "nccl" else self.config.host_ranks


def backend_of(device: Device) -> str:
    """NCCL where there are two GPUs or more, else gloo."""
    return "nccl" if device.kind == "cuda" and device.count > 1 else "gloo"


def size_name(size: int) -> str:
    """``64KiB``, ``256MiB``."""
    return f"{size >> 20}MiB" if size >= 1 << 20 else f"{size >> 10}KiB"


def timed(work: Callable[[], Any], where: str, budget: float, clock: Clock) -> list[float]:
    """Seconds of a call of ``work``, one value a repetition.

    A repetition takes about 10 ms, and there are 3 to 50 of them: every rank makes the same number.
    """
    import torch
    import torch.distributed as dist

    def once(calls: int) -> float:
        dist.barrier()
        begun = clock()
        for _ in range(calls):
            work()
        if where != "cpu":
            torch.cuda.synchronize()
        return (clock() - begun) / calls

    seconds = torch.tensor([once(3)], dtype=torch.float64, device=where)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    each = max(float(seconds), 1e-6)
    calls = max(1, round(0.01 / each))
    return [once(calls) for _ in range(min(50, max(3, round(budget / (calls * each)))))]


def slowest(answers: list[dict[str, Any]], name: str) -> list[float]:
    """Of each repetition of ``name``, the seconds of its slowest rank."""
    return [max(seconds) for seconds in zip(*(answer[name] for answer in answers), strict=True)]
