"""Where hardware has been: one row an unbroken stay, so that a device takes its past along when it is moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import case, insert, literal, or_, select, update

from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, UnixTime, WriteSession
from mainstay.service.fleet.models import DeviceLocationRow

MAX_STAYS = 50
"""Of one piece of hardware, in an answer: nothing is moved more often within the time that history is kept."""


def follow(session: WriteSession, there: Mapping[str, Mapping[str, str]], now: float) -> None:
    """Bring the stays in line with reports: ``there`` maps each node to hardware, and that to its device's name."""
    places = {hardware: (node, device) for node, found in there.items() for hardware, device in found.items()}
    touching = or_(DeviceLocationRow.node.in_(there), DeviceLocationRow.hardware.in_(places))
    columns = (DeviceLocationRow.id, DeviceLocationRow.hardware, DeviceLocationRow.node, DeviceLocationRow.device)
    open_stays = session.execute(select(*columns).where(DeviceLocationRow.left_at.is_(None), touching)).all()
    stays = {hardware: stay for stay, hardware, *place in open_stays if places.get(hardware) == tuple(place)}
    left = {stay for stay, *_ in open_stays} - set(stays.values())
    _update(session, stays.values(), last_seen_at=now)
    began = DeviceLocationRow.first_seen_at
    _update(session, left, left_at=case((began > now, began), else_=literal(now, UnixTime())))
    begun = [
        {
            "id": uuid7(), "hardware": hardware, "node": node, "device": device, "first_seen_at": now,
            "last_seen_at": now, "left_at": None,
        }
        for hardware, (node, device) in sorted(places.items()) if hardware not in stays
    ]  # fmt: skip
    if begun:
        session.execute(insert(DeviceLocationRow), begun)


def _update(session: WriteSession, ids: Collection[str], **values: Any) -> None:
    if ids:
        session.execute(update(DeviceLocationRow).where(DeviceLocationRow.id.in_(ids)).values(**values))


def of_hardware(session: AnySession, hardware: str) -> list[DeviceLocationRow]:
    """Stays of one piece of hardware, the newest first."""
    statement = select(DeviceLocationRow).where(DeviceLocationRow.hardware == hardware)
    order = (DeviceLocationRow.first_seen_at.desc(), DeviceLocationRow.id.desc())
    return list(session.scalars(statement.order_by(*order).limit(MAX_STAYS)))
