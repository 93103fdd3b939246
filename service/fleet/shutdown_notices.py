"""Shutdown notices: the silence of a daemon that ended in order is expected.

A notice may arrive late, out of a spool; it counts only while the node has sent no newer data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import select

from mainstay.probes.core_types import EventKind, HealthState
from mainstay.service.common.db import WriteSession
from mainstay.service.events.schemas import EventIn
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.transitions import propose
from mainstay.service.stream.changes import Topic, record_change

_REASONS: Final = frozenset({"stopped", "shutdown"})
_KINDS: Final = frozenset({EventKind.NODE_STOPPING, EventKind.NODE_STARTED})


def apply_notices(session: WriteSession, events: Iterable[EventIn], *, now: float) -> None:
    """Note which nodes' daemons stop in order, and which began; other events are not for us."""
    told = [event for event in events if event.kind in _KINDS and event.node is not None]
    names = {event.node for event in told}
    rows = {row.name: row for row in session.scalars(select(NodeRow).where(NodeRow.name.in_(names)))} if told else {}
    for event in sorted(told, key=lambda event: (event.node or "", event.time)):
        row = rows.get(event.node or "")
        if row is not None:
            _hear_one(session, row, event, now)


def _hear_one(session: WriteSession, row: NodeRow, event: EventIn, now: float) -> None:
    began = row.started_at or 0.0  # by the node's own clock, as the event's time is
    if event.time >= began:
        record_change(session, Topic.NODE, {"id": row.name, "reason": event.kind.value})
    if event.kind is EventKind.NODE_STARTED:
        if event.time >= began:
            row.started_at, row.stopped_at = event.time, None
        return
    if event.time < began:
        return
    row.stopped_at = now
    session.flush()
    why = f"stopped in order ({_reason(event.data)})"
    propose(
        session,
        row,
        NodeTrigger.STOPPED,
        reason=why,
        now=now,
        known=NodeFacts(state=HealthState(row.state), silent=True),
    )


def _reason(data: dict[str, Any]) -> str:
    said = data.get("reason")
    return said if isinstance(said, str) and said in _REASONS else "stopped"
