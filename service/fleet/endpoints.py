"""Routes of the fleet: nodes, devices, and the heat-map's layout and bytes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field

from mainstay.probes.core_types import NAME_PATTERN, HealthState
from mainstay.probes.signals import SIGNALS
from mainstay.service.auth.guard import Reader, Reporter
from mainstay.service.common import compression
from mainstay.service.common.clock import Now
from mainstay.service.common.compression import AcceptEncoding
from mainstay.service.common.db import Reading
from mainstay.service.common.etag import IfNoneMatch, etag, matches, not_modified
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.common.schemas import QuerySeconds, ShortText
from mainstay.service.fleet import heatmap, node_list, past_states, repository, service
from mainstay.service.fleet import serializers as fleet_serializers
from mainstay.service.fleet.directory import read_nodes
from mainstay.service.fleet.models import DeviceRow
from mainstay.service.fleet.node_list import NodeFilter, NodeList, NodeSort
from mainstay.service.fleet.schemas import (
    DeviceRead,
    FleetDeviceFindingsRead,
    FleetHistoryRead,
    FleetJobsRead,
    HeatmapLayoutRead,
    NodeFacetsRead,
    NodeRead,
    NodeReportCreate,
)
from mainstay.service.incidents.node_suspicion import suspect_devices
from mainstay.service.incidents.repository import open_by_node
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["fleet"])
NodeName = Annotated[str, Path(pattern=NAME_PATTERN)]
NodeText = Annotated[ShortText | None, Query()]
NodeQueryName = Annotated[str, Field(pattern=NAME_PATTERN)]
MAX_DEVICES = 50
"""Nodes or devices that one request names: more would make its line too long for an HTTP parser."""


class NodePage(Page[NodeRead]):
    """Nodes of a filter, in order."""

    total: int
    """How many nodes meet the filter, on all pages."""
    facets: NodeFacetsRead | None
    """With ``facets=true``."""
    names: list[str] | None
    """Of all that meet the filter, with ``facets=true`` and where there is one."""


class DevicePage(Page[DeviceRead]):
    """Devices by node and id."""


@router.put("/nodes/{name}", operation_id="put_node")
async def put_node(name: NodeName, body: NodeReportCreate, principal: Reporter, services: ServicesDep) -> NodeRead:
    """Report a node. Its daemon sends this at the start and after each change."""
    principal.require_node(name)
    if principal.node != name and services.seen.get(name) is None:  # not heard since this process began
        services.quotas.charge_entity(principal)
    return await services.reports.keep(name, body)


def _filter(
    state: HealthState | None = None,
    rack: NodeText = None,
    cohort: NodeText = None,
    job: NodeText = None,
    q: NodeText = None,
) -> NodeFilter:
    return NodeFilter(state=state, rack=rack, cohort=cohort, job=job, text=q)


@router.get("/nodes", operation_id="list_nodes")
def list_nodes(
    _reader: Reader,
    services: ServicesDep,
    session: Reading,
    page: Paging,
    now: Now,
    *,
    wanted: Annotated[NodeFilter, Depends(_filter)],
    sort: NodeSort = NodeSort.NAME,
    facets: bool = False,
) -> NodePage:
    """Nodes in the order of ``sort``; ``q`` matches name, host name, rack, and cohort."""
    jobs = services.occupancy.by_node(session)
    fleet = services.fleet.current(session)
    listed = NodeList(fleet.nodes.values(), wanted, jobs)
    names, cursor = node_list.page_of(
        listed.matching, sort, page,
        seen=lambda node: max(node.last_seen_at or 0.0, services.seen.get(node.name) or 0.0),
        incidents=open_by_node(session) if sort.endswith("incidents") else {},
    )  # fmt: skip
    return NodePage(
        items=fleet_serializers.serialize_nodes(
            session, [fleet.nodes[name] for name in names], services.seen, jobs, now
        ),
        next_cursor=cursor,
        total=len(listed.matching),
        facets=listed.facets() if facets else None,
        names=[node.name for node in listed.matching] if facets and wanted != NodeFilter() else None,
    )


@router.get("/nodes/{name}", operation_id="get_node")
def get_node(name: NodeName, _reader: Reader, services: ServicesDep, session: Reading, now: Now) -> NodeRead:
    """One node."""
    service.require_node(session, name)
    jobs = services.occupancy.by_node(session)
    return fleet_serializers.serialize_nodes(session, read_nodes(session, [name]), services.seen, jobs, now)[0]


@router.get("/devices", operation_id="list_devices")
def list_devices(
    _reader: Reader,
    session: Reading,
    page: Paging,
    node: Annotated[list[NodeQueryName] | None, Query(max_length=MAX_DEVICES)] = None,
    device: Annotated[list[ShortText] | None, Query(max_length=MAX_DEVICES)] = None,
) -> DevicePage:
    """Devices of these nodes with these IDs; without nodes or IDs, of all."""
    statement = repository.devices(nodes=node or (), ids=device or ())
    keys = (DeviceRow.node, DeviceRow.id)
    rows, cursor = paginate(session, statement, keys=keys, page=page, descending=False)
    return DevicePage(items=[DeviceRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.get(
    "/fleet/heatmap-layout",
    operation_id="get_fleet_heatmap_layout",
    response_model=HeatmapLayoutRead,
    responses={304: {"description": "Not modified"}},
)
def get_layout(
    _reader: Reader,
    services: ServicesDep,
    session: Reading,
    accept_encoding: AcceptEncoding = "",
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The stable order of the fleet's devices, in columns, with an ETag."""
    layout = services.layout.get(services.fleet.current(session))
    encoding = compression.choose(accept_encoding)
    tag = etag(layout.version)
    if matches(tag, if_none_match):
        return not_modified(tag)
    headers = {"ETag": tag, **compression.headers(encoding)}
    return Response(layout.body.get(encoding), media_type="application/json", headers=headers)


