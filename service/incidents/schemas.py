"""What incidents, findings and plans look like on the wire. Reads have no defaults, so generated types are exact."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind, Series
from mainstay.probes.core_types import Severity
from mainstay.recovery.recovery_plan import Alternative, RankRestore, RecoveryPlan
from mainstay.service.common.schemas import Input, Output, Text, fields_of
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
    acknowledged_at: float | None
    acknowledged_by: str | None
    assignee: str | None
    job: str | None
    node: str | None
    device: str | None
    ranks: list[int]
    kinds: list[FindingKind]
    cause: Cause | None
    """Of the likeliest root cause that names one."""
    needs_operator: bool
    summary: str


@fields_of(Entity)
class EntityRead(Output):
    pass


@fields_of(Series)
class EvidenceSeries(Output):
    y: list[float | None]
    peers: list[float | None]


@fields_of(Evidence)
class EvidenceRead(Output):
    numbers: dict[str, float | None]
    series: list[EvidenceSeries]


@fields_of(Finding)
class FindingRead(Output):
    id: str
    entity: EntityRead
    evidence: EvidenceRead
    incident: str | None
    cleared_at: float | None


class TimelineEntry(Output):
    time: float
    kind: str
    text: str
    data: dict[str, Any]


@fields_of(RankRestore)
class RestoreRead(Output):
    pass


@fields_of(Alternative)
class AlternativeRead(Output):
    restores: list[RestoreRead]


@fields_of(RecoveryPlan)
class RecoveryPlanRead(Output):
    alternatives: list[AlternativeRead]
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
    where: str
    """Node, device with serial, and rack; empty where none is known."""
    impact: str
    """What stands still, since when, and what was lost; empty where no job is known to be affected."""
    next_step: str
    """What happens next if no one acts; empty for a closed incident."""
    timeline: list[TimelineEntry]
    findings: list[FindingRead]
    """At most 200, those that hold before others."""
    findings_total: int
    plan: RecoveryPlanRead | None
    actions: list[ActionRead]


class ReasonBody(Input):
    """The reason of an operator for closing or acknowledging an incident."""

    reason: Annotated[Text, Field(min_length=1, pattern=r"\S")]


class CommentBody(Input):
    """A note for everybody who looks at the incident."""

    text: Annotated[Text, Field(min_length=1, max_length=4000, pattern=r"\S")]


class AssignBody(Input):
    """Who works on the incident from now on; null: none."""

    assignee: Annotated[Text, Field(min_length=1, max_length=200, pattern=r"\S")] | None
    comment: Annotated[Text, Field(max_length=4000)] = ""
