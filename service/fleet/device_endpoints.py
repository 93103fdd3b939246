"""Routes of one piece of hardware: where it is and was, and everything that happened to it there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from probes.words import NAME_PATTERN
from service.auth.guard import Reader
from service.fleet import history
from service.fleet.schemas import DeviceDetail, HistoryEntry
from service.kit.db import Reading
from service.kit.openapi import problems
from service.kit.pagination import Page, Paging
from service.kit.schemas import ShortText

router = APIRouter(tags=["fleet"])
DeviceId = Annotated[
    ShortText,
    Path(min_length=1, description="Serial number, UUID, or the node's name for it where only one device has it."),
]
OfNode = Annotated[str | None, Query(pattern=NAME_PATTERN, description="The node that calls it so.")]


class HistoryPage(Page[HistoryEntry]):
    """What happened to a device, newest first."""


@router.get("/devices/{device}", operation_id="get_device", responses=problems(409))
def get_device(device: DeviceId, _: Reader, session: Reading, node: OfNode = None) -> DeviceDetail:
    """One device and where it has been."""
    return history.read_device(session, history.find(session, device, node))


@router.get("/devices/{device}/history", operation_id="list_device_history", responses=problems(409))
def list_history(device: DeviceId, _: Reader, session: Reading, page: Paging, node: OfNode = None) -> HistoryPage:
    """Findings, events, verdicts, moves and remediations of the hardware, wherever it sat."""
    entries, cursor = history.page(session, history.find(session, device, node), page)
    return HistoryPage(items=entries, next_cursor=cursor)
