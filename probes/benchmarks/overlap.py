"""Arithmetic and a collective at the same time: what each costs alone, and how much of the shorter one hides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.gemm import multiply
from mainstay.probes.benchmarks.rank_benchmark import RankBenchmark, backend_of, slowest
from mainstay.probes.benchmarks.ranks import run_ranks
from mainstay.probes.benchmarks.result import Better, Metric

_LEAST, _MOST = 5, 50


class Overlap(RankBenchmark):
    """A chain of multiplies beside an all-reduce of ``mebibytes``, sized to take about as long.

    ``compute``, ``communicate`` and ``both`` are seconds of the slowest rank. ``hidden`` = (compute + communicate -
    both) / min(compute, communicate): 1 when the shorter costs nothing, 0 when they take turns; where they slow each
    other down so much that it would be below zero, the least value above zero is reported. NCCL's kernels and the
    multiplies share SMs; gloo shares cores, so the twin hides little and reports a low value.
    """

    name: ClassVar[str] = "overlap"
    catches: ClassVar[str] = "collectives that slow down, or are slowed down by, the arithmetic beside them"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_LINK, Defect.COMPUTE, Defect.HOST_CPU)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    gpu_sizes: ClassVar[Sizes] = {"size": 8192, "mebibytes": 256}
    exchange: ClassVar[bool] = False
    """All-to-all instead of all-reduce."""

    @dataclass(frozen=True, kw_only=True)
    class Config(RankBenchmark.Config):
        size: int = 512
        mebibytes: int = 8

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        size = f"{backend_of(device)}_n{self.config.size}_{self.config.mebibytes}MiB"
        times = (
            Metric(name=f"{what}_{size}", unit="s", better=Better.LOWER) for what in ("compute", "communicate", "both")
        )
        return (*times, Metric(name=f"hidden_{size}", unit="ratio", better=Better.HIGHER))

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        backend = backend_of(device)
        answers = run_ranks(self.world(device), backend, lambda rank: self._rank(rank, backend, clock))
        parts = [slowest(answers, part) for part in ("compute", "communicate", "both")]
        names = [metric.name for metric in self.metrics(device)]
        values = dict(zip(names, parts, strict=False))
        values[names[-1]] = [hidden(*seconds) for seconds in zip(*parts, strict=True)]
        return BenchmarkReadings(values=values)

    def _rank(self, rank: int, backend: str, clock: Clock) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        where = Device(kind="cuda", model="", index=rank) if backend == "nccl" else Device(kind="cpu", model="")
        work = multiply("bf16" if backend == "nccl" else "fp32", self.config.size, where)
        world = dist.get_world_size()
        tensor = torch.ones((self.config.mebibytes << 20) // 4 // world * world, device=where.label)

        def compute(calls: int) -> None:
            for _ in range(calls):
                work()

        received = torch.empty_like(tensor)

        def communicate() -> Any:
            if self.exchange:
                return dist.all_to_all_single(received, tensor, async_op=True)
            return dist.all_reduce(tensor, async_op=True)

        return _timed(compute, communicate, self.config.budget_seconds, where, clock)


class OverlapAllToAll(Overlap):
    """The same beside an all-to-all, as in a mixture of experts: every pair of ranks exchanges a part."""

    name: ClassVar[str] = "overlap_all_to_all"
    catches: ClassVar[str] = "an all-to-all that slows down, or is slowed down by, the arithmetic beside it"
    tier: ClassVar[SuiteTier] = SuiteTier.DEEP
    exchange: ClassVar[bool] = True


def hidden(compute: float, communicate: float, both: float) -> float:
    """Share of the shorter one that cost nothing; above zero, as every value is."""
    return max((compute + communicate - both) / min(compute, communicate), 1e-6)


def _timed(
    compute: Callable[[int], None], communicate: Callable[[], Any], budget: float, where: Device, clock: Clock
) -> dict[str, Any]:
    """Return the seconds alone and together, measured in turns, so that a drift affects all three."""
    import torch
    import torch.distributed as dist

    def once(calls: int, *, collective: bool) -> float:
        dist.barrier()
        begun = clock()
        waiting = communicate() if collective else None
        compute(calls)
        if waiting is not None:
            waiting.wait()
        if where.kind == "cuda":
            torch.cuda.synchronize()
        return clock() - begun

    once(1, collective=True)
    first = torch.tensor([once(1, collective=False), once(0, collective=True)], device=where.label, dtype=torch.float64)
    dist.all_reduce(first, op=dist.ReduceOp.MAX)
    one, together = (max(float(seconds), 1e-6) for seconds in first)
    calls = max(1, round(together / one))
    repeats = min(_MOST, max(_LEAST, round(budget / (3 * together))))
    taken: dict[str, list[float]] = {"compute": [], "communicate": [], "both": []}
    for _ in range(repeats):
        taken["compute"].append(once(calls, collective=False))
        taken["communicate"].append(once(0, collective=True))
        taken["both"].append(once(calls, collective=True))
    return taken
