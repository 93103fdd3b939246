"""How long one load from the host's memory takes: a pointer chase through more than the last-level cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar, Final

import msgspec

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.numa import beside, processors_by_node
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

_LINE: Final = 64
"""Bytes of a cache line."""
_WALK: Final = 1 << 17
"""Loads of one call, about 10 ms: calling it costs nothing beside them."""
_WALKER: Final = "_obstack_allocated_p"


class MemoryLatency(Benchmark):
    """Seconds of a load whose address the load before it gave, from the memory of each NUMA node beside it.

    The chain visits every cache line of a buffer larger than the cache of one core, in random order: no prefetcher and
    no second load in flight hides the latency. glibc walks it: ``_obstack_allocated_p`` (``obstack.h``) follows a list
    of chunks, ``struct {limit, prev}``, and with the object NULL does nothing else. Small pages add misses of the TLB.
    """

    name: ClassVar[str] = "memory_latency"
    catches: ClassVar[str] = "memory that answers late: a slow DIMM, a wrong memory clock, or another user of it"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.HOST_MEMORY,)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    each_device: ClassVar[bool] = False
    place: ClassVar[str] = "host"
    set_up_seconds: ClassVar[float] = 3.0

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        threads: int = 1
        mebibytes: int = 512

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        return tuple(
            Metric(name=self._metric(node), unit="s", better=Better.LOWER) for node in range(device.numa_nodes)
        )

    def _metric(self, node: int) -> str:
        return f"latency_numa{node}_{self.config.mebibytes}MiB"

    def supported(self, device: Device) -> tuple[bool, str]:
        del device
        return hasattr(ctypes.CDLL(None), _WALKER), "it needs glibc, which walks the chain"

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        watch = Stopwatch(msgspec.structs.replace(device, kind="cpu", index=None), clock)
        readings = BenchmarkReadings()
        for node, near in enumerate([*processors_by_node().values()][: device.numa_nodes]):
            with beside(near):
                walk, loads = chase(self.config.mebibytes << 20)
                seconds = watch.repeat(walk, self.config.budget_seconds)
            readings.values[self._metric(node)] = [s / loads for s in seconds]
        return readings


def chase(size: int) -> tuple[Callable[[], None], int]:
    """A walk over the next part of a random chain through ``size`` bytes, and how many loads one walk makes."""
    import numpy as np

    lines = size // _LINE
    loads = min(_WALK, lines)
    chunks = np.zeros((lines, _LINE // 8), np.uint64)  # struct _obstack_chunk {char *limit; chunk *prev;} a line
    order = np.random.default_rng(0).permutation(lines)
    places = chunks.ctypes.data + order.astype(np.uint64) * np.uint64(_LINE)
    chunks[order[:-1], 1] = places[1:]
    chunks[order[loads - 1 :: loads], 1] = 0  # where a walk ends
    firsts = cycle(places[: lines // loads * loads : loads].tolist())
    obstack = (ctypes.c_void_p * 16)()  # struct obstack {long chunk_size; chunk *chunk; ...}
    follow = ctypes.CDLL(None)[_WALKER]
    follow.argtypes = (ctypes.c_void_p, ctypes.c_void_p)

    def walk(_keep: object = chunks) -> None:
        obstack[1] = next(firsts)
        follow(obstack, None)

    return walk, loads
