"""Suites as data: which benchmarks, with which budgets, under which hard time-out.

Invariant: problem sizes depend on the kind of device only, never on the suite. A longer suite has more benchmarks and
repeats more; so criteria that were learned from one suite judge the others. Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mainstay.probes.benchmarks.allreduce import AllReduce
from mainstay.probes.benchmarks.base import Benchmark, Device, Effort, Kind, SuiteTier
from mainstay.probes.benchmarks.burn import Burn
from mainstay.probes.benchmarks.collectives import Collectives
from mainstay.probes.benchmarks.copy import Copy
from mainstay.probes.benchmarks.dcgm import Dcgm, DcgmDeep
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.deterministic import Deterministic
from mainstay.probes.benchmarks.disk import Disk
from mainstay.probes.benchmarks.expert_parallel import ExpertParallel
from mainstay.probes.benchmarks.gemm import Gemm
from mainstay.probes.benchmarks.host_memory import HostMemory
from mainstay.probes.benchmarks.launch import Launch
from mainstay.probes.benchmarks.layer_gemm import LayerGemm
from mainstay.probes.benchmarks.memory import Memory
from mainstay.probes.benchmarks.memory_latency import MemoryLatency
from mainstay.probes.benchmarks.models import ModelBert, ModelLlama, ModelLstm, ModelResnet
from mainstay.probes.benchmarks.nccl_tests import NcclTests
from mainstay.probes.benchmarks.numa_copy import NumaCopy
from mainstay.probes.benchmarks.nvbandwidth import NvBandwidth
from mainstay.probes.benchmarks.overlap import Overlap, OverlapAllToAll
from mainstay.probes.benchmarks.peer import Peer
from mainstay.probes.benchmarks.perftest import Perftest
from mainstay.probes.benchmarks.result import Metric
from mainstay.probes.benchmarks.sharded_matmul import ShardedMatmul
from mainstay.probes.benchmarks.tcp import Tcp
from mainstay.probes.benchmarks.train import Train, TrainCompiled

BENCHMARKS: Mapping[str, type[Benchmark]] = {
    benchmark.name: benchmark
    for benchmark in (
        Deterministic,
        Gemm,
        LayerGemm,
        Memory,
        HostMemory,
        MemoryLatency,
        Copy,
        NumaCopy,
        Launch,
        AllReduce,
        Collectives,
        Peer,
        Overlap,
        OverlapAllToAll,
        ShardedMatmul,
        Tcp,
        Disk,
        Train,
        TrainCompiled,
        ModelLlama,
        ModelBert,
        ModelResnet,
        ModelLstm,
        ExpertParallel,
        NvBandwidth,
        NcclTests,
        Perftest,
        Burn,
        Dcgm,
        DcgmDeep,
    )
}
"""Every benchmark there is, in the order in which a suite runs them. A new one costs its module, its test and a word
here."""

TYPICAL: Mapping[Kind, Device] = {
    "cpu": Device(kind="cpu", model="any", count=2),
    "cuda": Device(kind="cuda", model="any", count=8, numa_nodes=2),
}
"""The machines that stated times are of: two processor cores, eight GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A tier: the benchmarks that belong to it, and how often each is repeated."""

    name: str
    about: str
    tier: SuiteTier
    budget_seconds: float
    """Seconds of measuring per metric."""
    timeout_seconds: float
    """Hard limit for one benchmark on one device: about ten times what it takes on a slow, busy machine."""

    def benchmarks(self, kind: Kind, *, directory: str = "", only: Sequence[str] = ()) -> tuple[Benchmark, ...]:
        """The suite's benchmarks for a kind of device, in the order in which they run.

        Args:
            kind: of device.
            directory: where the disk is tested.
            only: names, a part of the suite; empty: all of it.

        Raises:
            ValueError: ``only`` names what the suite does not have.
        """
        members = {name: made for name, made in BENCHMARKS.items() if made.tier <= self.tier}
        if strangers := sorted(set(only) - members.keys()):
            raise ValueError(f"suite {self.name} has no benchmark {', '.join(strangers)}: it has {', '.join(members)}")
        effort = Effort(tier=self.tier, budget_seconds=self.budget_seconds, directory=directory)
        return tuple(made.sized(kind).tuned(effort) for name, made in members.items() if not only or name in only)

    def expected_seconds(self, device: Device, *, only: Sequence[str] = ()) -> float:
        """Sum of the stated times of its benchmarks on a machine (``device.index`` is not looked at)."""
        return sum(expected_seconds(benchmark, device) for benchmark in self.benchmarks(device.kind, only=only))


def expected_seconds(benchmark: Benchmark, device: Device) -> float:
    """Stated time of a benchmark on all GPUs of a machine."""
    turns = device.count if device.kind == "cuda" and benchmark.each_device and not benchmark.together else 1
    return turns * benchmark.expected_seconds(device)


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            name="quick",
            about="seconds: before every job",
            tier=SuiteTier.QUICK,
            budget_seconds=0.2,
            timeout_seconds=60.0,
        ),
        Suite(
            name="standard",
            about="minutes: after a repair, or daily",
            tier=SuiteTier.STANDARD,
            budget_seconds=1.0,
            timeout_seconds=300.0,
        ),
        Suite(
            name="deep",
            about="the better part of an hour: idle or suspect machines",
            tier=SuiteTier.DEEP,
            budget_seconds=5.0,
            timeout_seconds=1200.0,
        ),
    )
}


class BenchmarkInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    catches: str
    defects: tuple[Defect, ...]
    """The one that it finds best first."""
    metrics: tuple[Metric, ...]
    expected_seconds: float
    """Stated, on the slower of the typical machines: two cores, or eight GPUs."""
    optional: bool = False
    """Runs where it can; a result of the whole suite need not hold it."""
    exclusive: bool = True
    """Runs only on a node without running jobs."""


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
            benchmarks=tuple(_about(suite, name, kinds) for name in _names(suite)),
            expected_seconds=max(suite.expected_seconds(TYPICAL[one]) for one in kinds),
        )
        for suite in SUITES.values()
    )


def _names(suite: Suite) -> tuple[str, ...]:
    return tuple(benchmark.name for benchmark in suite.benchmarks("cpu"))


def _about(suite: Suite, name: str, kinds: tuple[Kind, ...]) -> BenchmarkInfo:
    made = {kind: suite.benchmarks(kind, only=(name,))[0] for kind in kinds}
    metrics = {metric.name: metric for kind, one in made.items() for metric in one.metrics(TYPICAL[kind])}
    return BenchmarkInfo(
        name=name,
        catches=BENCHMARKS[name].catches,
        defects=BENCHMARKS[name].defects,
        metrics=tuple(metrics.values()),
        expected_seconds=max(expected_seconds(one, TYPICAL[kind]) for kind, one in made.items()),
        optional=BENCHMARKS[name].optional,
        exclusive=BENCHMARKS[name].exclusive,
    )
