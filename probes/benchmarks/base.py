"""The contract of a benchmark, on one page.

A benchmark is a class with a nested ``Config`` (sizes and a time budget: data, JSON both ways) that says, without
importing torch, what it is called, which defect it catches, which metrics it will report for a device and whether it
can run at all. Only ``measure`` touches torch, in a process of its own that may hang or die without harm.

Invariant: the metrics that ``run`` reports are exactly those that ``metrics`` declares, in that order. One that could
not be measured has no values and a reason; a value that is not finite and positive is such a case, never a number.

To add one: a module here with the class, a test beside the others, a word in ``suites.BENCHMARKS``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar, Literal, Self

import msgspec

from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, Metric, MetricValues

Clock = Callable[[], float]
"""Seconds that only ever grow; injected, so that a test can hold it."""

Kind = Literal["cpu", "cuda"]
Sizes = Mapping[str, int]
"""Fields of a ``Config``."""


class SuiteTier(IntEnum):
    """How thorough a suite is: seconds, minutes, the better part of an hour."""

    QUICK = 0
    STANDARD = 1
    DEEP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a suite asks of its benchmarks. It changes how often they repeat, never what they measure."""

    tier: SuiteTier = SuiteTier.QUICK
    budget_seconds: float = 0.2
    """Seconds of measuring per metric."""
    directory: str = ""
    """Where the disk is tested; empty: the directory for temporary files."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark runs on."""

    kind: Kind
    model: str
    count: int = 1
    """How many of these this host has: GPUs, or the processor cores that this process may use."""
    index: int | None = None
    """Which GPU; None means all of them, or the host."""
    numa_nodes: int = 1
    """Memory nodes of the host."""
    software: str = ""

    @property
    def label(self) -> str:
        """Torch's name of the device: ``cpu``, ``cuda`` or ``cuda:3``."""
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


@dataclass(slots=True)
class BenchmarkReadings:
    """What ``measure`` hands back."""

    values: dict[str, list[float]] = field(default_factory=dict)
    """Metric name -> one value a repetition."""
    problems: dict[str, str] = field(default_factory=dict)
    """Metric name -> why it could not be measured."""
    digest: str | None = None


