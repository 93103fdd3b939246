"""Routes of the fleet: nodes, devices, and the heat-map's layout and bytes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from mainstay.probes.core_types import NAME_PATTERN, HealthState
from mainstay.probes.signals import SIGNALS
from mainstay.service.auth.guard import Reader, Reporter
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading
from mainstay.service.common.etag import IfNoneMatch, etag, matches, not_modified
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.common.schemas import ShortText
from mainstay.service.fleet import heatmap, repository, service
from mainstay.service.fleet import serializers as fleet_serializers
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.fleet.schemas import DeviceRead, HeatmapLayoutRead, NodeRead, NodeReportCreate
from mainstay.service.services import ServicesDep

router = APIRouter(tags=["fleet"])
NodeName = Annotated[str, Path(pattern=NAME_PATTERN)]


class NodePage(Page[NodeRead]):
    """Nodes by name."""


class DevicePage(Page[DeviceRead]):
    """Devices by node and id."""


@router.put("/nodes/{name}", operation_id="put_node")
async def put_node(name: NodeName, body: NodeReportCreate, principal: Reporter, services: ServicesDep) -> NodeRead:
    """Report a node. Its daemon sends this at the start and after each change."""
    principal.require_node(name)
    return await services.reports.keep(name, body)


@router.get("/nodes", operation_id="list_nodes")
def list_nodes(
    _reader: Reader,
    services: ServicesDep,
    session: Reading,
    page: Paging,
    now: Now,
    *,
    state: HealthState | None = None,
    q: Annotated[ShortText | None, Query()] = None,
) -> NodePage:
    """Nodes by name; ``q`` matches name, host name, and cohort."""
    statement = repository.nodes(state=state, text=q)
    rows, cursor = paginate(session, statement, keys=(NodeRow.name,), page=page, descending=False)
    return NodePage(items=fleet_serializers.serialize_nodes(session, rows, services.seen, now), next_cursor=cursor)


@router.get("/nodes/{name}", operation_id="get_node")
def get_node(name: NodeName, _reader: Reader, services: ServicesDep, session: Reading, now: Now) -> NodeRead:
    """One node."""
    row = service.require_node(session, name)
    return fleet_serializers.serialize_nodes(session, [row], services.seen, now)[0]


@router.get("/devices", operation_id="list_devices")
def list_devices(
    _reader: Reader,
    session: Reading,
    page: Paging,
    node: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
) -> DevicePage:
    """Devices of one node or of all."""
    statement = repository.devices(node=node)
    keys = (DeviceRow.node, DeviceRow.id)
    rows, cursor = paginate(session, statement, keys=keys, page=page, descending=False)
    return DevicePage(items=[DeviceRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.get(
    "/fleet/heatmap-layout", operation_id="get_fleet_heatmap_layout", responses={304: {"description": "Not modified"}}
)
def get_layout(
    _reader: Reader, services: ServicesDep, response: Response, now: Now, if_none_match: IfNoneMatch = None
) -> HeatmapLayoutRead:
    """The stable order of the fleet's devices, with an ETag."""
    layout = services.layout.get(now)
    tag = etag(layout.version)
    if matches(tag, if_none_match):
        return not_modified(tag)  # type: ignore[return-value] # FastAPI passes a response through
    response.headers["ETag"] = tag
    return layout.read()


@router.get(
    "/fleet/heatmap",
    operation_id="get_fleet_heatmap",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def get_snapshot(
    _reader: Reader,
    services: ServicesDep,
    now: Now,
    signal: Annotated[str, Query(max_length=128)] = "state",
) -> Response:
    """One byte per slot of the layout: 0 to 250 between the low and high values in the headers, 255 if unknown."""
    layout = services.layout.get(now)
    if signal == "state":
        made = heatmap.of_states(layout)
    elif signal in SIGNALS and SIGNALS[signal].source in services.ring.sources:
        made = heatmap.of_signal(layout, services.ring, signal, now)
    else:
        raise UnprocessableError(f"signal {signal!r} is neither 'state' nor one of a node's or GPU's signals")
    headers = {
        "X-Mainstay-Low": repr(made.low),
        "X-Mainstay-High": repr(made.high),
        "X-Mainstay-Heatmap-Layout": layout.version,
        "X-Mainstay-Time": repr(now),
        "Cache-Control": "no-store",
    }
    return Response(made.body, media_type="application/octet-stream", headers=headers)
