"""Queries over the configuration, groups, and the outbox of notifications."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Select, func, or_, select

from mainstay.service.common.db import AnySession
from mainstay.service.common.rows import equal_to
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.notifications.models import (
    DeliveryState,
    GroupedIncidentRow,
    NotificationConfigRow,
    NotificationCursorRow,
    NotificationGroupRow,
    NotificationRow,
)

CURSOR = 1


def newest_config(session: AnySession) -> NotificationConfigRow | None:
    statement = select(NotificationConfigRow).order_by(NotificationConfigRow.version.desc()).limit(1)
    return session.scalars(statement).one_or_none()


def configured_at(session: AnySession) -> float:
    """When the first configuration was stored, Unix seconds."""
    return session.scalar(select(func.min(NotificationConfigRow.created_at))) or 0.0


def cursor(session: AnySession) -> NotificationCursorRow | None:
    return session.get(NotificationCursorRow, CURSOR)


def open_group(session: AnySession, route: str, key: str) -> NotificationGroupRow | None:
    statement = select(NotificationGroupRow).where(
        NotificationGroupRow.route == route, NotificationGroupRow.key == key, NotificationGroupRow.resolved_at.is_(None)
    )
    return session.scalars(statement).one_or_none()


def groups_of(session: AnySession, incident_id: str) -> list[NotificationGroupRow]:
    """The groups of the incident that are not resolved."""
    statement = (
        select(NotificationGroupRow)
        .join(GroupedIncidentRow, GroupedIncidentRow.group_id == NotificationGroupRow.id)
        .where(GroupedIncidentRow.incident_id == incident_id, NotificationGroupRow.resolved_at.is_(None))
    )
    return list(session.scalars(statement.order_by(NotificationGroupRow.created_at)))


def incidents_of(session: AnySession, group_id: str) -> list[IncidentRow]:
    """The incidents of a group, newest first."""
    statement = (
        select(IncidentRow)
        .join(GroupedIncidentRow, GroupedIncidentRow.incident_id == IncidentRow.id)
        .where(GroupedIncidentRow.group_id == group_id)
    )
    return list(session.scalars(statement.order_by(IncidentRow.opened_at.desc(), IncidentRow.id.desc())))


def incidents_of_open_groups(session: AnySession) -> list[str]:
    """IDs of the incidents, over or not, of groups that are not resolved."""
    statement = (
        select(GroupedIncidentRow.incident_id)
        .join(NotificationGroupRow, NotificationGroupRow.id == GroupedIncidentRow.group_id)
        .where(NotificationGroupRow.resolved_at.is_(None))
        .distinct()
    )
    return list(session.scalars(statement.order_by(GroupedIncidentRow.incident_id)))


def due_groups(session: AnySession, now: float, limit: int) -> list[NotificationGroupRow]:
    """Groups about which something must be sent now, oldest first."""
    row = NotificationGroupRow
    due = or_(row.send_at <= now, row.repeat_at <= now, row.escalate_at <= now)
    statement = select(row).where(row.resolved_at.is_(None), due).order_by(row.created_at).limit(limit)
    return list(session.scalars(statement))


def log(*, receiver: str | None, state: DeliveryState | None, incident: str | None) -> Select[NotificationRow]:
    """Messages of the delivery log."""
    columns = {
        NotificationRow.receiver: receiver,
        NotificationRow.state: state,
        NotificationRow.incident_id: incident,
    }
    return select(NotificationRow).where(*equal_to(columns))


def due(session: AnySession, now: float, busy: Collection[str], limit: int) -> list[NotificationRow]:
    """Messages whose attempt is due, oldest first, without those of ``busy`` receivers.

    Of one group, a receiver gets messages in their order: a later one waits for the earlier one.
    """
    row = NotificationRow
    first = (
        select(func.min(row.id).label("id"))
        .where(row.due_at.is_not(None), row.receiver.not_in(busy))
        .group_by(row.receiver, func.coalesce(row.group_id, row.id))
        .subquery()
    )
    statement = select(row).join(first, first.c.id == row.id).where(row.due_at <= now).order_by(row.id).limit(limit)
    return list(session.scalars(statement))


def count_by_state(session: AnySession) -> dict[tuple[str, str], int]:
    """(receiver, state) → messages in the delivery log."""
    statement = select(NotificationRow.receiver, NotificationRow.state, func.count()).group_by(
        NotificationRow.receiver, NotificationRow.state
    )
    return {(receiver, state): count for receiver, state, count in session.execute(statement)}


def pending(session: AnySession, receiver: str) -> tuple[int, str]:
    """Messages that wait for a receiver, and the error of the oldest; empty without one."""
    row = NotificationRow
    waits = (row.due_at.is_not(None), row.receiver == receiver)
    count = session.scalar(select(func.count()).where(*waits)) or 0
    error = session.scalar(select(row.error).where(*waits).order_by(row.id).limit(1))
    return count, error or ""


def last_delivered(session: AnySession, receiver: str) -> float | None:
    """When the receiver last accepted a message, Unix seconds."""
    statement = select(func.max(NotificationRow.ended_at)).where(
        NotificationRow.receiver == receiver, NotificationRow.state == DeliveryState.DELIVERED.value
    )
    return session.scalar(statement)
