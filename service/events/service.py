"""Storing events, whoever tells them: once, counted, told to watchers, and handed to the judge when durable."""

from __future__ import annotations

from collections.abc import Sequence

from service.events import repository, totals
from service.events.schemas import EventIn
from service.fleet import goodbyes
from service.kit.db import WriteSession, after_commit
from service.services import Services
from service.stream.changes import Topic, record_change


def store(session: WriteSession, services: Services, events: Sequence[EventIn], *, now: float) -> set[str]:
    """Store the events whose id is not known; returns their ids."""
    rows = [event.model_dump(mode="json") | {"received_at": now, "judged_at": None} for event in events]
    new = repository.insert_new(session, rows)
    fresh = {event.id: event for event in events if event.id in new}
    totals.count(session, list(fresh.values()))
    goodbyes.hear(session, fresh.values(), now=now)
    for event in events:
        if event.id in new:
            told = {"id": event.id, "kind": event.kind, "node": event.node, "job": event.job, "rank": event.rank}
            record_change(session, Topic.EVENT, told)
    if new:
        after_commit(session, lambda: services.wakers.wake("judge"))
    return new
