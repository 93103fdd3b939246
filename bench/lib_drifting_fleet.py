"""Machines that drift between sessions, simulated: what limits are worth in the sessions that come.

Sixteen metrics of a cohort. A run's typical value is ``exp(machine + session + run)``, its repetitions scatter around
it; all parts are normal. The truth is known: a clean run has nothing but these, a slow one has one metric slower
throughout. Everybody's limits, with sessions and without, are learned from the same runs and judge the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.validation.criteria import judge
from mainstay.detectors.validation.criterion_learning import MetricSample, learn_criteria
from mainstay.detectors.validation.validator import BestLimits
from mainstay.detectors.validation.verdict import Criteria
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues
from mainstay.probes.core_types import Verdict

METRICS = 16
REPETITIONS = 12
MACHINE, RUN, REPETITION = 0.003, 0.004, 0.006
"""Scatter of machines, of runs of one session and of the repetitions of a run: a cohort that repeats to .995."""
AHEAD = 25
"""Sessions to come in which each simulated cohort is judged, one clean run and one slow one of each kind in each."""
SLOWDOWNS = (0.05, 0.07)
COHORT = "simulated"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the runs that are learned from lie."""

    machines: int
    sessions: int
    """Of each machine."""
    runs: int
    """Of each session."""

    @property
    def description(self) -> str:
        of = f"{self.machines} machines, each " if self.machines > 1 else ""
        return f"{of}{self.sessions} session{'s' * (self.sessions > 1)} of {self.runs}"


@dataclass
class Counts:
    """Of one way to learn, over all cohorts."""

    clean: int = 0
    false: int = 0
    slow: dict[float, int] = field(default_factory=lambda: dict.fromkeys(SLOWDOWNS, 0))
    found: dict[float, int] = field(default_factory=lambda: dict.fromkeys(SLOWDOWNS, 0))

    @property
    def rate(self) -> float:
        """Clean runs that failed."""
        return self.false / self.clean

    def recall(self, slowdown: float) -> float:
        return self.found[slowdown] / self.slow[slowdown]


def simulate(layout: Layout, drift: float, cohorts: int) -> dict[str, Counts]:
    """What limits with sessions and limits that know none do in sessions to come.

    Args:
        layout: of the runs that are learned from.
        drift: scatter of sessions, as a share.
        cohorts: how many are simulated, by seed.
    """
    counts = {"sessions": Counts(), "none": Counts()}
    for seed in range(cohorts):
        random = np.random.default_rng([seed, layout.sessions, layout.machines, round(drift * 1e4)])
        machines = MACHINE * random.standard_normal((layout.machines, METRICS))
        samples = list(_samples(layout, machines, drift, random))
        learned = {
            "sessions": learn_criteria(samples, estimator=BestLimits),
            "none": learn_criteria([_unnamed(sample) for sample in samples], estimator=BestLimits),
        }
        for _ in range(AHEAD):
            level = machines[random.integers(layout.machines)] + drift * random.standard_normal(METRICS)
            _judge(learned, _runs(level, 1, random)[0], random, counts)
    return counts


def _runs(level: Floats, count: int, random: np.random.Generator) -> Floats:
    """[runs, metrics, repetitions] of one session."""
    runs = level + RUN * random.standard_normal((count, METRICS))
    return np.asarray(np.exp(runs[..., None] + REPETITION * random.standard_normal((count, METRICS, REPETITIONS))))


def _samples(layout: Layout, machines: Floats, drift: float, random: np.random.Generator) -> Iterator[MetricSample]:
    for machine, base in enumerate(machines):
        for session in range(layout.sessions):
            for run in _runs(base + drift * random.standard_normal(METRICS), layout.runs, random):
                for metric, values in enumerate(run):
                    yield MetricSample(
                        benchmark="simulated", metric=f"m{metric}", unit="s", better=Better.LOWER, cohort=COHORT,
                        values=tuple(map(float, values)), device=f"node-{machine}/cpu",
                        session=f"node-{machine}@{session}",
                    )  # fmt: skip


def _unnamed(sample: MetricSample) -> MetricSample:
    return MetricSample(
        benchmark=sample.benchmark, metric=sample.metric, unit=sample.unit, better=sample.better, cohort=sample.cohort,
        values=sample.values, device=sample.device,
    )  # fmt: skip


def _judge(learned: dict[str, Criteria], run: Floats, random: np.random.Generator, counts: dict[str, Counts]) -> None:
    """One clean run, and the same with one metric slower."""
    slow = int(random.integers(METRICS))
    for way, criteria in learned.items():
        counts[way].clean += 1
        counts[way].false += _failed(criteria, run, range(METRICS))
        for slowdown in SLOWDOWNS:
            counts[way].slow[slowdown] += 1
            counts[way].found[slowdown] += _failed(criteria, run * (1.0 + slowdown), [slow])


def _failed(criteria: Criteria, run: Floats, metrics: Sequence[int]) -> bool:
    """Whether any of these metrics fails."""
    values = tuple(
        MetricValues(name=f"m{metric}", unit="s", better=Better.LOWER, values=tuple(map(float, run[metric])))
        for metric in metrics
    )
    result = BenchmarkResult(
        benchmark="simulated", state=BenchmarkState.OK, error=None, seconds=1.0, device="cpu", metrics=values
    )  # fmt: skip
    judged = judge([result], criteria.criteria, cohort=COHORT)
    return any(verdict.verdict is Verdict.FAIL for verdict in judged.verdicts)
