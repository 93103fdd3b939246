"""Plans of the Selector on the wire."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, Strict, model_validator

from mainstay.service.common.schemas import Input, JsonNumber, Name, Output, ShortText
from mainstay.service.validation.schemas import Again


class SelectionTrigger(StrEnum):
    """Reason for the request."""

    JOB = "job"  # a job is about to be placed on these nodes
    ADDED = "added"  # the nodes are new
    REPAIR = "repair"  # they come back from a repair
    INCIDENT = "incident"  # something happened to them
    PERIODIC = "periodic"
    MANUAL = "manual"


class ValidationPlanCreate(Input):
    nodes: Annotated[list[Name], Field(min_length=1, max_length=4096)]
    job_hours: Annotated[float, Field(gt=0, le=8760), JsonNumber]
    target_risk: Annotated[float, Field(ge=0, le=1), JsonNumber] = 0.1
    """Highest risk of an incident in the job."""
    worth_node_hours: Annotated[float, Field(gt=0, le=1e6), JsonNumber] | None = None
    """What an averted incident is worth; what costs more than it averts is not run, target or not. Null: any cost."""
    trigger: SelectionTrigger = SelectionTrigger.MANUAL
    suite: Annotated[ShortText, Field(min_length=1)] = "standard"
    """Its benchmarks are the candidates, and all of them run where too little is known."""
    uniform: Annotated[bool, Strict()] = False
    """One set for all nodes that are checked, where the nodes must be compared; else each node has its own."""
    order: Annotated[bool, Strict()] = False
    """Order the sets at once: one validation for each node of ``run_on``."""
    remeasure: Again = 0
    """Handed on to the validations that carry the plan out; the plan's seconds are those of measuring once."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError("a node is named twice")
        return self


class BenchmarkReasonRead(Output):
    benchmark: str
    chosen: bool
    seconds: float
    gain: float
    gain_per_second: float
    risk_before: float
    risk_after: float
    finds: int
    alone: int
    reason: str
    nodes: int
    """On how many nodes it runs."""


class NodeRiskRead(Output):
    node: str
    p: float
    covered: float
    checked: bool
    benchmarks: list[str]
    seconds: float
    reasons: dict[str, str]
    """Benchmark → why it runs on this node, or does not; empty of a uniform plan."""


class ValidationPlanRead(Output):
    id: str
    created_at: float
    trigger: SelectionTrigger
    suite: str
    nodes: list[str]
    job_hours: float
    target_risk: float
    worth_node_hours: float | None
    benchmarks: list[str]
    """To run, in this order, on any of the nodes; empty: no check is needed."""
    run_on: list[str]
    """The nodes to run them on; the others may start as they are."""
    per_node: bool
    """Whether each node has a set of its own."""
    sets: dict[str, list[str]]
    """Node of ``run_on`` → what runs on it, in this order."""
    validations: dict[str, str]
    """Node → the validation that was ordered."""
    remeasure: int
    """To be said of each of their validations."""
    learned: bool
    """False: too little history, so the whole suite runs."""
    reached: bool
    reason: str
    model: str
    defects: int
    risk_before: float
    risk_after: float
    risk_full: float
    seconds: float
    """On the node that takes longest."""
    full_seconds: float
    node_seconds: float
    full_node_seconds: float
    considered: list[BenchmarkReasonRead]
    node_risks: list[NodeRiskRead]
