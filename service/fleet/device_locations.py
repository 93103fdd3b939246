"""Where hardware has been: one row an unbroken stay, so that a device takes its past along when it is moved."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import or_, select

from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.ids import new_id
from mainstay.service.fleet.models import DeviceLocationRow

MAX_STAYS = 50
"""Of one piece of hardware, in an answer: nothing is moved more often within the time that history is kept."""


def follow(session: WriteSession, node: str, there: Mapping[str, str], *, now: float) -> None:
    """Bring the stays in line with a node's report: ``there`` maps hardware to the node's name for it."""
    touching = or_(DeviceLocationRow.node == node, DeviceLocationRow.hardware.in_(there))
    begun: set[str] = set()
    for stay in session.scalars(select(DeviceLocationRow).where(DeviceLocationRow.left_at.is_(None), touching)):
        here = stay.node == node and there.get(stay.hardware) == stay.device
        if here:
            stay.last_seen_at = now
            begun.add(stay.hardware)
        elif stay.hardware in there or stay.node == node:
            stay.left_at = max(now, stay.first_seen_at)
    for hardware, device in sorted(there.items()):
        if hardware not in begun:
            made = {"hardware": hardware, "node": node, "device": device}
            session.add(DeviceLocationRow(id=new_id(), first_seen_at=now, last_seen_at=now, left_at=None, **made))
    session.flush()


def of_hardware(session: AnySession, hardware: str) -> list[DeviceLocationRow]:
    """Stays of one piece of hardware, the newest first."""
    statement = select(DeviceLocationRow).where(DeviceLocationRow.hardware == hardware)
    order = (DeviceLocationRow.first_seen_at.desc(), DeviceLocationRow.id.desc())
    return list(session.scalars(statement.order_by(*order).limit(MAX_STAYS)))
