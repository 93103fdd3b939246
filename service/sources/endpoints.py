"""``/v1/ingest``: what other monitors know comes in here, in their own shapes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy import select

from service.auth.guard import Admin, Reader, Reporter
from service.auth.tokens import Principal
from service.events import service as events
from service.incidents import service as incidents
from service.incidents.repository import findings_of
from service.kit.clock import Now
from service.kit.db import Reading, Writing, after_commit
from service.kit.idempotency import Idempotency
from service.kit.openapi import problems
from service.kit.pagination import Page, Paging, paginate
from service.kit.problem import UnprocessableError
from service.kit.schemas import Name
from service.services import ServicesDep
from service.sources import gpud, loops, nvsentinel, targets
from service.sources.emit import AGENT, EmittedEvents, emit
from service.sources.models import DcgmTargetRow
from service.sources.schemas import (
    DcgmTargetCreate,
    DcgmTargetRead,
    GpudStates,
    HealthEvent,
    OneOrMoreEvents,
    Taken,
)

router = APIRouter(tags=["ingest"])


class DcgmTargetPage(Page[DcgmTargetRead]):
    """Targets, newest first."""


@router.post("/ingest/health-events", operation_id="post_health_events")
def post_health_events(
    body: OneOrMoreEvents, principal: Reporter, session: Writing, services: ServicesDep, now: Now
) -> Taken:
    """NVSentinel's HealthEvent, one or ``{"events": [...]}`` (at most 500). The same event again changes nothing.

    Events that Mainstay itself emitted are taken for known: what we found must not come back as evidence for it.
    """
    told = [body] if isinstance(body, HealthEvent) else body.events
    for event in told:
        principal.require_node(event.nodeName)
    foreign = [event for event in told if event.agent != AGENT]
    made = [ours for event in foreign for ours in nvsentinel.translate(session, event)]
    new = events.store(session, services, made, now=now)
    return Taken(accepted=len(new), duplicates=len(made) - len(new) + len(told) - len(foreign))


@router.get("/incidents/{id}/nvsentinel", operation_id="get_incident_nvsentinel")
def get_incident_nvsentinel(
    incident: Annotated[Name, Path(alias="id")], _: Reader, session: Reading, services: ServicesDep
) -> EmittedEvents:
    """What was found about nodes, as NVSentinel's HealthEvents; STORE_ONLY while the machine acts on nothing."""
    row = incidents.require(session, incident)
    acts = services.settings.remediation.mode == "automatic"
    return emit(session, findings_of(session, row.id), acts=acts)


@router.post("/ingest/gpud-states", operation_id="post_gpud_states")
def post_gpud_states(
    body: GpudStates,
    principal: Reporter,
    session: Writing,
    services: ServicesDep,
    *,
    now: Now,
    node: Annotated[Name | None, Query(description="Whose states; a node's own token need not say it.")] = None,
) -> Taken:
    """What gpud answers to ``GET /v1/states``, as it is. Only states that changed become events."""
    name = _whose(principal, node)
    made = gpud.changes(session, name, body, now=now)
    new = events.store(session, services, made, now=now)
    return Taken(accepted=len(new), duplicates=sum(len(part.states) for part in body) - len(new))


def _whose(principal: Principal, node: str | None) -> str:
    name = node or principal.node
    if name is None:
        raise UnprocessableError("say whose states these are: ?node=NAME")
    principal.require_node(name)
    return name


@router.post("/ingest/dcgm-targets", operation_id="create_dcgm_target", status_code=201, responses=problems(409))
def create_dcgm_target(
    body: DcgmTargetCreate, idempotency: Idempotency, _: Admin, session: Writing, services: ServicesDep, *, now: Now
) -> DcgmTargetRead:
    """Scrape a dcgm-exporter from now on. A node with a daemon of its own is not fed from it."""
    row = targets.create(
        session, url=body.url, node=body.node, interval=body.interval_seconds, enabled=body.enabled, now=now
    )
    after_commit(session, lambda: services.wakers.wake(loops.WAKER))
    return idempotency.remember(session, DcgmTargetRead.model_validate(row), 201)


@router.get("/ingest/dcgm-targets", operation_id="list_dcgm_targets")
def list_dcgm_targets(_: Reader, session: Reading, page: Paging) -> DcgmTargetPage:
    """Targets, newest first, with why the latest scrape failed."""
    keys = (DcgmTargetRow.created_at, DcgmTargetRow.id)
    rows, cursor = paginate(session, select(DcgmTargetRow), keys=keys, page=page)
    return DcgmTargetPage(items=[DcgmTargetRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.delete("/ingest/dcgm-targets/{id}", operation_id="delete_dcgm_target", status_code=204)
def delete_dcgm_target(target: Annotated[Name, Path(alias="id")], _: Admin, session: Writing) -> Response:
    """Scrape it no more; what it told stays, and its node falls silent."""
    targets.delete(session, target)
    return Response(status_code=204)
