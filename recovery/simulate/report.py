"""``simulate(scenario) -> Report``: what each policy keeps of the time. The command, the service and the page ask this.

Pure and seeded: the same scenario gives the same report. All policies meet the same failures, so that what differs
between them is theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainstay.recovery.cost_model.ettr import exact_ettr
from mainstay.recovery.simulate.failure_processes import Estimate, estimate, exponential
from mainstay.recovery.simulate.node_simulation import NodeSimulationResult, follow_places
from mainstay.recovery.simulate.scenario import HOUR, PolicyName, Scenario, SimulatedPolicy, impossible

POINTS = 60
"""Of the curve over time: more than an eye follows, less than a page feels."""
CAUSES = ("saving", "downtime", "repeated", "waiting", "degraded")
"""Where time goes; ``node_simulation.LostTime`` says what each is."""
Progress = Callable[[int, int], None]
"""Told (runs done, runs in all)."""
Failures = list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Failures that really were, instead of random ones; which place each hits is drawn."""

    at_s: tuple[float, ...]
    horizon_s: float


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What one policy kept; without figures where it cannot be followed."""

    policy: SimulatedPolicy
    interval_s: float
    """Training between saves."""
    impossible: str | None
    ettr: Estimate | None
    """Effective training time ratio: useful time at the healthy rate over the time of the run."""
    exact: float | None
    """The same by Daly's exact formula, which always has a spare available; None for recorded failures."""
    of_all_gpus: float | None
    """The ratio of all GPUs that are held, spares included."""
    interruptions: float | None
    """A run, on average; so the next three."""
    waits: float | None
    """Interruptions for which no spare was left."""
    useful_gpu_hours: float | None
    lost_gpu_hours: dict[str, float]
    """By cause (``CAUSES``)."""
    curve: tuple[float, ...]
    """Ratio from the start until each of ``Report.curve_days``, mean over the runs."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The ratio of each policy at one value; policies that cannot be followed are left out."""

    value: float
    ettr: dict[PolicyName, Estimate]


@dataclass(frozen=True, slots=True)
class Report:
    scenario: Scenario
    days: float
    failures: float
    """Of nodes of the job in a run, on average, whether or not a node was hit."""
    policies: tuple[PolicyReport, ...]
    curve_days: tuple[float, ...]
    sweep: tuple[SweepPoint, ...]

    def as_json(self) -> dict[str, Any]:
        """Values that JSON knows."""
        return asdict(self)


def simulate(scenario: Scenario, *, recorded: Recorded | None = None, progress: Progress | None = None) -> Report:
    """Simulate every policy of a scenario, and the scenario at every value of its sweep.

    Args:
        scenario: what is asked.
        recorded: failures to follow; they decide how long a run is, and every sweep but one over spares is refused.
        progress: called after every run.

    Raises:
        ValueError: a sweep over how often nodes fail, when that is recorded.
    """
    if recorded is not None and scenario.sweep_over is not None and scenario.sweep_over.value == "mtbf_hours":
        raise ValueError("sweep_over: how often nodes fail is recorded, it cannot be varied")
    total, done = scenario.seeds * (1 + len(scenario.sweep())), itertools.count(1)

    def one_more() -> None:
        if progress is not None:
            progress(next(done), total)

    horizon_s = recorded.horizon_s if recorded else scenario.horizon_s
    grid = np.linspace(0.0, horizon_s, POINTS + 1)[1:]
    outcomes, failures = _runs(scenario, recorded, one_more, grid)
    swept = [(value, _runs(point, recorded, one_more, grid)[0]) for value, point in scenario.sweep()]
    return Report(
        scenario=scenario,
        days=horizon_s / (24.0 * HOUR),
        failures=failures,
        policies=tuple(
            _told(scenario, policy, outcomes.get(policy.name), grid, recorded=recorded is not None)
            for policy in scenario.policies
        ),
        curve_days=tuple(float(at) for at in grid / (24.0 * HOUR)),
        sweep=tuple(
            SweepPoint(value, {name: _ettr(runs, horizon_s) for name, runs in found.items()}) for value, found in swept
        ),
    )


def _runs(
    scenario: Scenario, recorded: Recorded | None, one_more: Callable[[], None], grid: NDArray[np.float64]
) -> tuple[dict[PolicyName, list[NodeSimulationResult]], float]:
    """Every policy that can be followed -> its runs, a seed each; and the mean number of failures.

    A run keeps its useful seconds at the points of the grid alone: thousands of failures a run would fill the memory.
    """
    followed = [policy for policy in scenario.policies if impossible(policy, scenario) is None]
    runs: dict[PolicyName, list[NodeSimulationResult]] = {policy.name: [] for policy in followed}
    horizon_s, failed = recorded.horizon_s if recorded else scenario.horizon_s, 0
    for number in range(scenario.seeds):
        failures = _failures(scenario, recorded, np.random.default_rng((scenario.seed, number)))
        failed += len(failures)
        for policy in followed:
            run = follow_places(scenario, policy, failures, horizon_s)
            run.at_s, run.kept_s = grid.tolist(), np.interp(grid, run.at_s, run.kept_s).tolist()
            runs[policy.name].append(run)
        one_more()
    return runs, failed / scenario.seeds


def _failures(scenario: Scenario, recorded: Recorded | None, rng: np.random.Generator) -> Failures:
    """Of one run: every place fails as often as every other."""
    if recorded is not None:
        at = np.asarray(recorded.at_s, dtype=np.float64)
    else:
        drawn = exponential(scenario.job_mtbf_s, scenario.horizon_s, 1, rng)[0]
        at = drawn[np.isfinite(drawn)]
    places = rng.integers(0, scenario.nodes, size=len(at))
    return list(zip(at.tolist(), places.tolist(), strict=True))


def _ettr(runs: list[NodeSimulationResult], horizon_s: float) -> Estimate:
    """Over runs, the interval cut at 0 and 1: a normal distribution does not know that a share ends there."""
    found = estimate(np.array([run.useful_s for run in runs]) / horizon_s)
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def _told(
    scenario: Scenario,
    policy: SimulatedPolicy,
    runs: list[NodeSimulationResult] | None,
    grid: NDArray[np.float64],
    *,
    recorded: bool,
) -> PolicyReport:
    cadence, horizon_s = scenario.cadence(policy), float(grid[-1])
    if runs is None:
        why = impossible(policy, scenario)
        return PolicyReport(policy, cadence.interval_s, why, None, None, None, None, None, None, {}, ())
    found = _ettr(runs, horizon_s)
    gpu_hours = scenario.gpus / HOUR
    curves = [run.kept_s / grid for run in runs]
    return PolicyReport(
        policy=policy,
        interval_s=cadence.interval_s,
        impossible=None,
        ettr=found,
        exact=None if recorded else exact_ettr(cadence, scenario.job_mtbf_s),
        of_all_gpus=found.mean * scenario.nodes / (scenario.nodes + scenario.spares),
        interruptions=_mean([run.interruptions for run in runs]),
        waits=_mean([run.waits for run in runs]),
        useful_gpu_hours=_mean([run.useful_s for run in runs]) * gpu_hours,
        lost_gpu_hours={
            cause: _mean([getattr(run.lost, f"{cause}_s") for run in runs]) * gpu_hours for cause in CAUSES
        },
        curve=tuple(float(value) for value in np.mean(curves, axis=0)),
    )


def _mean(values: list[float] | list[int]) -> float:
    return float(np.mean(values))
