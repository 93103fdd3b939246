"""``/v1/ingest``: what other monitors know comes in here, in their own shapes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy import select

from mainstay.service.auth.guard import Admin, Reader, Reporter
from mainstay.service.auth.tokens import Principal
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Reporting, Writing, after_commit
from mainstay.service.common.idempotency import Idempotency
from mainstay.service.common.openapi import problems
from mainstay.service.common.outgoing import AddressPolicy, RefusedAddressError, is_address
from mainstay.service.common.outgoing_request import check_url
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.common.schemas import Name
from mainstay.service.events import service as events
from mainstay.service.fleet.service import require_nodes
from mainstay.service.incidents import service as incidents
from mainstay.service.incidents.repository import findings_of
from mainstay.service.services import ServicesDep
from mainstay.service.sources import gpud, loops, nvsentinel, targets
from mainstay.service.sources.models import DcgmTargetRow
from mainstay.service.sources.nvsentinel_export import AGENT, EmittedEvents, emit
from mainstay.service.sources.schemas import (
    DcgmTargetCreate,
    DcgmTargetRead,
    GpudStates,
    HealthEvent,
    IngestResult,
    OneOrMoreEvents,
)

router = APIRouter(prefix="/v1", tags=["ingest"])


class DcgmTargetPage(Page[DcgmTargetRead]):
    """Targets, newest first."""


@router.post("/ingest/health-events", operation_id="post_health_events", responses=problems(404))
def post_health_events(
    body: OneOrMoreEvents, principal: Reporter, session: Reporting, services: ServicesDep, now: Now
) -> IngestResult:
    """Accept one NVSentinel HealthEvent or ``{"events": [...]}`` (at most 500). A repeated event changes nothing.

    Events that Mainstay itself emitted are ignored, because a finding must not become evidence for itself.
    """
    told = [body] if isinstance(body, HealthEvent) else body.events
    services.quotas.charge_events(principal, len(told))
    for event in told:
        principal.require_node(event.nodeName)
    require_nodes(session, {event.nodeName for event in told})
    foreign = [event for event in told if event.agent != AGENT]
    made = [ours for event in foreign for ours in nvsentinel.translate(session, event)]
    new = events.store(session, services.wakers, made, now=now)
    return IngestResult(accepted=len(new), duplicates=len(made) - len(new) + len(told) - len(foreign))


@router.get("/incidents/{id}/nvsentinel", operation_id="get_incident_nvsentinel")
def get_incident_nvsentinel(
    incident: Annotated[Name, Path(alias="id")], _: Reader, session: Reading, services: ServicesDep
) -> EmittedEvents:
    """Return the findings about nodes as NVSentinel HealthEvents; STORE_ONLY while Mainstay takes no action."""
    row = incidents.require(session, incident)
    acts = services.settings.remediation.mode == "automatic"
    return emit(session, findings_of(session, row.id), acts=acts)


@router.post("/ingest/gpud-states", operation_id="post_gpud_states", responses=problems(404))
def post_gpud_states(
    body: GpudStates,
    principal: Reporter,
    session: Reporting,
    services: ServicesDep,
    *,
    now: Now,
    node: Annotated[
        Name | None, Query(description="The node of the states; not needed with a token of the node itself.")
    ] = None,
) -> IngestResult:
    """Accept the unchanged response of gpud to ``GET /v1/states``. Only changed states become events."""
    name = _whose(principal, node)
    require_nodes(session, {name})
    services.quotas.charge_events(principal, 1)
    made = gpud.changes(session, name, body, now=now)
    new = events.store(session, services.wakers, made, now=now)
    return IngestResult(accepted=len(new), duplicates=sum(len(part.states) for part in body) - len(new))


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
    """Start to scrape a dcgm-exporter. Its data is ignored for a node that has a node daemon."""
    host = check_url(body.url).hostname or ""
    if is_address(host):
        try:
            AddressPolicy.from_texts(services.settings.sources.allowed_networks).check(host)
        except RefusedAddressError as error:
            raise UnprocessableError(f"body.url: {error}") from error
    row = targets.create(
        session, url=body.url, node=body.node, interval=body.interval_seconds, enabled=body.enabled, now=now
    )
    after_commit(session, lambda: services.wakers.wake(loops.WAKER))
    return idempotency.remember(session, DcgmTargetRead.model_validate(row), 201)


@router.get("/ingest/dcgm-targets", operation_id="list_dcgm_targets")
def list_dcgm_targets(_: Reader, session: Reading, page: Paging) -> DcgmTargetPage:
    """Targets, newest first, with the reason if the latest scrape failed."""
    keys = (DcgmTargetRow.created_at, DcgmTargetRow.id)
    rows, cursor = paginate(session, select(DcgmTargetRow), keys=keys, page=page)
    return DcgmTargetPage(items=[DcgmTargetRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.delete("/ingest/dcgm-targets/{id}", operation_id="delete_dcgm_target", status_code=204)
def delete_dcgm_target(target: Annotated[Name, Path(alias="id")], _: Admin, session: Writing) -> Response:
    """Stop scraping the target; its data stays, and its node stops reporting."""
    targets.delete(session, target)
    return Response(status_code=204)
