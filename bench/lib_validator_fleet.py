"""Synthetic fleets with defects of known truth, and the limits of SuperBench's published rule file as a baseline.

A fleet is 64 nodes of 8 GPUs. Devices differ for good by a normal share of the typical value, repetitions by another,
and two in a hundred repetitions are disturbed by 5 to 30 %, as hosts do. Fifteen nodes carry one defect each, a
sixteenth one that is faint; the truth is which. There is no clean fleet to learn from: criteria are learned
from these very results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues

NODES, GPUS, REPETITIONS = 64, 8, 30
COHORT = "8x-synthetic"
JITTER = 0.02
RULE_LIMIT = 0.1
"""``lambda x: x < -0.1`` of Azure-NDv4-A100-quickscan/rule.yaml, against the fleet's mean."""
RULE_LAUNCH_MS = 1.0
"""``lambda x: x > 1`` of the same file: milliseconds, where 0.006 is typical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A metric of the fleet."""

    benchmark: str
    metric: str
    unit: str
    better: Better
    typical: float
    between: float
    """Deviation between devices, as a share."""
    within: float
    """Deviation between repetitions, as a share."""


KINDS = (
    Kind(benchmark="gemm", metric="bf16", unit="FLOP/s", better=Better.HIGHER, typical=7e14, between=0.006,
         within=0.003),
    Kind(benchmark="memory", metric="hbm", unit="B/s", better=Better.HIGHER, typical=3e12, between=0.003, within=0.002),
    Kind(benchmark="copy", metric="h2d", unit="B/s", better=Better.HIGHER, typical=5.5e10, between=0.005, within=0.003),
    Kind(benchmark="launch", metric="wall", unit="s", better=Better.LOWER, typical=6e-6, between=0.010, within=0.015),
    Kind(benchmark="allreduce", metric="busbw", unit="B/s", better=Better.HIGHER, typical=4.6e11, between=0.004,
         within=0.005),
    Kind(benchmark="gpt", metric="step", unit="s", better=Better.LOWER, typical=0.25, between=0.007, within=0.004),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """What is wrong with one node."""

    words: str
    benchmark: str
    slowdown: float = 0.0
    share: float = 1.0
    """Of the repetitions that are slow."""
    whole_node: bool = False
    state: BenchmarkState = BenchmarkState.OK
    lost_metric: bool = False


DEFECTS = (
    Defect(words="GEMM 5 % slow", benchmark="gemm", slowdown=0.05),
    Defect(words="GEMM 7 % slow", benchmark="gemm", slowdown=0.07),
    Defect(words="GEMM 12 % slow", benchmark="gemm", slowdown=0.12),
    Defect(words="all GEMMs of a node 6 % slow", benchmark="gemm", slowdown=0.06, whole_node=True),
    Defect(words="HBM 5 % slow", benchmark="memory", slowdown=0.05),
    Defect(words="HBM 20 % slow", benchmark="memory", slowdown=0.2),
    Defect(words="PCIe at half its width", benchmark="copy", slowdown=1.0),
    Defect(words="PCIe 8 % slow", benchmark="copy", slowdown=0.08),
    Defect(words="launches half as slow again", benchmark="launch", slowdown=0.5),
    Defect(words="launches three times as slow", benchmark="launch", slowdown=2.0),
    Defect(words="allreduce 6 % slow", benchmark="allreduce", slowdown=0.06),
    Defect(words="a third of the steps at half speed", benchmark="gpt", slowdown=1.0, share=0.35),
    Defect(words="steps 8 % slow", benchmark="gpt", slowdown=0.08),
    Defect(words="a benchmark that timed out", benchmark="allreduce", state=BenchmarkState.TIMEOUT),
    Defect(words="a metric that is missing", benchmark="memory", lost_metric=True),
)
FAINT = Defect(words="a third of the steps 25 % slow", benchmark="gpt", slowdown=0.25, share=0.35)
"""Hardly more than what disturbs healthy nodes; counted apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One sweep: what every node measured, and the truth."""

    results: Mapping[str, tuple[BenchmarkResult, ...]]
    truth: Mapping[str, Defect]
    faint: str
    """The node with the faint defect, not part of ``truth``."""


def fleet(seed: int) -> Fleet:
    """A sweep over 64 nodes, fifteen of them defective."""
    random = np.random.default_rng(seed)
    names = [f"node-{i:02d}" for i in range(NODES)]
    faint, *bad = (names[int(i)] for i in random.permutation(NODES)[: len(DEFECTS) + 1])
    truth = dict(zip(bad, DEFECTS, strict=True))
    every = truth | {faint: FAINT}
    return Fleet(results={name: _node(every.get(name), random) for name in names}, truth=truth, faint=faint)


def _node(defect: Defect | None, random: np.random.Generator) -> tuple[BenchmarkResult, ...]:
    hit = int(random.integers(GPUS))
    results = []
    for kind in KINDS:
        for gpu in range(GPUS):
            mine = defect if defect and defect.benchmark == kind.benchmark else None
            mine = mine if mine and (mine.whole_node or gpu == hit) else None
            results.append(_result(kind, gpu, mine, _values(kind, mine, random)))
    return tuple(results)


def _values(kind: Kind, defect: Defect | None, random: np.random.Generator) -> Floats:
    slow = np.exp(kind.between * random.standard_normal() + kind.within * random.standard_normal(REPETITIONS))
    slow *= np.where(random.random(REPETITIONS) < JITTER, 1 + random.uniform(0.05, 0.3, REPETITIONS), 1.0)
    if defect is not None:
        slow *= np.where(random.random(REPETITIONS) < defect.share, 1 + defect.slowdown, 1.0)
    return kind.typical * slow if kind.better is Better.LOWER else kind.typical / slow


def _result(kind: Kind, gpu: int, defect: Defect | None, values: Floats) -> BenchmarkResult:
    state = defect.state if defect else BenchmarkState.OK
    lost = state is not BenchmarkState.OK or (defect is not None and defect.lost_metric)
    metric = MetricValues(
        name=kind.metric, unit=kind.unit, better=kind.better, values=() if lost else tuple(map(float, values))
    )
    return BenchmarkResult(
        benchmark=kind.benchmark,
        state=state,
        error=None if state is BenchmarkState.OK else "still running after 60 s: killed",
        seconds=1.0,
        device=f"cuda:{gpu}",
        metrics=(metric,),
    )


def published_rules(results: Mapping[str, Sequence[BenchmarkResult]]) -> set[str]:
    """Nodes that the published quick-scan rules label, in the reading that favors them.

    Every metric here is taken to be covered by a live rule (the file's tensor-core rule matches nothing), baselines are
    the fleet's own means, and a benchmark that failed is labeled by its return code. A missing metric is not: that is
    what the tool does.
    """
    means = {key: float(np.mean(of)) for key, of in _means(results.values()).items()}
    return {node for node, of in results.items() if any(_violates(result, means) for result in of)}


def _means(of: Iterable[Sequence[BenchmarkResult]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for results in of:
        for result in results:
            for metric in result.metrics:
                if metric.values:
                    found[result.benchmark].append(float(np.mean(metric.values)))
    return found


def _violates(result: BenchmarkResult, means: Mapping[str, float]) -> bool:
    if result.state is not BenchmarkState.OK:
        return True
    (metric,) = result.metrics
    if not metric.values:
        return False
    value = float(np.mean(metric.values))
    if result.benchmark == "launch":
        return value * 1e3 > RULE_LAUNCH_MS
    change = value / means[result.benchmark] - 1.0
    return change < -RULE_LIMIT if metric.better is Better.HIGHER else change > RULE_LIMIT
