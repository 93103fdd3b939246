"""The collectives beside all-reduce, over the ranks of one machine, with nccl-tests' bus bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.rank_benchmark import RankBenchmark, backend_of, size_name, slowest, timed
from mainstay.probes.benchmarks.ranks import run_ranks
from mainstay.probes.benchmarks.result import Better, Metric

if TYPE_CHECKING:
    import torch

Factor = Callable[[int], float]

OPERATIONS: dict[str, Factor] = {
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}
"""Operation -> bus bandwidth by algorithm bandwidth, of n ranks (nccl-tests, doc/PERFORMANCE.md)."""

_SIZES: dict[str, tuple[int, ...]] = {"gloo": (1 << 16, 1 << 22), "nccl": (1 << 20, 1 << 28)}
"""Bytes of the larger buffer of a rank: what is gathered, scattered or sent in all."""


class Collectives(RankBenchmark):
    """Each operation at two sizes.

    ``send_recv`` goes round a ring, every rank to the next at the same time. A repetition counts as long as its
    slowest rank, and each result is checked once.
    """

    name: ClassVar[str] = "collectives"
    catches: ClassVar[str] = "a bad link, switch plane or path that only one pattern of traffic uses"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_LINK, Defect.HOST_CPU)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    budget_share: ClassVar[float] = 0.5
    """Ten metrics: a shorter budget for each does."""

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        return tuple(
            Metric(name=_named(backend_of(device), name, size), unit="B/s", better=Better.HIGHER)
            for name in OPERATIONS
            for size in _SIZES[backend_of(device)]
        )

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        backend = backend_of(device)
        world = self.world(device)
        answers = run_ranks(world, backend, lambda rank: self._rank(rank, world, backend, clock))
        readings = BenchmarkReadings()
        for name, factor in OPERATIONS.items():
            for size in _SIZES[backend]:
                metric = _named(backend, name, size)
                readings.values[metric] = [factor(world) * size / s for s in slowest(answers, metric)]
        return readings

    def _rank(self, rank: int, world: int, backend: str, clock: Clock) -> dict[str, Any]:
        where = f"cuda:{rank}" if backend == "nccl" else "cpu"
        return {
            _named(backend, name, size): time_operation(
                name, size, where, rank, world, self.config.budget_seconds, clock
            )
            for name in OPERATIONS
            for size in _SIZES[backend]
        }


def _named(backend: str, operation: str, size: int) -> str:
    return f"{backend}_{operation}_{size_name(size)}"


def time_operation(  # noqa: PLR0917 - all of it describes one rank's part
    name: str, size: int, where: str, rank: int, world: int, budget: float, clock: Clock
) -> list[float]:
    """Seconds of an operation of ``OPERATIONS``, one value a repetition; its result is checked first."""
    work, check = _operation(name, size // 4 // world * world, where, rank, world)
    work()
    check()
    return timed(work, where, budget, clock)


def _operation(
    name: str, numbers: int, where: str, rank: int, world: int
) -> tuple[Callable[[], Any], Callable[[], None]]:
    """The work of one call, and a check of what the last call left: every rank sends its own number."""
    import torch
    import torch.distributed as dist

    whole = torch.full((numbers,), float(rank), device=where)
    part = torch.full((numbers // world,), float(rank), device=where)
    out, piece = torch.empty_like(whole), torch.empty_like(part)
    of_each = torch.arange(world, dtype=torch.float32, device=where).repeat_interleave(numbers // world)
    before = float((rank - 1) % world)

    def gather() -> None:
        gather_into(out, part)

    def scatter() -> None:
        _either("reduce_scatter_single", "reduce_scatter_tensor")(piece, whole)

    def broadcast() -> None:
        if rank == 0:
            out.zero_()
        dist.broadcast(out, 0)

    def ring() -> None:
        sends = [dist.P2POp(dist.isend, whole, (rank + 1) % world), dist.P2POp(dist.irecv, out, (rank - 1) % world)]
        for request in dist.batch_isend_irecv(sends):
            request.wait()

    works: dict[str, tuple[Callable[[], Any], torch.Tensor, torch.Tensor | float]] = {
        "all_gather": (gather, out, of_each),
        "reduce_scatter": (scatter, piece, float(sum(range(world)))),
        "all_to_all": (lambda: dist.all_to_all_single(out, whole), out, of_each),
        "broadcast": (broadcast, out, 0.0),
        "send_recv": (ring, out, before),
    }
    work, left, expected = works[name]

    def check() -> None:
        if not bool((left == expected).all()):
            raise RuntimeError(f"{name} over {world} ranks left wrong numbers with rank {rank}")

    return work, check


def gather_into(out: torch.Tensor, part: torch.Tensor) -> None:
    """All-gather of equal parts, one after another along the first axis of ``out``."""
    _either("all_gather_single", "all_gather_into_tensor")(out, part)


def _either(newer: str, older: str) -> Callable[..., Any]:
    """Torch 2.13 renamed two collectives."""
    import torch.distributed as dist

    found: Callable[..., Any] = getattr(dist, newer, None) or getattr(dist, older)
    return found
