"""The class of defect that failing metrics point to, from what the benchmarks declare."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from mainstay.detectors.validation.defect_attribution import attribute_defects, describe_defects
from mainstay.detectors.validation.verdict import Criterion, MetricVerdict
from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better
from mainstay.probes.benchmarks.suites import BENCHMARKS
from mainstay.probes.core_types import Verdict

GPU = Device(kind="cuda", model="test", count=8, index=0)
CPU = Device(kind="cpu", model="test", count=2)
NAMES = ("deterministic", "gemm", "memory", "copy", "launch", "allreduce", "disk", "burn")


def run(sick: dict[str, Verdict], device: Device = GPU) -> list[MetricVerdict]:
    """Verdicts of a whole run: ``benchmark/pattern of metrics`` -> verdict, everything else passes."""
    made = []
    for name in NAMES:
        benchmark = BENCHMARKS[name].sized(device.kind)
        for metric in benchmark.metrics(device):
            said = [v for pattern, v in sick.items() if fnmatch(f"{name}/{metric.name}", pattern)]
            verdict = said[0] if said else Verdict.PASS
            made.append(_verdict(name, benchmark.where(device), metric.name, metric.unit, verdict))
    return made


def _verdict(benchmark: str, device: str, metric: str, unit: str, verdict: Verdict) -> MetricVerdict:
    criterion = Criterion(
        benchmark=benchmark, metric=metric, cohort="c", better=Better.HIGHER if unit else Better.EQUAL,
        low=1.0, high=None, n=9, source="test",
    )  # fmt: skip
    return MetricVerdict(
        benchmark=benchmark, device=device, metric=metric, unit=unit, verdict=verdict, criterion=criterion, reason="",
        value=None if verdict is Verdict.UNKNOWN else 1.0,
    )  # fmt: skip


FAIL = Verdict.FAIL


@pytest.mark.parametrize(
    ("sick", "expected"),
    [
        ({"gemm/*_n8192": FAIL}, {Defect.COMPUTE}),
        ({"gemm/bf16_n8192_repeat": FAIL}, {Defect.NUMERICS}),
        ({"deterministic/*": FAIL}, {Defect.NUMERICS}),
        ({"burn/steady": FAIL, "burn/*_rate": FAIL}, {Defect.THERMAL}),
        ({"gemm/bf16_n8192": FAIL, "burn/*_rate": FAIL}, {Defect.COMPUTE}),
        ({"memory/*": FAIL}, {Defect.GPU_MEMORY}),
        ({"copy/*": FAIL}, {Defect.HOST_LINK}),
        ({"copy/*": FAIL, "launch/*": FAIL}, {Defect.HOST_LINK}),
        ({"launch/*": FAIL, "allreduce/*": FAIL}, {Defect.HOST_CPU}),
        ({"allreduce/*": FAIL}, {Defect.GPU_LINK}),
        ({"disk/write*": FAIL}, {Defect.STORAGE}),
        ({"launch/*": Verdict.UNKNOWN}, {Defect.SOFTWARE}),
        ({}, set()),
        ({"disk/write*": Verdict.WARN}, set()),
    ],
)
def test_the_class_that_explains_most(sick: dict[str, Verdict], expected: set[Defect]) -> None:
    assert set(attribute_defects(run(sick))) == expected


def test_two_that_fit_equally_well_are_both_named() -> None:
    assert attribute_defects(run({"disk/write*": FAIL, "memory/*": FAIL})) == (Defect.GPU_MEMORY, Defect.STORAGE)
    assert describe_defects((Defect.GPU_MEMORY, Defect.STORAGE)) == "points to: gpu_memory or storage"
    assert describe_defects(()) == ""


def test_wrong_bits_outweigh_what_noise_may_have_done() -> None:
    """Seen once by one benchmark, beside a slow disk; the other fingerprints were right."""
    assert attribute_defects(run({"gemm/bf16_n8192_repeat": FAIL, "disk/*": FAIL})) == (Defect.NUMERICS,)


def test_a_processor_has_neither_gpu_memory_nor_gpu_links() -> None:
    assert attribute_defects(run({"memory/*": FAIL}, CPU)) == (Defect.HOST_MEMORY,)
    assert attribute_defects(run({"allreduce/*": FAIL}, CPU)) == (Defect.NETWORK,)


def test_many_metrics_of_one_benchmark_are_one_witness() -> None:
    """Seven formats that are slow count as one: not more than the disk, which nothing contradicts."""
    assert attribute_defects(run({"gemm/*_n8192": FAIL, "disk/*": FAIL})) == (Defect.STORAGE,)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (BenchmarkState.TIMEOUT, (Defect.SOFTWARE,)),
        (BenchmarkState.ERROR, (Defect.SOFTWARE,)),
        (BenchmarkState.PREEMPTED, ()),
        (None, ()),
    ],
)
def test_what_has_no_criterion_speaks_only_if_it_broke(
    state: BenchmarkState | None, expected: tuple[Defect, ...]
) -> None:
    verdict = MetricVerdict(
        benchmark="disk", device="host", metric="w", unit="B/s", value=None, verdict=Verdict.UNKNOWN, criterion=None,
        reason="",
    )  # fmt: skip
    result = [] if state is None else [
        BenchmarkResult(benchmark="disk", state=state, error="x", seconds=1.0, device="host", metrics=())
    ]  # fmt: skip
    assert attribute_defects([verdict], result) == expected


def test_a_preempted_benchmark_accuses_nobody_though_its_criteria_are_known() -> None:
    results = [
        BenchmarkResult(
            benchmark="disk", state=BenchmarkState.PREEMPTED, error="x", seconds=1, device="host", metrics=()
        )
    ]
    assert attribute_defects(run({"disk/*": Verdict.UNKNOWN}), results) == ()


def test_a_benchmark_that_is_not_known_accuses_nobody() -> None:
    assert attribute_defects([_verdict("theirs", "cpu", "m", "s", FAIL)]) == ()


def test_every_metric_points_somewhere() -> None:
    """On either kind of device, and only to what its benchmark says that it finds."""
    for device in (GPU, CPU):
        for made in BENCHMARKS.values():
            for metric in made.sized(device.kind).metrics(device):
                points = made.points_to(metric.name)
                assert points
                assert set(points) <= set(made.defects)
