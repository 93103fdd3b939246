"""A matrix product over several ranks, sharded as in tensor parallelism: the product and what must be exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.collectives import gather_into
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.rank_benchmark import RankBenchmark, backend_of, slowest, timed
from mainstay.probes.benchmarks.ranks import run_ranks
from mainstay.probes.benchmarks.result import Better, Metric

_WAYS = ("local", "all_gather", "all_reduce")


class ShardedMatmul(RankBenchmark):
    """n x n times n x n over the ranks, in seconds of the slowest rank (Shoeybi et al. 2019, section 3).

    ``local``: a rank's share of the columns alone. ``all_gather``: the same, then every rank gets all columns.
    ``all_reduce``: a rank's share of the rows, then the partial products are added.
    """

    name: ClassVar[str] = "sharded_matmul"
    catches: ClassVar[str] = "tensor parallelism slowed down by one GPU's arithmetic or one link"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_LINK, Defect.COMPUTE)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    gpu_sizes: ClassVar[Sizes] = {"size": 12288}

    @dataclass(frozen=True, kw_only=True)
    class Config(RankBenchmark.Config):
        size: int = 512

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        size = f"{backend_of(device)}_n{self._size(device)}"
        return tuple(Metric(name=f"{way}_{size}", unit="s", better=Better.LOWER) for way in _WAYS)

    def _size(self, device: Device) -> int:
        """The largest size up to ``size`` that the ranks share evenly."""
        world = self.world(device)
        return max(world, self.config.size // world * world)

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        backend, world, n = backend_of(device), self.world(device), self._size(device)
        answers = run_ranks(world, backend, lambda rank: self._rank(rank, world, n, backend, clock))
        names = [metric.name for metric in self.metrics(device)]
        return BenchmarkReadings(values={name: slowest(answers, way) for name, way in zip(names, _WAYS, strict=True)})

    def _rank(self, rank: int, world: int, n: int, backend: str, clock: Clock) -> dict[str, Any]:
        where = f"cuda:{rank}" if backend == "nccl" else "cpu"
        seconds = {}
        for way, work in _works(n, world, where).items():
            product = work()
            if not bool((product == n).all()):  # ones times ones, and all partial sums are exact
                raise RuntimeError(f"{way} over {world} ranks left a wrong product with rank {rank}")
            seconds[way] = timed(work, where, self.config.budget_seconds, clock)
        return seconds


def _works(n: int, world: int, where: str) -> dict[str, Callable[[], Any]]:
    import torch
    import torch.distributed as dist

    dtype = torch.bfloat16 if where != "cpu" else torch.float32
    share = n // world
    left, columns = (torch.ones(size, dtype=dtype, device=where) for size in ((n, n), (n, share)))
    some, rows = (torch.ones(size, dtype=dtype, device=where) for size in ((n, share), (share, n)))
    parts = torch.empty((world * n, share), dtype=dtype, device=where)

    def local() -> torch.Tensor:
        return left @ columns

    def gather() -> torch.Tensor:
        gather_into(parts, left @ columns)
        return parts

    def reduce() -> torch.Tensor:
        product = some @ rows
        dist.all_reduce(product)
        return product

    return {"local": local, "all_gather": gather, "all_reduce": reduce}
