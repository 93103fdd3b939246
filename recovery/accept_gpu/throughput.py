"""The speed of each device, by the benchmarks that ``mainstay validate`` runs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from typing import ClassVar

from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better
from mainstay.probes.benchmarks.runner import run_suite
from mainstay.probes.benchmarks.suites import SUITES
from mainstay.recovery.accept_gpu.contract import AcceptanceCheck, CheckFigure, CheckResult, CheckSettings

_BENCHMARKS = ("gemm", "memory", "copy", "allreduce", "peer")
_TIMEOUT_SECONDS = 120.0
_BUDGET_RATIO = 0.1
"""Of the seconds that a check repeats things: what each metric gets."""


class ThroughputCheck(AcceptanceCheck):
    """Matrix products, memory, host copies, all-reduce, and copies between pairs of GPUs. No value has a limit."""

    name: ClassVar[str] = "throughput"
    proves: ClassVar[str] = "benchmarks run on every device"
    deadline_seconds: ClassVar[float] = 600.0

    def run(self, settings: CheckSettings) -> CheckResult:
        suite = dataclasses.replace(
            SUITES["standard"], budget_seconds=settings.seconds * _BUDGET_RATIO, timeout_seconds=_TIMEOUT_SECONDS
        )
        found = run_suite(suite, device=settings.device.kind, only=_BENCHMARKS)
        bad = [
            f"{one.benchmark} on {one.device}: {one.error or one.state.value}"
            for one in found.benchmarks
            if one.state not in {BenchmarkState.OK, BenchmarkState.UNSUPPORTED}
        ]
        figures = [figure for one in found.benchmarks for figure in _figures(one)]
        unable = {
            f"{one.benchmark} on {one.device}": one.error or "unsupported"
            for one in found.benchmarks
            if one.state is BenchmarkState.UNSUPPORTED
        }
        bad += [found.error] if found.error else []
        ran = {one.benchmark for one in found.benchmarks if one.state is BenchmarkState.OK}
        evidence = f"{len(ran)} benchmarks gave {len(figures)} values ({', '.join(sorted(ran))})."
        return self.result(bad, evidence, figures, unable)


def _figures(one: BenchmarkResult) -> Iterator[CheckFigure]:
    for metric in one.metrics:
        if metric.values and metric.better is not Better.EQUAL:  # those are fingerprints, not speeds
            yield CheckFigure(f"{one.device}: {metric.name}", statistics.median(metric.values), metric.unit)
