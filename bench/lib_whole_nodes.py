"""Healthy fleets judged node by node with the criteria of ``mainstay criteria fit``: who fails, in cards and in nodes.

Every GPU of Longhorn counts as healthy here, slow nodes too: what a site would see of its own fleet. Half of the nodes
to learn from, the other half judged, drawn as in ``bench.validator``. SGEMM is the set on which the limit for whole
nodes was chosen; the others report.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.lib_gpu_variability import Gpu, is_healthy, load, splits
from bench.report import Row
from mainstay.detectors.validation.criteria import judge
from mainstay.detectors.validation.criterion_learning import MetricSample, learn_criteria
from mainstay.detectors.validation.validator import BestLimits
from mainstay.detectors.validation.verdict import Criterion
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues
from mainstay.probes.core_types import Verdict

BUDGET = 0.005
COHORT = "v100"
SLOWER = (1.03, 1.05, 1.10)


@dataclass
class _Count:
    devices: int = 0
    nodes: int = 0
    failed_devices: int = 0
    failed_nodes: int = 0
    alone: int = 0
    """Failed devices before the rule about whole nodes."""
    sound: int = 0
    """Failed devices that are healthy by the stricter word of ``lib_gpu_variability``."""

    @property
    def devices_share(self) -> float:
        return self.failed_devices / self.devices

    @property
    def nodes_share(self) -> float:
        return self.failed_nodes / self.nodes


def _sample(name: str, gpu: Gpu) -> MetricSample:
    return MetricSample(
        benchmark=name, metric="time", unit="s", better=Better.LOWER, cohort=COHORT,
        values=tuple(gpu.times.tolist()), device=f"{gpu.node}/{gpu.name}",
    )  # fmt: skip


def _result(name: str, gpu: Gpu, factor: float) -> BenchmarkResult:
    values = tuple((gpu.times * factor).tolist())
    metric = MetricValues(name="time", unit="s", better=Better.LOWER, values=values)
    return BenchmarkResult(
        benchmark=name, state=BenchmarkState.OK, error=None, seconds=1.0, device=gpu.name, metrics=(metric,)
    )


def _judge(name: str, times: int) -> tuple[_Count, dict[float, float]]:
    gpus, count, found = load(name), _Count(), {factor: [0, 0] for factor in SLOWER}
    sound = {gpu.name for gpu, healthy in zip(gpus, is_healthy(gpus), strict=True) if healthy}
    for learned, judged in splits(gpus, times):
        samples = [_sample(name, gpus[i]) for i in learned]
        criteria = learn_criteria(samples, false_alarms=BUDGET, estimator=BestLimits).criteria
        nodes: dict[str, list[Gpu]] = {}
        for i in judged:
            nodes.setdefault(gpus[i].node, []).append(gpus[i])
        for members in nodes.values():
            failed = _failed(name, members, 1.0, criteria)
            count.devices += len(members)
            count.nodes += 1
            count.failed_devices += len(failed)
            count.failed_nodes += bool(failed)
            count.sound += len(failed & sound)
            count.alone += sum(bool(_failed(name, [gpu], 1.0, criteria)) for gpu in members)
            for factor in SLOWER:  # one card of the node becomes slow
                found[factor][0] += members[0].name in _failed(name, members, factor, criteria)
                found[factor][1] += 1
    return count, {factor: hits / tried for factor, (hits, tried) in found.items()}


def _failed(name: str, members: list[Gpu], factor: float, criteria: tuple[Criterion, ...]) -> set[str]:
    """Names of failing cards of a node whose first card is slower by ``factor``."""
    results = [_result(name, gpu, factor if k == 0 else 1.0) for k, gpu in enumerate(members)]
    verdict = judge(results, criteria, cohort=COHORT)
    return {one.device for one in verdict.verdicts if one.verdict is Verdict.FAIL}


def whole_node_rows(names: tuple[str, ...], times: int) -> list[Row]:
    rows = []
    for name in names:
        count, recall = _judge(name, times)
        kept = count.nodes_share <= 1.5 * BUDGET
        rows.append(
            Row(claim=f"{name.upper()}: nodes of a fleet that counts as healthy failed", figure=count.nodes_share,
                unit="of the nodes", target=f"<= {BUDGET}, within 1.5", holds=kept, kind="replayed", n=count.nodes,
                baseline=f"cards without the rule about whole nodes {count.alone / count.devices:.4f}",
                note=f"cards {count.devices_share:.4f}, without natural outliers {count.sound / count.devices:.4f}; "
                "one slowed card of a node fails at "
                + ", ".join(f"{factor - 1:.0%}: {share:.2f}" for factor, share in recall.items()))
        )  # fmt: skip
    return rows
