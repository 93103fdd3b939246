"""Suites as data: which benchmarks, with which budgets, under which hard time-out.

Invariant: problem sizes depend on the kind of device only, never on the suite. A longer suite repeats more; so criteria
that were learned from one suite judge the others. Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from probes.benchmarks.allreduce import AllReduce
from probes.benchmarks.base import Benchmark, Device, Kind
from probes.benchmarks.copy import Copy
from probes.benchmarks.deterministic import Deterministic
from probes.benchmarks.disk import Disk
from probes.benchmarks.gemm import Gemm
from probes.benchmarks.launch import Launch
from probes.benchmarks.memory import Memory
from probes.benchmarks.result import Metric

BENCHMARKS: Mapping[str, type[Benchmark]] = {
    benchmark.name: benchmark for benchmark in (Gemm, Memory, Copy, Launch, AllReduce, Disk, Deterministic)
}
"""Every benchmark there is. A new one costs its module, its test and a place in this line."""

# Large enough to fill an H100 (a GEMM of n=8192 takes 1 to 50 ms, an array of 1 GiB is 20 times its L2 cache).
_SIZES: dict[Kind, tuple[Benchmark, ...]] = {
    "cpu": (
        Deterministic(Deterministic.Config()),
        Gemm(Gemm.Config()),
        Memory(Memory.Config()),
        Copy(Copy.Config()),
        Launch(Launch.Config()),
        AllReduce(AllReduce.Config()),
        Disk(Disk.Config()),
    ),
    "cuda": (
        Deterministic(Deterministic.Config(width=512, repeats=10)),
        Gemm(Gemm.Config(size=8192, narrow_size=8192)),
        Memory(Memory.Config(mebibytes=1024)),
        Copy(Copy.Config(mebibytes=256)),
        Launch(Launch.Config()),
        AllReduce(AllReduce.Config()),
        Disk(Disk.Config()),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A tier. The same benchmarks on every tier for now; what grows is how often each is repeated."""

    name: str
    about: str
    budget_seconds: float
    """Seconds of measuring per metric."""
    disk_repeats: int
    fingerprints: int
    """Repetitions of the deterministic computation: the chance to see a rare wrong bit grows with them."""
    timeout_seconds: float
    """Hard limit for one benchmark on one device: about ten times what it takes on a slow, busy machine."""
    expected_seconds: float
    """The whole suite on two processor cores."""

    def benchmarks(self, kind: Kind, *, directory: str = "") -> tuple[Benchmark, ...]:
        """The suite's benchmarks for a kind of device; ``directory`` is where the disk is tested."""
        return tuple(self._tuned(benchmark, directory) for benchmark in _SIZES[kind])

    def _tuned(self, benchmark: Benchmark, directory: str) -> Benchmark:
        changes: dict[str, Any] = {"budget_seconds": self.budget_seconds}
        if isinstance(benchmark, Disk):
            changes |= {"repeats": self.disk_repeats, "fsyncs": 10 * self.disk_repeats, "directory": directory}
        if isinstance(benchmark, Deterministic):
            changes |= {"repeats": self.fingerprints}
        return type(benchmark)(replace(benchmark.config, **changes))


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            name="quick",
            about="seconds: before every job",
            budget_seconds=0.2,
            disk_repeats=3,
            fingerprints=5,
            timeout_seconds=60.0,
            expected_seconds=12.0,
        ),
        Suite(
            name="standard",
            about="a minute: after a repair, or daily",
            budget_seconds=2.0,
            disk_repeats=10,
            fingerprints=100,
            timeout_seconds=300.0,
            expected_seconds=60.0,
        ),
        Suite(
            name="deep",
            about="minutes: idle or suspect machines",
            budget_seconds=10.0,
            disk_repeats=40,
            fingerprints=1000,
            timeout_seconds=1200.0,
            expected_seconds=300.0,
        ),
    )
}


class BenchmarkInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    catches: str
    metrics: tuple[Metric, ...]


class SuiteInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    about: str
    benchmarks: tuple[BenchmarkInfo, ...]
    expected_seconds: float


def describe(kind: Kind | None = None) -> tuple[SuiteInfo, ...]:
    """Every suite with its benchmarks and metrics: of one kind of device, or (None) of all kinds together."""
    kinds: tuple[Kind, ...] = (kind,) if kind else ("cpu", "cuda")
    return tuple(
        SuiteInfo(
            name=suite.name,
            about=suite.about,
            benchmarks=tuple(_about(suite, name, kinds) for name in _names(kinds)),
            expected_seconds=suite.expected_seconds,
        )
        for suite in SUITES.values()
    )


def _names(kinds: tuple[Kind, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(benchmark.name for kind in kinds for benchmark in _SIZES[kind]))


def _about(suite: Suite, name: str, kinds: tuple[Kind, ...]) -> BenchmarkInfo:
    metrics: dict[str, Metric] = {}
    for kind in kinds:
        device = Device(kind=kind, model="any", count=8)
        for benchmark in suite.benchmarks(kind):
            if benchmark.name == name:
                metrics |= {metric.name: metric for metric in benchmark.metrics(device)}
    return BenchmarkInfo(name=name, catches=BENCHMARKS[name].catches, metrics=tuple(metrics.values()))
