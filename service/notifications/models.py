"""Tables of notifications: the configuration, groups of incidents, and the outbox that is the delivery log as well."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime, partial


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  # refused for good, or not accepted within the time for attempts


_STATES = ", ".join(f"'{state}'" for state in DeliveryState)


class NotificationConfigRow(Base):
    """A version of the configuration, as uploaded; its text never changes. The newest one is in force."""

    __tablename__ = "notification_configs"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """From 1. The next one is its predecessor's plus one: of two uploads at once, one is refused."""
    text: Mapped[str] = mapped_column(Text)
    """TOML."""
    actor: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[float] = mapped_column(UnixTime)


class NotificationCursorRow(Base):
    """One row: the newest change whose incidents are in the outbox, and the key that signs links."""

    __tablename__ = "notification_cursor"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Always 1."""
    transaction: Mapped[int] = mapped_column(BigInteger)
    change: Mapped[int] = mapped_column(BigInteger)
    key: Mapped[bytes] = mapped_column(LargeBinary(32))


class NotificationGroupRow(Base):
    """Incidents that a route treats as one. Receivers know it by its ID until it is resolved."""

    __tablename__ = "notification_groups"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    route: Mapped[str] = mapped_column(String(128))
    key: Mapped[str] = mapped_column(String(500))
    """The values of ``Route.group_by``."""
    severity: Mapped[str] = mapped_column(String(16))
    """The worst so far."""
    needs_operator: Mapped[bool]
    """Whether an incident needed an operator so far."""
    receivers: Mapped[list[str]]
    """Those that have a message of the group, and get the last one."""
    created_at: Mapped[float] = mapped_column(UnixTime)
    send_at: Mapped[float | None] = mapped_column(UnixTime)
    """When the next message about changes is due."""
    repeat_at: Mapped[float | None] = mapped_column(UnixTime)
    escalate_at: Mapped[float | None] = mapped_column(UnixTime)
    sent_at: Mapped[float | None] = mapped_column(UnixTime)
    """When the last message was put into the outbox."""
    acknowledged_at: Mapped[float | None] = mapped_column(UnixTime)
    resolved_at: Mapped[float | None] = mapped_column(UnixTime)

    __table_args__ = (
        Index("uq_notification_groups_open", "route", "key", unique=True, **partial("resolved_at IS NULL")),
        Index(None, "resolved_at"),
    )


class GroupedIncidentRow(Base):
    """An incident of a group."""

    __tablename__ = "notification_group_incidents"

    group_id: Mapped[str] = mapped_column(ForeignKey("notification_groups.id", ondelete="CASCADE"), primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id", ondelete="CASCADE"), primary_key=True)

    __table_args__ = (Index(None, "incident_id"),)


class NotificationRow(Base):
    """A message to a receiver: written in the transaction that decides to send it, kept as the delivery log."""

    __tablename__ = "notifications"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    group_id: Mapped[str | None] = mapped_column(ForeignKey("notification_groups.id", ondelete="SET NULL"))
    """Empty for a test message."""
    incident_id: Mapped[str | None] = mapped_column(String(36))
    """The newest incident of the message."""
    receiver: Mapped[str] = mapped_column(String(128))
    event: Mapped[str] = mapped_column(String(16))
    title: Mapped[str] = mapped_column(String(400))
    message: Mapped[dict[str, Any]]
    """``message.Message`` as JSON."""
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int]
    """Counted before each attempt, so that one whose end is unknown counts too."""
    error: Mapped[str] = mapped_column(Text)
    """Why the last attempt failed; empty otherwise."""
    created_at: Mapped[float] = mapped_column(UnixTime)
    due_at: Mapped[float | None] = mapped_column(UnixTime)
    """When the next attempt is due; empty once it is delivered or has failed."""
    ended_at: Mapped[float | None] = mapped_column(UnixTime)

    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        Index(None, "created_at", "id"),
        Index("ix_notifications_due", "due_at", **partial("due_at IS NOT NULL")),
        Index(None, "receiver", "created_at"),
        Index(None, "incident_id", "created_at"),
    )
