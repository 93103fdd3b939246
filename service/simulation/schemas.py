"""Simulations on the wire: the fields of ``mainstay.recovery.simulate``, with its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from mainstay.recovery.simulate.failure_processes import Estimate
from mainstay.recovery.simulate.report import PolicyReport, Report, SweepPoint
from mainstay.recovery.simulate.scenario import (
    LIMITS,
    MAX_SWEEP,
    POLICIES,
    USUAL,
    PolicyName,
    Scenario,
    SimulatedPolicy,
    SweepOver,
)
from mainstay.service.common.schemas import Input, JsonNumber, Output, fields_of


def _bounds(name: str) -> Any:
    least, most = LIMITS[name]
    return Field(ge=least, le=most)


_Seconds = Annotated[float, _bounds("seconds"), JsonNumber]
_USUAL = Scenario()


class PolicyIn(Input):
    """A policy to compare, by its name; null means the default of that policy."""

    name: PolicyName
    save_s: _Seconds | None = None
    """That training stands still for a save."""
    restart_s: _Seconds | None = None
    """From a failure until training continues."""
    every_s: Annotated[float, _bounds("every_s"), JsonNumber] | None = None
    """Training between saves; null: the interval that loses least."""

    def policy(self) -> SimulatedPolicy:
        """The default policy with the changes of the request."""
        given = self.model_dump(exclude={"name", "every_s"}, exclude_none=True)
        return replace(POLICIES[self.name], **given, every_s=self.every_s)


class SweepIn(Input):
    """One quantity that varies while all others stay the same."""

    over: SweepOver
    values: Annotated[
        list[Annotated[float, Field(ge=0, le=1e8), JsonNumber]], Field(max_length=MAX_SWEEP, default_factory=list)
    ]
    """Empty: values on either side of the scenario's own."""


class SimulationIn(Input):
    """A job on nodes that fail. The defaults describe a job like that of Llama 3."""

    nodes: Annotated[int, _bounds("nodes"), JsonNumber] = _USUAL.nodes
    gpus_per_node: Annotated[int, _bounds("gpus_per_node"), JsonNumber] = _USUAL.gpus_per_node
    dp: Annotated[int, _bounds("dp"), JsonNumber] = _USUAL.dp
    """dp x pp x tp is the number of GPUs."""
    pp: Annotated[int, _bounds("pp"), JsonNumber] = _USUAL.pp
    tp: Annotated[int, _bounds("tp"), JsonNumber] = _USUAL.tp
    micro_batches: Annotated[int, _bounds("micro_batches"), JsonNumber] = _USUAL.micro_batches
    """Of each pipeline in one iteration."""
    iteration_s: Annotated[float, _bounds("iteration_s"), JsonNumber] = _USUAL.iteration_s
    mtbf_hours: Annotated[float, _bounds("mtbf_hours"), JsonNumber] = _USUAL.mtbf_hours
    """Between failures of one node."""
    repair_hours: Annotated[float, _bounds("repair_hours"), JsonNumber] = _USUAL.repair_hours
    """From a node's failure until it can be used again."""
    spares: Annotated[int, _bounds("spares"), JsonNumber] = _USUAL.spares
    """Nodes in addition to those of the job."""
    days: Annotated[float, _bounds("days"), JsonNumber] = _USUAL.days
    seeds: Annotated[int, _bounds("seeds"), JsonNumber] = _USUAL.seeds
    """Runs of each policy; more narrow the intervals."""
    seed: Annotated[int, _bounds("seed"), JsonNumber] = _USUAL.seed
    policies: Annotated[list[PolicyIn], Field(max_length=len(POLICIES), default_factory=list)]
    """Each once; empty: the usual ones."""
    sweep: SweepIn | None = None


@fields_of(SimulatedPolicy)
class RecoveryPolicyRead(Output):
    """A policy that can be compared. Times are in seconds."""


class RecoveryPolicyList(Output):
    items: list[RecoveryPolicyRead]
    """The usual ones first."""


@fields_of(Estimate)
class EstimateRead(Output):
    """A mean over runs with its 95% interval."""


class LostRead(Output):
    """GPU-hours of a run that did not train, by cause, on average."""

    saving: float
    downtime: float
    """Restarts and re-joins."""
    repeated: float
    """Work since the last save, done again."""
    waiting: float
    """No spare: the job stands still until a node is repaired."""
    degraded: float
    """The part of the rate that is missing while the job continues without a node."""


@fields_of(PolicyReport)
class PolicyResult(Output):
    """The result of one policy; null if the policy is infeasible."""

    policy: RecoveryPolicyRead
    ettr: EstimateRead | None
    lost_gpu_hours: LostRead | None


@fields_of(SweepPoint)
class SweepResult(Output):
    ettr: dict[PolicyName, EstimateRead]
    """Policies that can be followed."""


class SimulationRead(Output):
    days: float
    gpus: int
    """Of the job, without spares."""
    failures: float
    """Of the job's nodes in a run, on average."""
    policies: list[PolicyResult]
    """In the order in which they were asked."""
    curve_days: list[float]
    sweep_over: SweepOver | None
    sweep: list[SweepResult]


def scenario(body: SimulationIn) -> Scenario:
    """The question as the simulator knows it.

    Raises:
        ScenarioError: fields that do not go together.
    """
    told = body.model_dump(exclude={"policies", "sweep"})
    sweep = body.sweep
    return Scenario(
        **told,
        policies=tuple(policy.policy() for policy in body.policies) or USUAL,
        sweep_over=None if sweep is None else sweep.over,
        sweep_values=() if sweep is None else tuple(sweep.values),
    )


def read(report: Report) -> SimulationRead:
    """The answer on the wire."""
    told = report.as_json()
    for row in told["policies"]:
        row["lost_gpu_hours"] = row["lost_gpu_hours"] or None
    return SimulationRead(
        days=report.days,
        gpus=report.scenario.gpus,
        failures=report.failures,
        policies=told["policies"],
        curve_days=told["curve_days"],
        sweep_over=report.scenario.sweep_over,
        sweep=told["sweep"],
    )
