"""What a simulation is asked: a job, how its nodes fail and come back, and the policies that are to be compared.

Frozen and checked where it is made: an invalid value is rejected by one line that names the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mainstay.recovery.cost_model.ettr import SaveSchedule, best_interval
from mainstay.recovery.cost_model.failure_cost import BUDGET
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.save_intervals import NODE_MTBF_HOURS

HOUR: Final = 3600.0
DAY: Final = 86_400.0


class PolicyName(StrEnum):
    """The policies that can be compared."""

    DISK_RESTART = "disk_restart"
    MEMORY_RESTORE = "memory_restore"
    STANDBY_SWAP = "standby_swap"
    DROP_REPLICA = "drop_replica"
    REROUTE = "reroute"
    OWN = "own"


class WithoutSpare(StrEnum):
    """What the job does while a node is missing and no spare node is available."""

    WAIT = "wait"
    DROP = "drop"  # without the pipelines that lost a node
    REROUTE = "reroute"  # the lost workers' micro-batches go to their peers


class SweepOver(StrEnum):
    """The quantities that can vary."""

    MTBF_HOURS = "mtbf_hours"
    SPARES = "spares"


class ScenarioError(ValueError):
    """No run can have this; the message is one line and begins with the field."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")
        self.field, self.what = field, what


LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "nodes": (1, 100_000),
    "gpus_per_node": (1, 1024),
    "dp": (1, 100_000),
    "pp": (1, 10_000),
    "tp": (1, 1024),
    "micro_batches": (1, 100_000),
    "iteration_s": (1e-3, 86_400.0),
    "mtbf_hours": (1e-2, 1e8),
    "repair_hours": (0.0, 87_600.0),
    "spares": (0, 100_000),
    "days": (1e-3, 3650.0),
    "seeds": (1, 10_000),
    "seed": (0, 2**31 - 1),
    "seconds": (0.0, 1e7),
    "every_s": (1e-3, 1e7),
}
"""Least and most of each field: wide, but what is beyond was meant otherwise (milliseconds, say)."""


