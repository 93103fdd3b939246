"""The reboot of a node, on the timeline of each open incident with a finding about the node."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select

from mainstay.detectors.event_data import number
from mainstay.probes.core_types import Event, EventKind
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.time_texts import iso_time
from mainstay.service.events.models import EventRow
from mainstay.service.incidents import repository
from mainstay.service.incidents.service import add_timeline_entry


def follow(session: WriteSession, event: Event) -> None:
    """Tell a ``node_rebooted`` event."""
    for incident in repository.live_of_node(session, event.node or ""):
        add_timeline_entry(
            session, incident, time=event.time, kind=event.kind.value, text=_text(event), data={"event": event.id}
        )


def rebooted(session: AnySession, since: Mapping[str, float]) -> set[str]:
    """Those nodes that reported another boot at or after a time, Unix seconds."""
    if not since:
        return set()
    events = select(EventRow.node, EventRow.time).where(
        EventRow.kind == EventKind.NODE_REBOOTED.value, EventRow.node.in_(since), EventRow.time >= min(since.values())
    )
    return {node for node, time in session.execute(events) if node is not None and time >= since[node]}


def _text(event: Event) -> str:
    booted, away = number(event.data.get("booted_at")), number(event.data.get("away"))
    when = "" if booted is None else f" at {iso_time(booted)}"
    heard = "" if away is None else f"; nothing was heard from it for {away:.0f} s"
    return f"Node {event.node} rebooted{when} and reports again{heard}."
