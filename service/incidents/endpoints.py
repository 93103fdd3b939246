"""``/v1/incidents``, ``/v1/findings`` and ``/v1/recovery-plans``: incidents, evidence, and actions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import select

from mainstay.detectors.finding import Cause, FindingKind
from mainstay.service.auth.access import incidents_of_jobs, of_jobs
from mainstay.service.auth.guard import Reader
from mainstay.service.common.db import Reading
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import NotFoundError
from mainstay.service.common.rows import equal_to, require_row
from mainstay.service.common.schemas import Name
from mainstay.service.incidents import findings, repository, service
from mainstay.service.incidents import serializers as incidents_serializers
from mainstay.service.incidents.lifecycle import IncidentState, IncidentTrigger
from mainstay.service.incidents.models import FindingRow, IncidentRow, PlanRow
from mainstay.service.incidents.schemas import (
    AssignBody,
    CommentBody,
    FindingRead,
    IncidentDetail,
    IncidentRead,
    ReasonBody,
    RecoveryPlanRead,
)
from mainstay.service.operation import Acting, Operation, Responding

router = APIRouter(prefix="/v1", tags=["incidents"])
Id = Annotated[Name, Path(alias="id")]
NameFilter = Annotated[Name | None, Query()]


class IncidentPage(Page[IncidentRead]):
    """Incidents, newest first."""


class FindingPage(Page[FindingRead]):
    """Findings, newest first."""


class RecoveryPlanPage(Page[RecoveryPlanRead]):
    """Plans, newest first."""


class UnknownRecoveryPlanError(NotFoundError):
    slug, title = "unknown-plan", "Unknown plan"


@router.get("/incidents", operation_id="list_incidents")
def list_incidents(
    reader: Reader,
    session: Reading,
    page: Paging,
    *,
    state: IncidentState | None = None,
    job: NameFilter = None,
    node: NameFilter = None,
    cause: Cause | None = None,
) -> IncidentPage:
    """Incidents, newest first; ``node`` also finds those with a finding about it."""
    statement = repository.incidents(state=state, job=job, node=node, cause=cause)
    statement = statement.where(*incidents_of_jobs(reader.seen_jobs))
    rows, cursor = paginate(session, statement, keys=(IncidentRow.opened_at, IncidentRow.id), page=page)
    return IncidentPage(items=[incidents_serializers.read(row) for row in rows], next_cursor=cursor)


@router.get("/incidents/{id}", operation_id="get_incident")  # noqa: FAST003 - Id is its alias
def get_incident(incident_id: Id, _: Reader, session: Reading) -> IncidentDetail:
    """Return one incident: timeline, findings with evidence, plan with alternatives, and actions."""
    return incidents_serializers.serialize_detail(session, service.require(session, incident_id))


@router.post("/incidents/{id}:close", operation_id="close_incident")  # noqa: FAST003 - Id is its alias
def close_incident(incident_id: Id, body: ReasonBody, acting: Acting) -> IncidentRead:
    """Close an incident manually. Its findings no longer count; if the fault starts again, a new incident opens."""
    return _decide(acting, incident_id, IncidentTrigger.CLOSED_BY_OPERATOR, "Closed", body.reason)


@router.post("/incidents/{id}:acknowledge", operation_id="acknowledge_incident")  # noqa: FAST003 - Id is its alias
def acknowledge_incident(incident_id: Id, body: ReasonBody, acting: Responding) -> IncidentRead:
    """Record that an operator handles the incident: it no longer requires an operator."""
    return _decide(acting, incident_id, IncidentTrigger.ACKNOWLEDGED, "Acknowledged", body.reason)


@router.post("/incidents/{id}:assign", operation_id="assign_incident")  # noqa: FAST003 - Id is its alias
def assign_incident(incident_id: Id, body: AssignBody, acting: Responding) -> IncidentRead:
    """Assign the incident to a person or team, or hand it over; the comment is for who takes over."""
    row = service.require(acting.session, incident_id)
    context = service.Context(acting.session, acting.services.settings, acting.now)
    service.assign(context, row, body.assignee, actor=acting.principal.name, comment=body.comment)
    return acting.remember(incidents_serializers.read(row))


@router.post("/incidents/{id}:comment", operation_id="comment_on_incident")  # noqa: FAST003 - Id is its alias
def comment_on_incident(incident_id: Id, body: CommentBody, acting: Responding) -> IncidentRead:
    """Add a comment to the timeline."""
    row = service.require(acting.session, incident_id)
    context = service.Context(acting.session, acting.services.settings, acting.now)
    service.comment(context, row, body.text, actor=acting.principal.name)
    return acting.remember(incidents_serializers.read(row))


def _decide(acting: Operation, incident_id: str, trigger: IncidentTrigger, done: str, reason: str) -> IncidentRead:
    row = service.require(acting.session, incident_id)
    text = f"{done} by {acting.principal.name}: {reason}"
    context = service.Context(acting.session, acting.services.settings, acting.now)
    service.decide_by_hand(context, row, trigger, text=text, reason=reason, actor=acting.principal.name)
    return acting.remember(incidents_serializers.read(row))


@router.get("/findings", operation_id="list_findings")
def list_findings(
    reader: Reader,
    session: Reading,
    page: Paging,
    *,
    node: NameFilter = None,
    job: NameFilter = None,
    kind: FindingKind | None = None,
    detector: NameFilter = None,
    active: bool | None = None,
) -> FindingPage:
    """Findings, newest first; ``active`` selects the active or the ended ones."""
    statement = repository.findings(node=node, job=job, kind=kind, detector=detector, active=active)
    statement = statement.where(*of_jobs(FindingRow.job, reader.seen_jobs))
    rows, cursor = paginate(session, statement, keys=(FindingRow.time, FindingRow.id), page=page)
    return FindingPage(items=[findings.read(row) for row in rows], next_cursor=cursor)


@router.get("/recovery-plans", operation_id="list_recovery_plans")
def list_recovery_plans(reader: Reader, session: Reading, page: Paging, job: NameFilter = None) -> RecoveryPlanPage:
    """Plans, newest first: the possible strategies with predicted costs, the chosen one, and its actual cost."""
    statement = select(PlanRow).where(*equal_to({PlanRow.job: job}), *of_jobs(PlanRow.job, reader.seen_jobs))
    rows, cursor = paginate(session, statement, keys=(PlanRow.created_at, PlanRow.id), page=page)
    return RecoveryPlanPage(items=incidents_serializers.serialize_plans(session, rows), next_cursor=cursor)


@router.get("/recovery-plans/{id}", operation_id="get_recovery_plan")  # noqa: FAST003 - Id is its alias
def get_recovery_plan(plan_id: Id, _: Reader, session: Reading) -> RecoveryPlanRead:
    """One plan."""
    row = require_row(session, PlanRow, plan_id, UnknownRecoveryPlanError(f"no plan has the id {plan_id!r}"))
    return incidents_serializers.serialize_plans(session, [row])[0]
