"""Routes of one piece of hardware: where it is and was, and everything that happened to it there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from mainstay.probes.core_types import NAME_PATTERN
from mainstay.service.auth.guard import Reader
from mainstay.service.common.db import Reading
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging
from mainstay.service.common.schemas import ShortText
from mainstay.service.fleet import device_history
from mainstay.service.fleet.schemas import DeviceDetail, HistoryEntry

router = APIRouter(prefix="/v1", tags=["fleet"])
DeviceId = Annotated[
    ShortText,
    Path(min_length=1, description="Serial number, UUID, or the device ID on its node if only one device has that ID."),
]
OfNode = Annotated[str | None, Query(pattern=NAME_PATTERN, description="The node on which the device has this ID.")]


class HistoryPage(Page[HistoryEntry]):
    """The history of a device, newest first."""


@router.get("/devices/{device}", operation_id="get_device", responses=problems(409))
def get_device(device: DeviceId, _: Reader, session: Reading, node: OfNode = None) -> DeviceDetail:
    """One device and its locations."""
    return device_history.read_device(session, device_history.find(session, device, node))


@router.get("/devices/{device}/history", operation_id="list_device_history", responses=problems(409))
def list_history(device: DeviceId, _: Reader, session: Reading, page: Paging, node: OfNode = None) -> HistoryPage:
    """Findings, events, verdicts, transitions, and remediations of the hardware, at all its locations."""
    entries, cursor = device_history.page(session, device_history.find(session, device, node), page)
    return HistoryPage(items=entries, next_cursor=cursor)