@router.get("/fleet/jobs", operation_id="get_fleet_jobs")
def get_jobs(_reader: Reader, services: ServicesDep, session: Reading) -> FleetJobsRead:
    """The job of each node, in the order of the layout."""
    layout = services.layout.get(services.fleet.current(session))
    running = services.occupancy.by_node(session)
    jobs = [min(running.get(name, ("",))) for name in layout.names]
    places = {job: place for place, job in enumerate(dict.fromkeys(jobs))}
    return FleetJobsRead(layout=layout.version, jobs=list(places), job_of=[places[job] for job in jobs])


@router.get(
    "/fleet/heatmap",
    operation_id="get_fleet_heatmap",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def get_snapshot(
    _reader: Reader,
    services: ServicesDep,
    session: Reading,
    now: Now,
    signal: Annotated[str, Query(max_length=128)] = "state",
    at: Annotated[QuerySeconds | None, Query()] = None,
) -> Response:
    """One byte per slot of the layout: 0 to 250 between the low and high values in the headers, 255 if unknown.

    With ``at``, in Unix seconds, the states at that time: 255 before ``X-Mainstay-History-Since`` and in the future.
    """
    fleet = services.fleet.current(session)
    layout = services.layout.get(fleet)
    since = past_states.known_since(fleet, services.settings.retention.days, now)
    if at is not None:
        if signal != "state":
            raise UnprocessableError(f"signal {signal!r} has no past on the map: only 'state' has. Leave out 'at'.")
        made = heatmap.of_states(layout, past_states.states_at(session, at) if since <= at <= now else {})
    elif signal == "state":
        made = heatmap.of_states(layout, {node.name: node.state for node in fleet.nodes.values()})
    elif signal in SIGNALS and SIGNALS[signal].source in services.ring.sources:
        made = heatmap.of_signal(services.layout, layout, services.ring, signal, now)
    else:
        raise UnprocessableError(f"signal {signal!r} is neither 'state' nor one of a node's or GPU's signals")
    headers = {
        "X-Mainstay-Low": repr(made.low),
        "X-Mainstay-High": repr(made.high),
        "X-Mainstay-Heatmap-Layout": layout.version,
        "X-Mainstay-Time": repr(now if at is None else at),
        "X-Mainstay-History-Since": repr(since),
        "Cache-Control": "no-store",
    }
    return Response(made.body, media_type="application/octet-stream", headers=headers)


@router.get("/fleet/device-findings", operation_id="get_fleet_device_findings")
def get_device_findings(
    _reader: Reader,
    services: ServicesDep,
    session: Reading,
    now: Now,
    at: Annotated[QuerySeconds | None, Query()] = None,
) -> FleetDeviceFindingsRead:
    """The devices of the layout with an active finding that counts against the node; those without are absent.

    With ``at``, in Unix seconds, the findings of that time: none from where the map is unknown.
    """
    fleet = services.fleet.current(session)
    layout = services.layout.get(fleet)
    known = at is None or past_states.known_since(fleet, services.settings.retention.days, now) <= at <= now
    said = suspect_devices(session, at) if known else {}
    placed = [(layout.slots[place], *told) for place, told in said.items() if place in layout.slots]
    slots, severities, kinds = map(list, zip(*placed, strict=True)) if placed else ([], [], [])
    return FleetDeviceFindingsRead(layout=layout.version, slots=slots, severities=severities, kinds=kinds)


@router.get("/fleet/history", operation_id="get_fleet_history")
def get_history(
    _reader: Reader,
    services: ServicesDep,
    session: Reading,
    now: Now,
    *,
    since: Annotated[QuerySeconds | None, Query()] = None,
    until: Annotated[QuerySeconds | None, Query()] = None,
    buckets: Annotated[int, Query(ge=1, le=200)] = 96,
) -> FleetHistoryRead:
    """Nodes by state, and incidents, between ``since`` and ``until`` in Unix seconds: by default, the last 24 hours."""
    until = now if until is None else min(until, now)
    since = until - 86_400.0 if since is None else since
    if since >= until:
        raise UnprocessableError("since must be earlier than until, and than now")
    span = past_states.Timespan(since, until, buckets)
    known = past_states.known_since(services.fleet.current(session), services.settings.retention.days, now)
    counts = past_states.count_states(session, span) * (span.ends >= known)[:, None]
    return FleetHistoryRead(
        since=since, until=until, known_since=known, times=span.ends.tolist(),
        states={state: counts[:, place].tolist() for place, state in enumerate(HealthState)},
        incidents=past_states.count_incidents(session, span).tolist(),
    )  # fmt: skip
