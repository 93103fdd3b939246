"""The outbox: messages wait here until their receiver has accepted them, and stay as the delivery log."""

from __future__ import annotations

from mainstay.probes.ids import uuid7
from mainstay.service.common.db import WriteSession
from mainstay.service.common.rows import compare_and_set
from mainstay.service.notifications.message import Message, headline
from mainstay.service.notifications.models import DeliveryState, NotificationRow


def put(
    session: WriteSession,
    receiver: str,
    message: Message,
    *,
    group_id: str | None,
    incident_id: str | None,
    message_id: str | None = None,
) -> NotificationRow:
    """A message to send; it is due at once. ``message_id`` is a new one by default."""
    row = NotificationRow(
        id=message_id or uuid7(), group_id=group_id, incident_id=incident_id, receiver=receiver,
        event=message.event.value, title=headline(message)[:400],
        message=message.model_dump(mode="json"), state=DeliveryState.PENDING.value,
        attempts=0, error="", created_at=message.created_at, due_at=message.created_at, ended_at=None,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row


def claim(session: WriteSession, row: NotificationRow, *, retry_at: float) -> bool:
    """Count an attempt before it is made; false if another process made it.

    Should this process end within the attempt, the next one follows at ``retry_at``, marked as a repeat.
    """
    unchanged = (NotificationRow.attempts == row.attempts, NotificationRow.due_at.is_not(None))
    return compare_and_set(session, row, *unchanged, attempts=row.attempts + 1, due_at=retry_at)


def end(session: WriteSession, row: NotificationRow, state: DeliveryState, *, error: str, now: float) -> None:
    """The message was accepted, or is given up."""
    compare_and_set(session, row, state=state.value, error=error, due_at=None, ended_at=now)


def postpone(session: WriteSession, row: NotificationRow, *, error: str, due_at: float) -> None:
    """The attempt failed; another follows."""
    compare_and_set(session, row, NotificationRow.due_at.is_not(None), error=error, due_at=due_at)
