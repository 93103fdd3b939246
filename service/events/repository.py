"""Rows of events: stored once whatever comes twice, and handed to the judge in order of data time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select, update
from sqlalchemy.dialects import postgresql, sqlite

from probes.words import Event, EventKind
from service.events.models import EventRow
from service.kit.db import AnySession, WriteSession


def insert_new(session: WriteSession, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Insert the rows whose id is new; returns their ids."""
    if not rows:
        return set()
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement = insert(EventRow).on_conflict_do_nothing(index_elements=["id"]).returning(EventRow.id)
    return set(session.scalars(statement, rows))


def listing(*, node: str | None, job: str | None, kind: EventKind | None, since: float | None) -> Select[EventRow]:
    statement = select(EventRow)
    for column, value in ((EventRow.node, node), (EventRow.job, job), (EventRow.kind, kind)):
        if value is not None:
            statement = statement.where(column == value)
    return statement if since is None else statement.where(EventRow.time >= since)


def unjudged(session: AnySession, limit: int = 500) -> list[EventRow]:
    """Events that the judge has not seen, oldest first."""
    statement = select(EventRow).where(EventRow.judged_at.is_(None)).order_by(EventRow.time, EventRow.id).limit(limit)
    return list(session.scalars(statement))


def claim(session: WriteSession, event_id: str, now: float) -> bool:
    """Take an event for judging; false when another judge took it. Rolled back with the judgement if that fails."""
    statement = (
        update(EventRow)
        .where(EventRow.id == event_id, EventRow.judged_at.is_(None))
        .values(judged_at=now)
        .returning(EventRow.id)
    )
    return session.scalar(statement) is not None


def judged_since(session: AnySession, since: float, limit: int) -> list[EventRow]:
    """The latest judged events at or after ``since``, oldest first."""
    statement = (
        select(EventRow)
        .where(EventRow.judged_at.is_not(None), EventRow.time >= since)
        .order_by(EventRow.time.desc(), EventRow.id.desc())
        .limit(limit)
    )
    return list(session.scalars(statement))[::-1]


def to_event(row: EventRow) -> Event:
    return Event(
        id=row.id,
        time=row.time,
        kind=EventKind(row.kind),
        node=row.node,
        device=row.device,
        job=row.job,
        rank=row.rank,
        generation=row.generation,
        data=row.data,
    )
