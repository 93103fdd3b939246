"""Where hardware has been: one row an unbroken stay, so that a device takes its past along when it is moved."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import or_, select

from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.ids import new_id
from mainstay.service.fleet.models import DeviceLocationRow

MAX_STAYS = 50
"""Of one piece of hardware, in an answer: nothing is moved more often within the time that history is kept."""


def follow(session: WriteSession, there: Mapping[str, Mapping[str, str]], now: float) -> None:
    """Bring the stays in line with reports: ``there`` maps each node to hardware, and that to its device's name."""
    places = {hardware: (node, device) for node, found in there.items() for hardware, device in found.items()}
    touching = or_(DeviceLocationRow.node.in_(there), DeviceLocationRow.hardware.in_(places))
    begun: set[str] = set()
    for stay in session.scalars(select(DeviceLocationRow).where(DeviceLocationRow.left_at.is_(None), touching)):
        if places.get(stay.hardware) == (stay.node, stay.device):
            stay.last_seen_at = now
            begun.add(stay.hardware)
        else:
            stay.left_at = max(now, stay.first_seen_at)
    for hardware, (node, device) in sorted(places.items()):
        if hardware not in begun:
            made = {"hardware": hardware, "node": node, "device": device}
            session.add(DeviceLocationRow(id=new_id(), first_seen_at=now, last_seen_at=now, left_at=None, **made))
    session.flush()


def of_hardware(session: AnySession, hardware: str) -> list[DeviceLocationRow]:
    """Stays of one piece of hardware, the newest first."""
    statement = select(DeviceLocationRow).where(DeviceLocationRow.hardware == hardware)
    order = (DeviceLocationRow.first_seen_at.desc(), DeviceLocationRow.id.desc())
    return list(session.scalars(statement.order_by(*order).limit(MAX_STAYS)))