def _within(field: str, value: float, limits: tuple[float, float]) -> None:
    least, most = limits
    if not least <= value <= most:  # NaN is neither
        try:
            shown = f"{value:g}"
        except OverflowError:  # a whole number beyond every float
            shown = f"one of {len(str(value))} digits"
        raise ScenarioError(field, f"expected a number from {least:g} to {most:g}, not {shown}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPolicy:
    """How a job saves and how it continues after a failure. Seconds."""

    name: PolicyName
    description: str
    save_s: float
    """That training stands still for a save; 0 where state comes from a live peer or is saved aside."""
    restart_s: float
    """From a failure until training continues, with a node in the place of the lost one."""
    every_s: float | None = None
    """Training between saves; None: the interval that loses least at the job's rate of failures."""
    without_spare: WithoutSpare = WithoutSpare.WAIT
    rejoin_s: float = 0.0
    """That the job stands still when a node comes back to a job that continued without it."""
    from_peer: bool = False
    """Whether the state of a lost node is taken from a replica on another one."""

    def __post_init__(self) -> None:
        for name in ("save_s", "restart_s", "rejoin_s"):
            _within(name, getattr(self, name), LIMITS["seconds"])
        if self.every_s is not None:
            _within("every_s", self.every_s, LIMITS["every_s"])


MAX_SWEEP: Final = 16
"""Values of a sweep: more cannot be told apart in a plot of usual width."""

_NO_MOVE: Final = BUDGET.total_s - BUDGET.move_state_s
_REJOIN: Final = BUDGET.regroup_s + BUDGET.move_state_s + BUDGET.warm_up_s

POLICIES: Final[Mapping[PolicyName, SimulatedPolicy]] = {
    policy.name: policy
    for policy in (
        # Saves and restarts as in published runs: Llama 3 (disk), GEMINI (memory), TrainMover (swap).
        SimulatedPolicy(name=PolicyName.DISK_RESTART, description="restart from disk", save_s=30.0, restart_s=600.0),
        SimulatedPolicy(name=PolicyName.MEMORY_RESTORE, description="snapshots in memory", save_s=1.0, restart_s=180.0),
        SimulatedPolicy(
            name=PolicyName.STANDBY_SWAP, description="swap to a warm standby", save_s=0.0, restart_s=20.0,
            from_peer=True,
        ),
        # A GPU cluster's budget (mainstay.recovery.cost_model.failure_cost), from published spans and not measured.
        SimulatedPolicy(
            name=PolicyName.DROP_REPLICA, description="drop a replica, recover later", save_s=0.0, restart_s=_NO_MOVE,
            without_spare=WithoutSpare.DROP, rejoin_s=_REJOIN, from_peer=True,
        ),
        SimulatedPolicy(
            name=PolicyName.REROUTE, description="re-route micro-batches", save_s=0.0, restart_s=_NO_MOVE,
            without_spare=WithoutSpare.REROUTE, rejoin_s=_REJOIN, from_peer=True,
        ),
        SimulatedPolicy(name=PolicyName.OWN, description="yours", save_s=30.0, restart_s=600.0),
    )
}  # fmt: skip
USUAL: Final = tuple(policy for name, policy in POLICIES.items() if name is not PolicyName.OWN)
"""Compared where none are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A job on nodes that fail. The defaults are Llama 3's job; repair, spares and micro-batches are assumptions."""

    nodes: int = 2048
    gpus_per_node: int = 8
    dp: int = 128
    pp: int = 16
    tp: int = 8
    micro_batches: int = 16
    """Of each pipeline in one iteration."""
    iteration_s: float = 4.0
    mtbf_hours: float = NODE_MTBF_HOURS
    """Between failures of one node."""
    repair_hours: float = 12.0
    """From a node's failure until it can be used again; the same for all."""
    spares: int = 20
    """Nodes outside the job: one in a hundred."""
    days: float = 54.0
    seeds: int = 20
    """Runs of each policy: all policies meet the same failures."""
    seed: int = 0
    policies: tuple[SimulatedPolicy, ...] = USUAL
    sweep_over: SweepOver | None = None
    sweep_values: tuple[float, ...] = ()
    """Empty: ``usual_values``."""

    def __post_init__(self) -> None:
        for name, limits in LIMITS.items():
            if hasattr(self, name):
                _within(name, getattr(self, name), limits)
        ranks, gpus = self.dp * self.pp * self.tp, self.nodes * self.gpus_per_node
        if ranks != gpus:
            shape = f"{self.dp} x {self.pp} x {self.tp} is {ranks:,} ranks"
            raise ScenarioError("dp", f"dp x pp x tp: {shape}, but the nodes have {gpus:,} GPUs")
        names = [policy.name for policy in self.policies]
        if not names or len(set(names)) != len(names):
            raise ScenarioError("policies", "expected at least one policy, each once")
        _check_sweep(self.sweep_over, self.sweep_values)

    @property
    def gpus(self) -> int:
        """Of the job, without spares."""
        return self.nodes * self.gpus_per_node

    @property
    def job_mtbf_s(self) -> float:
        """Seconds between failures of the whole job."""
        return self.mtbf_hours * HOUR / self.nodes

    @property
    def horizon_s(self) -> float:
        return self.days * DAY

    @property
    def shape(self) -> IterationShape:
        return IterationShape(dp=self.dp, pp=self.pp, tp=self.tp, micro_batches=self.micro_batches)

    def cadence(self, policy: SimulatedPolicy) -> SaveSchedule:
        """How a policy saves here; never more often than once an iteration."""
        interval = policy.every_s or best_interval(policy.save_s, self.job_mtbf_s)
        return SaveSchedule(
            interval_s=max(self.iteration_s, interval), save_s=policy.save_s, restart_s=policy.restart_s
        )

    def sweep(self) -> tuple[tuple[float, Scenario], ...]:
        """(value, scenario with it) for each value that is to be tried, ascending."""
        if self.sweep_over is None:
            return ()
        values = sorted(self.sweep_values or usual_values(self, self.sweep_over))
        over_spares = self.sweep_over is SweepOver.SPARES
        still = replace(self, sweep_over=None, sweep_values=())
        return tuple(
            (value, replace(still, spares=int(value)) if over_spares else replace(still, mtbf_hours=value))
            for value in values
        )


def usual_values(scenario: Scenario, over: SweepOver) -> tuple[float, ...]:
    """Values on either side of the scenario's own: nothing, less, itself, more."""
    if over is SweepOver.SPARES:
        around = max(4, scenario.spares)
        most = int(LIMITS["spares"][1])
        return tuple(sorted({0, around // 4, around // 2, scenario.spares, around, min(most, 2 * around)}))
    least, most_hours = LIMITS["mtbf_hours"]
    return tuple(sorted({min(most_hours, max(least, scenario.mtbf_hours * by)) for by in (0.25, 0.5, 1.0, 2.0, 4.0)}))


def impossible(policy: SimulatedPolicy, scenario: Scenario) -> str | None:
    """Why a policy cannot be followed here, in words; None if it can."""
    if not policy.from_peer:
        return None
    pipelines = math.ceil(scenario.gpus_per_node / (scenario.pp * scenario.tp))
    if scenario.dp > pipelines:
        return None
    return "a node holds a stage of every replica: once it is lost, no live peer has that state"


def expected_failures(scenario: Scenario) -> float:
    """Failures that all runs have to follow: of every seed, policy and value of a sweep."""
    runs = scenario.seeds * len(scenario.policies)
    points = [scenario, *(point for _, point in scenario.sweep())]
    return runs * sum(1.0 + point.horizon_s / point.job_mtbf_s for point in points)


def _check_sweep(over: SweepOver | None, values: tuple[float, ...]) -> None:
    if over is None:
        if values:
            raise ScenarioError("sweep_values", "given, but not what they are of (sweep_over)")
        return
    if len(values) > MAX_SWEEP or len(set(values)) != len(values):
        raise ScenarioError("sweep_values", f"expected at most {MAX_SWEEP} values, each once")
    for value in values:
        _within("sweep_values", value, LIMITS[over])
        if over is SweepOver.SPARES and value != int(value):
            raise ScenarioError("sweep_values", f"expected whole numbers of spares, not {value:g}")
