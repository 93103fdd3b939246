"""What remediations look like on the wire."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from mainstay.probes.core_types import RecommendedAction
from mainstay.service.common.schemas import Input, Output, Text


class RemediationState(StrEnum):
    """The state of a proposal."""

    PROPOSED = "proposed"  # every rule allows it: it waits for a person, or the machine takes it at once
    HELD = "held"  # a rule holds it back, and says why
    ACCEPTED = "accepted"  # the node was drained for it
    DISMISSED = "dismissed"
    DONE = "done"  # the node came back through a validation that passed
    SUPERSEDED = "superseded"  # what it was for is gone, the job refused, or an operator returned the node
    FAILED = "failed"  # a job began to move ranks for it and could not


UNDECIDED = (RemediationState.PROPOSED, RemediationState.HELD)


class RuleOutcome(StrEnum):
    """The result of a rule for a proposal."""

    ALLOW = "allow"
    HOLD = "hold"  # not now, or not without a person
    DENY = "deny"  # not allowed in the current state


Mode = Literal["dry_run", "automatic"]


class RuleRead(Output):
    name: str
    verdict: RuleOutcome
    reason: str


class RemediationRead(Output):
    id: str
    incident: Annotated[str, Field(validation_alias="incident_id")]
    node: str
    device: str | None
    recommended_action: RecommendedAction
    state: RemediationState
    dry_run: bool
    reason: str
    rules: list[RuleRead]
    created_at: float
    decided_at: float | None
    decided_by: str | None


class BreakerRead(Output):
    """The circuit breaker: how many nodes Mainstay drained recently, and how many it may drain."""

    open: bool
    max_drained_ratio: float
    window_seconds: float
    touched: int
    fleet: int
    max_drained_per_rack: int
    reason: str


class RemediationStatus(Output):
    mode: Mode
    breaker: BreakerRead


class DecisionBody(Input):
    """The reason of an operator for accepting or dismissing a proposal."""

    reason: Annotated[Text, Field(min_length=1, pattern=r"\S")]
