"""``/v1/events``: stores each event once and hands durable events to the detection loop."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query

from mainstay.probes.core_types import EventKind
from mainstay.service.auth.guard import Reader, Reporter
from mainstay.service.auth.tokens import Principal, TokenKind
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Reporting
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.schemas import Name, QuerySeconds
from mainstay.service.events import repository, service
from mainstay.service.events.models import EventRow
from mainstay.service.events.schemas import EventBatch, EventIn, EventRead, EventsAccepted
from mainstay.service.fleet.service import require_nodes
from mainstay.service.services import ServicesDep

router = APIRouter(tags=["events"])


class EventPage(Page[EventRead]):
    """Events, newest first."""


OF_NODES: Final = frozenset(
    {
        *(EventKind.XID, EventKind.SXID, EventKind.GPU_LOST, EventKind.GPU_EVENT, EventKind.KERNEL_FAULT),
        *(EventKind.LINK_DOWN, EventKind.LINK_UP, EventKind.HEALTH_REPORT, EventKind.PROBE_UNRESPONSIVE),
        *(EventKind.NODE_STARTED, EventKind.NODE_STOPPING),
    }
)
"""What only a node knows of itself; it may take the node out of service."""


def check_author(principal: Principal, event: EventIn) -> None:
    """A node speaks for itself only, a job's token for its job only, and never of hardware.

    Raises:
        NotYourNodeError, NotYourJobError: it does not.
    """
    if event.kind in OF_NODES:
        principal.require_node(event.node or "")
    elif event.job is not None and principal.kind is not TokenKind.NODE:
        principal.require_job(event.job)
    else:
        principal.require_node(event.node or "")


@router.post("/events", operation_id="post_events")
def post_events(
    batch: EventBatch, principal: Reporter, session: Reporting, services: ServicesDep, now: Now
) -> EventsAccepted:
    """Store events (at most 500 per request). An event whose ID is already stored changes nothing.

    Hardware events (XIDs, lost GPUs, kernel faults, links) are accepted from the node itself or an admin, and about
    registered nodes only: one that is unknown refuses the whole batch.
    """
    for event in batch.items:
        check_author(principal, event)
    require_nodes(session, {event.node for event in batch.items if event.kind in OF_NODES and event.node is not None})
    new = service.store(session, services, batch.items, now=now)
    return EventsAccepted(accepted=len(new), duplicates=len(batch.items) - len(new))


@router.get("/events", operation_id="list_events")
def list_events(
    _: Reader,
    session: Reading,
    page: Paging,
    *,
    node: Annotated[Name | None, Query()] = None,
    job: Annotated[Name | None, Query()] = None,
    kind: EventKind | None = None,
    since: Annotated[QuerySeconds | None, Query(description="Not older than this, Unix seconds.")] = None,
) -> EventPage:
    """Events, newest first."""
    statement = repository.listing(node=node, job=job, kind=kind, since=since)
    rows, cursor = paginate(session, statement, keys=(EventRow.time, EventRow.id), page=page)
    return EventPage(items=[EventRead.model_validate(row) for row in rows], next_cursor=cursor)
