"""``/v1/events``: stores each event once and hands durable events to the detection loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Final

import anyio
from fastapi import APIRouter, Query

from mainstay.probes.core_types import EventKind
from mainstay.service.auth.access import of_jobs
from mainstay.service.auth.guard import Reader, Reporter
from mainstay.service.auth.tokens import Principal, Scope, TokenKind
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import ForbiddenError
from mainstay.service.common.schemas import Name, QuerySeconds
from mainstay.service.events import repository
from mainstay.service.events.models import EventRow
from mainstay.service.events.schemas import EventBatch, EventIn, EventRead, EventsAccepted
from mainstay.service.jobs import repository as jobs
from mainstay.service.services import Services, ServicesDep

_log: Final = logging.getLogger(__name__)
router = APIRouter(prefix="/v1", tags=["events"])


class EventPage(Page[EventRead]):
    """Events, newest first."""


_TOPOLOGY_SECONDS: Final = 60.0
"""A coordinator reports its topology every second; a sender that could not reach us for longer sends it first."""
OF_NODES: Final = frozenset(
    {
        *(EventKind.XID, EventKind.SXID, EventKind.GPU_LOST, EventKind.GPU_EVENT, EventKind.KERNEL_FAULT),
        *(EventKind.LINK_DOWN, EventKind.LINK_UP, EventKind.HEALTH_REPORT, EventKind.PROBE_UNRESPONSIVE),
        *(EventKind.NODE_STARTED, EventKind.NODE_STOPPING, EventKind.NODE_REBOOTED),
    }
)
"""What only a node knows of itself; it may take the node out of service."""


class NotYetInJobError(ForbiddenError):
    """Retried by the sender: the report that names the node may be on its way."""

    slug, title = "node-not-in-job", "Node not in the job"


def check_author(principal: Principal, event: EventIn, nodes_of: Callable[[str], frozenset[str]], now: float) -> None:
    """A node speaks for itself only; a job's token for its job and the nodes of its topology, and never of hardware.

    Args:
        principal: who sends the event.
        event: what is sent.
        nodes_of: the nodes that a job ever had.
        now: Unix seconds.

    Raises:
        NotYourNodeError, NotYourJobError: it does not.
        NotYetInJobError: the node is not in the topology, but the event is so young that it may be soon.
    """
    if event.kind in OF_NODES or event.job is None or principal.kind is TokenKind.NODE:
        principal.require_node(event.node or "")
        return
    principal.require_job(event.job)
    if event.node is None or principal.may(Scope.ADMIN) or event.node in nodes_of(event.job):
        return
    if event.time > now - _TOPOLOGY_SECONDS:
        raise NotYetInJobError(f"node {event.node!r} is not in the topology of job {event.job!r} yet")
    principal.require_node(event.node)


@router.post("/events", operation_id="post_events", responses=problems(404, 429, 503))
async def post_events(batch: EventBatch, principal: Reporter, services: ServicesDep, now: Now) -> EventsAccepted:
    """Store events (at most 500 per request). A stored ID changes nothing; an unknown kind is set aside.

    Hardware events (XIDs, lost GPUs, kernel faults, links) are accepted from the node itself or an admin, and about
    registered nodes only: one that is unknown refuses the whole batch. A job token may name nodes of its topology only.
    A token that sends more events than its quota is answered 429.
    """
    if batch.newer_kinds:
        kinds = ", ".join(sorted(set(batch.newer_kinds)))
        _log.warning("events from %s are of kinds that this version does not know: %s", principal.name, kinds)
    await _check_authors(services, principal, batch.items, now)
    services.quotas.charge_events(principal, len(batch.items))
    named = {event.node for event in batch.items if event.kind in OF_NODES and event.node is not None}
    await services.events.require_nodes(named)
    return await services.events.keep(batch.items, set_aside=len(batch.newer_kinds))


async def _check_authors(services: Services, principal: Principal, events: Sequence[EventIn], now: float) -> None:
    def check(nodes_of: Callable[[str], frozenset[str]]) -> None:
        for event in events:
            check_author(principal, event, nodes_of, now)

    def check_with_topology() -> None:
        with services.database.reading() as session:
            check(cache(lambda job: jobs.nodes_of(session, job)))

    if principal.kind is TokenKind.NODE or principal.may(Scope.ADMIN):
        check(lambda _job: frozenset())
    else:
        await anyio.to_thread.run_sync(check_with_topology, limiter=services.pressure.threads.machines)


@router.get("/events", operation_id="list_events")
def list_events(
    reader: Reader,
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
    statement = statement.where(*of_jobs(EventRow.job, reader.seen_jobs))
    rows, cursor = paginate(session, statement, keys=(EventRow.time, EventRow.id), page=page)
    return EventPage(items=[EventRead.model_validate(row) for row in rows], next_cursor=cursor)
