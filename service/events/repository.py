"""Rows of events: each is stored once and passed to the detection loop in order of data time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import Select, select, update

from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.decoding import build_decoders
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.rows import equal_to, insert_into
from mainstay.service.events.models import EventRow


def insert_new(session: WriteSession, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Insert the rows whose id is new; returns their ids."""
    if not rows:
        return set()
    statement = insert_into(session, EventRow).on_conflict_do_nothing(index_elements=["id"]).returning(EventRow.id)
    return set(session.scalars(statement, rows))


def listing(*, node: str | None, job: str | None, kind: EventKind | None, since: float | None) -> Select[EventRow]:
    statement = select(EventRow).where(*equal_to({EventRow.node: node, EventRow.job: job, EventRow.kind: kind}))
    return statement if since is None else statement.where(EventRow.time >= since)


def unjudged(session: AnySession, limit: int = 500) -> list[EventRow]:
    """Events that the detection loop has not processed, oldest first."""
    # Ordered by what the partial index has and no more, or SQLite walks through all events that are judged.
    statement = select(EventRow).where(EventRow.judged_at.is_(None)).order_by(EventRow.time).limit(limit)
    return sorted(session.scalars(statement), key=lambda event: (event.time, event.id))


def claim(session: WriteSession, event_ids: Collection[str], now: float) -> set[str]:
    """Claim events; returns those that no other process claimed. A failed evaluation rolls the claims back."""
    statement = (
        update(EventRow)
        .where(EventRow.id.in_(event_ids), EventRow.judged_at.is_(None))
        .values(judged_at=now)
        .returning(EventRow.id)
        .execution_options(synchronize_session=False)
    )
    return set(session.scalars(statement))


def judged_since(session: AnySession, since: float, limit: int) -> list[EventRow]:
    """Return the latest evaluated events at or after ``since``, oldest first."""
    statement = (
        select(EventRow)
        .where(EventRow.judged_at.is_not(None), EventRow.time >= since)
        .order_by(EventRow.time.desc(), EventRow.id.desc())
        .limit(limit)
    )
    return list(session.scalars(statement))[::-1]


build_decoders(Event)


def to_event(row: EventRow) -> Event:
    return msgspec.convert(row, Event, from_attributes=True)
