"""Counting XIDs by card, in the transaction that stores the event: a counter that never falls.

One XID is often told twice, by the driver's event and by a line of the kernel's log. Told by another source within
``SAME_SECONDS`` of the last it is the same one again. An event that stands for a whole burst has a ``count``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select

from mainstay.probes.core_types import EventKind
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.rows import insert_into
from mainstay.service.events.models import XidTotalRow
from mainstay.service.events.schemas import EventIn
from mainstay.service.fleet.models import DeviceRow

SAME_SECONDS: Final = 5.0
"""A log line is read within a second or two of the driver's event."""
MAX_XID: Final = 1_000_000
MAX_TIMES: Final = 1_000_000
"""One event cannot stand for more: 11,760 of one job's clean-up is the most that was ever reported."""


@dataclass
class _Total:
    added: int
    first_at: float
    last_at: float
    source: str

    def record_xid(self, time: float, source: str, times: int) -> None:
        if source == self.source or abs(time - self.last_at) > SAME_SECONDS:
            self.added += times
        self.first_at, self.last_at = min(self.first_at, time), max(self.last_at, time)
        self.source = source


def count(session: WriteSession, events: Sequence[EventIn]) -> None:
    """Add the XIDs among newly stored events; what has no readable code is not counted."""
    told = [(event, code) for event in events if (code := _code(event)) is not None]
    if not told:
        return
    cards = _cards(session, [event for event, _ in told])
    keys = {(cards[event.node, event.device], code) for event, code in told}
    known = {(row.gpu, row.xid): row for row in session.scalars(_rows(keys))}
    found: dict[tuple[str, int], _Total] = {}
    for event, code in sorted(told, key=lambda pair: pair[0].time):
        key = (cards[event.node, event.device], code)
        source, row = str(event.data.get("source", ""))[:32], known.get(key)
        if key not in found and row is not None:
            found[key] = _Total(0, row.first_at, row.last_at, row.last_source)
        total = found.setdefault(key, _Total(0, event.time, event.time, source))
        total.record_xid(event.time, source, _times(event))
    _write(session, found)


def _code(event: EventIn) -> int | None:
    code = event.data.get("code") if event.kind is EventKind.XID else None
    return code if isinstance(code, int) and not isinstance(code, bool) and 0 <= code < MAX_XID else None


def _times(event: EventIn) -> int:
    count = event.data.get("count")
    return min(max(count, 1), MAX_TIMES) if isinstance(count, int) and not isinstance(count, bool) else 1


def _rows(keys: set[tuple[str, int]]) -> Any:
    # By GPU alone, and so a few too many: SQLite finds no pairs in an index.
    return select(XidTotalRow).where(XidTotalRow.gpu.in_(sorted({gpu for gpu, _ in keys})))


def _cards(session: AnySession, events: Sequence[EventIn]) -> dict[tuple[str | None, str | None], str]:
    """(node, device) → the UUID of what sits there now, or a name that says where."""
    nodes = {event.node for event in events if event.node is not None}
    statement = select(DeviceRow.node, DeviceRow.id, DeviceRow.uuid).where(DeviceRow.node.in_(nodes))
    uuids: dict[tuple[str | None, str | None], str] = {}
    uuids |= {(node, device): uuid for node, device, uuid in session.execute(statement) if uuid}
    places = {(event.node, event.device) for event in events}
    return {place: uuids.get(place) or "/".join(part for part in place if part) for place in places}


def _write(session: WriteSession, found: dict[tuple[str, int], _Total]) -> None:
    statement = insert_into(session, XidTotalRow)
    new = statement.excluded
    grown: dict[str, Any] = {name: new[name] for name in ("first_at", "last_at", "last_source")}
    grown["total"] = XidTotalRow.total + new.total
    rows = [
        {
            "gpu": gpu, "xid": xid, "total": total.added, "first_at": total.first_at, "last_at": total.last_at,
            "last_source": total.source,
        }
        for (gpu, xid), total in sorted(found.items())
    ]  # fmt: skip
    session.connection().execute(statement.on_conflict_do_update(index_elements=["gpu", "xid"], set_=grown), rows)
