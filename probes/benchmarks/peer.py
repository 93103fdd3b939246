"""Copies from every GPU to every other: the matrix that shows one bad link, one bad GPU or one bad switch plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any, ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.rank_benchmark import RankBenchmark, backend_of
from mainstay.probes.benchmarks.ranks import run_ranks
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

_LEAST, _MOST = 3, 50


class Peer(RankBenchmark):
    """Bytes per second of one copy at a time, ``i`` to ``j``, for all ordered pairs; the bytes that arrive are checked.

    ``access`` says per pair whether the driver grants direct access (1) or copies through the host (0). With fewer than
    two GPUs: sends between host ranks over gloo, under other names.
    """

    name: ClassVar[str] = "peer"
    catches: ClassVar[str] = "one bad NVLink, switch plane or PCIe path between two GPUs of a node"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_LINK, Defect.HOST_LINK)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    budget_share: ClassVar[float] = 0.1
    """Dozens of pairs: a tenth of the budget for each is still dozens of copies."""
    gpu_sizes: ClassVar[Sizes] = {"mebibytes": 256}

    @dataclass(frozen=True, kw_only=True)
    class Config(RankBenchmark.Config):
        mebibytes: int = 16

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        direct = backend_of(device) == "nccl"
        rates = tuple(
            Metric(name=self._metric(device, i, j), unit="B/s", better=Better.HIGHER) for i, j in self._pairs(device)
        )
        return (*rates, Metric(name="access", unit="", better=Better.EQUAL)) if direct else rates

    def expected_seconds(self, device: Device) -> float:
        each = self.config.budget_seconds + 0.05
        return self.set_up_seconds + each * sum(1 for _ in self._pairs(device))

    def _pairs(self, device: Device) -> Iterator[tuple[int, int]]:
        return permutations(range(self.world(device)), 2)

    def _metric(self, device: Device, source: int, target: int) -> str:
        kind = "gpu" if backend_of(device) == "nccl" else "gloo"
        return f"{kind}{source}_to_{target}_{self.config.mebibytes}MiB"

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        if backend_of(device) == "nccl":
            return self._direct(device, clock)
        answers = run_ranks(self.config.host_ranks, "gloo", lambda rank: self._rank(rank, device, clock))
        readings = BenchmarkReadings()
        for i, j in self._pairs(device):
            slower = zip(answers[i][f"{i}>{j}"], answers[j][f"{i}>{j}"], strict=True)
            readings.values[self._metric(device, i, j)] = [self._size / max(pair) for pair in slower]
        return readings

    @property
    def _size(self) -> int:
        return self.config.mebibytes << 20

    def _direct(self, device: Device, clock: Clock) -> BenchmarkReadings:
        import torch

        readings = BenchmarkReadings()
        access: list[int] = []
        watch = Stopwatch(device, _settled(clock))
        for i, j in self._pairs(device):
            source = torch.arange(self._size // 4, dtype=torch.int32, device=f"cuda:{i}")
            target = torch.zeros_like(source, device=f"cuda:{j}")
            seconds = watch.repeat(partial(target.copy_, source, non_blocking=True), self.config.budget_seconds)
            readings.values[self._metric(device, i, j)] = [self._size / s for s in seconds]
            access.append(int(torch.cuda.can_device_access_peer(i, j)))
            if not bool((target.cpu() == source.cpu()).all()):
                raise RuntimeError(f"GPU {i} to GPU {j}: other bytes arrived than were sent")
        readings.values["access"] = [float(int("".join(map(str, access[:48])), 2))]
        return readings

    def _rank(self, rank: int, device: Device, clock: Clock) -> dict[str, Any]:
        return {f"{i}>{j}": self._sent(rank, i, j, clock) for i, j in self._pairs(device)}

    def _sent(self, rank: int, source: int, target: int, clock: Clock) -> list[float]:
        """Seconds of each send from ``source`` to ``target``, with an answer of one byte; all ranks take part."""
        import torch
        import torch.distributed as dist

        data = torch.full((self._size,), source + 1, dtype=torch.uint8)
        word = torch.zeros(1, dtype=torch.uint8)

        def once() -> float:
            dist.barrier()
            begun = clock()
            if rank == source:
                dist.send(data, target)
                dist.recv(word, target)
            elif rank == target:
                dist.recv(data, source)
                dist.send(word, source)
            return clock() - begun

        first = torch.tensor([once()], dtype=torch.float64)
        dist.all_reduce(first, op=dist.ReduceOp.MAX)
        repeats = min(_MOST, max(_LEAST, round(self.config.budget_seconds / max(float(first), 1e-6))))
        seconds = [once() for _ in range(repeats)]
        if rank == target and not bool((data == source + 1).all()):
            raise RuntimeError(f"rank {source} to rank {target}: other bytes arrived than were sent")
        return seconds


def _settled(clock: Clock) -> Clock:
    """A clock that waits for every GPU before it is read: a copy between two is queued on either."""

    def read() -> float:
        import torch

        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
        return clock()

    return read
