"""Plans of the Selector on the wire."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, Strict, model_validator

from mainstay.detectors.selector.audit import BenchmarkReason, NodeRisk, PlanRecord
from mainstay.service.check_selection.models import SelectionRow, SelectionTrigger
from mainstay.service.common.schemas import Input, JsonNumber, Name, Output, ShortText, fields_of
from mainstay.service.validation.schemas import Again


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


@fields_of(BenchmarkReason)
class BenchmarkReasonRead(Output):
    pass


@fields_of(NodeRisk)
class NodeRiskRead(Output):
    pass


@fields_of(PlanRecord, without={"target"})
@fields_of(SelectionRow, without={"record"})
class ValidationPlanRead(Output):
    trigger: SelectionTrigger
    sets: dict[str, list[str]]
    """Node of ``run_on`` → what runs on it, in this order."""
    validations: dict[str, str]
    """Node → the validation that was ordered."""
    considered: list[BenchmarkReasonRead]
    node_risks: list[NodeRiskRead]
