"""``/v1/incidents``, ``/v1/findings`` and ``/v1/plans``: what happened, why we think so, and what was done about it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import select

from detectors.finding import Cause, FindingKind
from service.auth.guard import Actor, Reader
from service.incidents import findings, reading, repository, service
from service.incidents.life_cycle import IncidentState, Trigger
from service.incidents.models import FindingRow, IncidentRow, PlanRow
from service.incidents.schemas import FindingRead, IncidentDetail, IncidentRead, PlanRead, ReasonBody
from service.kit.clock import Now
from service.kit.db import Reading, Writing
from service.kit.idempotency import Idempotency
from service.kit.pagination import Page, Paging, paginate
from service.kit.problem import NotFoundError
from service.kit.schemas import Name
from service.services import ServicesDep

router = APIRouter(tags=["incidents"])
Id = Annotated[Name, Path(alias="id")]
NameFilter = Annotated[Name | None, Query()]


class IncidentPage(Page[IncidentRead]):
    """Incidents, newest first."""


class FindingPage(Page[FindingRead]):
    """Findings, newest first."""


class PlanPage(Page[PlanRead]):
    """Plans, newest first."""


class UnknownPlanError(NotFoundError):
    slug, title = "unknown-plan", "Unknown plan"


@router.get("/incidents", operation_id="list_incidents")
def list_incidents(
    _: Reader,
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
    rows, cursor = paginate(session, statement, keys=(IncidentRow.opened_at, IncidentRow.id), page=page)
    return IncidentPage(items=[reading.read(row) for row in rows], next_cursor=cursor)


@router.get("/incidents/{id}", operation_id="get_incident")  # noqa: FAST003 - Id is its alias
def get_incident(incident_id: Id, _: Reader, session: Reading) -> IncidentDetail:
    """One incident: timeline, findings with their evidence, plan with its alternatives, actions."""
    return reading.read_detail(session, service.require(session, incident_id))


@router.post("/incidents/{id}:close", operation_id="close_incident")  # noqa: FAST003 - Id is its alias
def close_incident(
    incident_id: Id,
    body: ReasonBody,
    idempotency: Idempotency,
    principal: Actor,
    session: Writing,
    *,
    services: ServicesDep,
    now: Now,
) -> IncidentRead:
    """Close an incident by hand. What was found no longer counts; if it begins anew, a new incident opens."""
    row = service.require(session, incident_id)
    text = f"Closed by {principal.name}: {body.reason}"
    service.decide_by_hand(
        session, row, Trigger.CLOSED_BY_HUMAN, settings=services.settings.incidents, now=now, text=text,
        reason=body.reason,
    )  # fmt: skip
    return idempotency.remember(session, reading.read(row))


@router.post("/incidents/{id}:acknowledge", operation_id="acknowledge_incident")  # noqa: FAST003 - Id is its alias
def acknowledge_incident(
    incident_id: Id,
    body: ReasonBody,
    idempotency: Idempotency,
    principal: Actor,
    session: Writing,
    *,
    services: ServicesDep,
    now: Now,
) -> IncidentRead:
    """Say that a human has it: it no longer asks for one."""
    row = service.require(session, incident_id)
    text = f"Acknowledged by {principal.name}: {body.reason}"
    service.decide_by_hand(
        session, row, Trigger.ACKNOWLEDGED, settings=services.settings.incidents, now=now, text=text,
        reason=body.reason,
    )  # fmt: skip
    return idempotency.remember(session, reading.read(row))


@router.get("/findings", operation_id="list_findings")
def list_findings(
    _: Reader,
    session: Reading,
    page: Paging,
    *,
    node: NameFilter = None,
    job: NameFilter = None,
    kind: FindingKind | None = None,
    active: bool | None = None,
) -> FindingPage:
    """Findings, newest first; ``active`` those that hold, or those that do not any more."""
    statement = repository.findings(node=node, job=job, kind=kind, active=active)
    rows, cursor = paginate(session, statement, keys=(FindingRow.time, FindingRow.id), page=page)
    return FindingPage(items=[findings.read(row) for row in rows], next_cursor=cursor)


@router.get("/plans", operation_id="list_plans")
def list_plans(_: Reader, session: Reading, page: Paging, job: NameFilter = None) -> PlanPage:
    """Plans, newest first: what was possible, what it would have cost, what was chosen, what it did cost."""
    statement = select(PlanRow) if job is None else select(PlanRow).where(PlanRow.job == job)
    rows, cursor = paginate(session, statement, keys=(PlanRow.created_at, PlanRow.id), page=page)
    return PlanPage(items=reading.read_plans(session, rows), next_cursor=cursor)


@router.get("/plans/{id}", operation_id="get_plan")  # noqa: FAST003 - Id is its alias
def get_plan(plan_id: Id, _: Reader, session: Reading) -> PlanRead:
    """One plan."""
    row = session.get(PlanRow, plan_id)
    if row is None:
        raise UnknownPlanError(f"no plan has the id {plan_id!r}")
    return reading.read_plans(session, [row])[0]
