"""What incidents, findings and plans look like on the wire. Reads have no defaults, so generated types are exact."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mainstay.detectors.finding import Cause, FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.recovery.recovery_plan import RestoreSource, RestoreStrategyName
from mainstay.service.common.schemas import Input, Output, Text
from mainstay.service.incidents.lifecycle import IncidentState


class IncidentRead(Output):
    id: str
    title: str
    state: IncidentState
    severity: Severity
    opened_at: float
    recovering_at: float | None
    recovered_at: float | None
    verified_at: float | None
    closed_at: float | None
    job: str | None
    node: str | None
    device: str | None
    ranks: list[int]
    kinds: list[FindingKind]
    cause: Cause | None
    """Of the likeliest root cause that names one."""
    needs_operator: bool
    summary: str


class EntityRead(Output):
    node: str | None
    device: str | None
    job: str | None
    rank: int | None
    peer: int | None


class EvidenceSeries(Output):
    name: str
    unit: str
    x: list[float]
    y: list[float | None]
    x_is: str
    threshold: float | None
    peers: list[float | None]


class EvidenceRead(Output):
    summary: str
    numbers: dict[str, float | None]
    series: list[EvidenceSeries]


class FindingRead(Output):
    id: str
    kind: FindingKind
    entity: EntityRead
    time: float
    severity: Severity
    detector: str
    confidence: float
    evidence: EvidenceRead
    active: bool
    recommended_action: RecommendedAction
    cause: Cause | None
    event: str | None
    incident: str | None
    cleared_at: float | None


class TimelineEntry(Output):
    time: float
    kind: str
    text: str
    data: dict[str, Any]


class RestoreRead(Output):
    rank: int
    node: str
    source: RestoreSource
    from_rank: int | None
    from_nodes: list[str]


class AlternativeRead(Output):
    strategy: RestoreStrategyName
    feasible: bool
    reason: str
    epoch: int | None
    seconds: float | None
    steps_lost: int | None
    cost_seconds: float | None
    parts: dict[str, float]
    restores: list[RestoreRead]
    left_out: int


class RecoveryPlanRead(Output):
    id: str
    job: str
    generation: int
    failed_ranks: list[int]
    alternatives: list[AlternativeRead]
    chosen: RestoreStrategyName | None
    explanation: str
    created_at: float
    incident: str | None
    actual_seconds: float | None
    actual_steps_lost: int | None
    actual_parts: dict[str, float]


class ActionRead(Output):
    id: str
    name: str
    state: str
    started_at: float
    finished_at: float | None
    seconds: float | None
    detail: str


class IncidentDetail(IncidentRead):
    timeline: list[TimelineEntry]
    findings: list[FindingRead]
    """At most 200, those that hold before others."""
    findings_total: int
    plan: RecoveryPlanRead | None
    actions: list[ActionRead]


class ReasonBody(Input):
    """The reason of an operator for closing or acknowledging an incident."""

    reason: Annotated[Text, Field(min_length=1, pattern=r"\S")]
