"""Storage of events: each is stored once, counted, published on the stream, and passed to the detection loop."""

from __future__ import annotations

from collections.abc import Sequence

from mainstay.service.common.db import WriteSession, after_commit
from mainstay.service.common.wakeups import WakeupRegistry
from mainstay.service.events import repository, totals
from mainstay.service.events.schemas import EventIn
from mainstay.service.fleet import shutdown_notices
from mainstay.service.stream.changes import Topic, record_change


def store(session: WriteSession, wakers: WakeupRegistry, events: Sequence[EventIn], *, now: float) -> set[str]:
    """Store the events whose id is not known, and wake detection; returns their ids."""
    new = record(session, events, now=now)
    if new:
        after_commit(session, lambda: wakers.wake("detection"))
    return new


def record(session: WriteSession, events: Sequence[EventIn], *, now: float) -> set[str]:
    """Store the events whose id is not known; returns their ids. Detection reads them at its next tick."""
    rows = [event.model_dump(mode="json") | {"received_at": now, "judged_at": None} for event in events]
    new = repository.insert_new(session, rows)
    fresh = {event.id: event for event in events if event.id in new}
    totals.count(session, list(fresh.values()))
    shutdown_notices.apply_notices(session, fresh.values(), now=now)
    for event in fresh.values():
        told = {"id": event.id, "kind": event.kind, "node": event.node, "job": event.job, "rank": event.rank}
        record_change(session, Topic.EVENT, told)
    return new
