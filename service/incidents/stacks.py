"""Stacks of a job's processes, and what their flight recorders show, with the incident that they explain.

The event and the incident may arrive in either order.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import select

from mainstay.detectors.finding import join_names
from mainstay.probes.core_types import Event, EventKind
from mainstay.service.common.db import WriteSession
from mainstay.service.events import repository as events
from mainstay.service.events.models import EventRow
from mainstay.service.incidents import repository
from mainstay.service.incidents.models import IncidentRow, TimelineRow
from mainstay.service.incidents.service import add_timeline_entry

EARLY_SECONDS: Final = 60.0
"""How much older than its incident a dump may be: the coordinator looks at stacks before the service is certain."""
KINDS: Final = (EventKind.STACK_DUMP, EventKind.FLIGHT_RECORDER)
MAX_DUMPS: Final = 32
"""Dumps shown with one incident when it opens, the newest; of a wide hang some ranks' stacks tell what all do."""
FLIGHT_FIELDS: Final = ("kind", "certain", "culprits", "ranks_read", "ranks_missing", "problem")
MAX_NAMED: Final = 16
MAX_THREADS: Final = 64
MAX_FRAMES: Final = 128
MAX_TEXT: Final = 300


def follow(session: WriteSession, event: Event) -> None:
    """Show a dump with the job's open incident; without one it waits for ``adopt``."""
    if event.job is None:
        return
    incident = repository.live_of_job(session, event.job, rank=event.rank)
    if incident is not None and not _is_shown(session, incident, event):
        _show(session, incident, event)


def _is_shown(session: WriteSession, incident: IncidentRow, event: Event) -> bool:
    """Whether ``adopt`` took it: an event before it in the same batch opened the incident."""
    entries = select(TimelineRow.data).where(
        TimelineRow.incident_id == incident.id, TimelineRow.kind == event.kind.value
    )
    return any(data.get("event") == event.id for data in session.scalars(entries))


def adopt(session: WriteSession, incident: IncidentRow) -> None:
    """Show the dumps that came before the incident opened."""
    if incident.job is None:
        return
    statement = (
        select(EventRow)
        .where(
            EventRow.kind.in_(kind.value for kind in KINDS),
            EventRow.job == incident.job,
            EventRow.judged_at.is_not(None),
            EventRow.received_at >= incident.opened_at - EARLY_SECONDS,
        )
        .order_by(EventRow.received_at.desc())
        .limit(MAX_DUMPS)
    )
    for row in reversed(list(session.scalars(statement))):
        _show(session, incident, events.to_event(row))


def _show(session: WriteSession, incident: IncidentRow, event: Event) -> None:
    if event.kind is EventKind.FLIGHT_RECORDER:
        _show_flight_recorder(session, incident, event)
        return
    who = f"rank {event.rank}" if event.rank is not None else f"job {event.job}"
    where = "" if event.node is None else f" on {event.node}"
    reason = event.data.get("reason")
    why = f": {reason[:MAX_TEXT].rstrip('.')}" if isinstance(reason, str) and reason else ""
    data: dict[str, Any] = {
        "event": event.id, "rank": event.rank, "node": event.node, "reason": reason if why else "",
        "tool": _text(event.data.get("tool")), "stacks": _stacks(event.data.get("stacks")),
    }  # fmt: skip
    text = f"Stacks of {who}{where}{why}."
    add_timeline_entry(session, incident, time=event.time, kind=event.kind.value, text=text[:2000], data=data)


def _show_flight_recorder(session: WriteSession, incident: IncidentRow, event: Event) -> None:
    """The diagnosis in one line; who is missing says how far it goes."""
    missing = event.data.get("ranks_missing")
    absent = [rank for rank in missing if isinstance(rank, int)] if isinstance(missing, list) else []
    text = f"Flight recorder: {_text(event.data.get('summary')) or 'no summary'}"
    if absent:
        text += f" No dump from rank{'s' if len(absent) > 1 else ''} {join_names(absent, MAX_NAMED)}."
    data = {"event": event.id} | {key: value for key, value in event.data.items() if key in FLIGHT_FIELDS}
    add_timeline_entry(session, incident, time=event.time, kind=event.kind.value, text=text[:2000], data=data)


def _stacks(told: Any) -> list[dict[str, Any]]:
    """``[{thread, frames: [text, innermost first]}]``, bounded; what is no stack is left out."""
    found = []
    for stack in (told if isinstance(told, list) else [])[:MAX_THREADS]:
        frames = stack.get("frames") if isinstance(stack, dict) else None
        if isinstance(frames, list):
            lines = [frame[:MAX_TEXT] for frame in frames[:MAX_FRAMES] if isinstance(frame, str)]
            found.append({"thread": _text(stack.get("thread")), "frames": lines})
    return found


def _text(value: Any) -> str:
    return str(value)[:MAX_TEXT] if isinstance(value, str | int) else ""