class Benchmark(ABC):
    """One micro-benchmark. The constructor only stores; everything static is a class attribute."""

    name: ClassVar[str]
    catches: ClassVar[str]
    """What this benchmark finds, or finds best, in words."""
    defects: ClassVar[tuple[Defect, ...]]
    """The same as classes, the one it finds best first: what a failure is put down to."""
    tier: ClassVar[SuiteTier] = SuiteTier.QUICK
    """The least thorough suite that it belongs to; it belongs to every longer one too."""
    each_device: ClassVar[bool] = True
    """Run once for every GPU of the machine; False: once for all of them, or for the host."""
    together: ClassVar[bool] = False
    """Run on all GPUs at once: it loads nothing that they share (links, processor, disk)."""
    optional: ClassVar[bool] = False
    """Needs what a machine need not have (a program, an RDMA port): where it cannot run, a suite leaves it out and says
    so, unless it is asked for by name."""
    exclusive: ClassVar[bool] = True
    """Needs a node without running jobs: it loads what a job uses (GPUs, memory, links, disks), which slows the job and
    falsifies the measurement."""
    budget_share: ClassVar[float] = 1.0
    """How much of an effort's budget each of its metrics gets: less where they are many, more where a step is long."""
    place: ClassVar[str] = ""
    """What the result calls the device; empty: torch's name of it."""
    set_up_seconds: ClassVar[float] = 0.5
    """What one run takes beside measuring: allocation, warm-up, a context on the GPU."""
    gpu_sizes: ClassVar[Sizes] = {}
    """What is larger on a GPU than by default."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        budget_seconds: float = 0.3
        """Time to spend measuring one metric; warm-up comes on top."""
        threads: int = 0
        """Threads that torch may use on the processor; 0: every core that this process may use."""

        def __post_init__(self) -> None:
            for name, value in vars(self).items():
                if isinstance(value, int | float) and (value < 0 or not math.isfinite(value)):
                    raise ValueError(f"{name} must be a finite number of at least 0, not {value}")

    config: Config

    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def build(cls, config: dict[str, Any]) -> Self:
        """From JSON.

        Raises:
            ValueError: names the field that is wrong (msgspec.ValidationError is one).
        """
        return cls(msgspec.convert(config, cls.Config))

    @classmethod
    def sized(cls, kind: Kind) -> Self:
        """With the problem sizes that suit a kind of device: the same in every suite, so that criteria judge all."""
        return cls.build(dict(cls.gpu_sizes) if kind == "cuda" else {})

    def tuned(self, effort: Effort) -> Self:
        """For a suite: what is timed repeats until the effort's budget is spent."""
        return type(self)(replace(self.config, budget_seconds=effort.budget_seconds * self.budget_share))

    @abstractmethod
    def metrics(self, device: Device) -> tuple[Metric, ...]:
        """What will be reported on such a device, in this order."""

    @classmethod
    def points_to(cls, metric: str) -> tuple[Defect, ...]:
        """What a failure of ``metric`` points to, best first: all that the benchmark finds, unless metrics differ."""
        del metric
        return cls.defects

    def where(self, device: Device) -> str:
        """What the result calls the device."""
        return self.place or device.label

    def expected_seconds(self, device: Device) -> float:
        """How long one run on one such device takes, as stated beforehand: set-up, then every metric's budget."""
        return self.set_up_seconds + 1.25 * self.config.budget_seconds * len(self.metrics(device))

    def supported(self, device: Device) -> tuple[bool, str]:
        """Whether it can run here and, if not, the reason. A cheap look, never a measurement."""
        del device
        return True, ""

    @abstractmethod
    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        """Do the work. Every error propagates: the process around it is the boundary."""

    def run(self, device: Device, clock: Clock) -> BenchmarkResult:
        """Measure and report: ``ok``, or ``unsupported`` with the reason."""
        able, reason = self.supported(device)
        if not able:
            return self.failed(device, BenchmarkState.UNSUPPORTED, reason)
        begun = clock()
        readings = self.measure(device, clock)
        return self._report(device, readings, clock() - begun)

    def failed(self, device: Device, state: BenchmarkState, reason: str, seconds: float = 0.0) -> BenchmarkResult:
        """The result of a benchmark that gave none: every declared metric is there, without values."""
        return BenchmarkResult(
            benchmark=self.name,
            state=state,
            error=reason[:500],
            seconds=seconds,
            device=self.where(device),
            metrics=tuple(_valued(metric, ()) for metric in self.metrics(device)),
        )

    def _report(self, device: Device, readings: BenchmarkReadings, seconds: float) -> BenchmarkResult:
        declared = self.metrics(device)
        surplus = (readings.values.keys() | readings.problems.keys()) - {metric.name for metric in declared}
        assert not surplus, f"{self.name} reports metrics that it does not declare: {sorted(surplus)}"
        problems = dict(readings.problems)
        values: list[MetricValues] = []
        for metric in declared:
            taken = tuple(float(v) for v in readings.values.get(metric.name, ()))
            if not taken or not all(_plausible(v, metric.better) for v in taken):
                problems.setdefault(metric.name, f"measured {list(taken)[:3]}" if taken else "not measured")
                taken = ()
            values.append(_valued(metric, taken))
        return BenchmarkResult(
            benchmark=self.name,
            state=BenchmarkState.OK,
            error="; ".join(f"{name}: {why}" for name, why in problems.items())[:500] or None,
            seconds=seconds,
            device=self.where(device),
            metrics=tuple(values),
            digest=readings.digest,
        )


def _valued(metric: Metric, values: tuple[float, ...]) -> MetricValues:
    return MetricValues(name=metric.name, unit=metric.unit, better=metric.better, values=values)


def _plausible(value: float, better: Better) -> bool:
    return math.isfinite(value) and (value > 0 or better is Better.EQUAL)
