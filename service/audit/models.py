"""The table of the audit log. Triggers of the database refuse to change or delete a row."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime

ACTOR_KINDS = ("user", "token", "rule", "link", "command")


class AuditRow(Base):
    __tablename__ = "audit_log"
    __table_args__ = (
        CheckConstraint(f"actor_kind IN {ACTOR_KINDS}", name="actor_kind"),
        Index(None, "at", "id"),
        Index(None, "actor", "at", "id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    at: Mapped[float] = mapped_column(UnixTime)
    actor: Mapped[str] = mapped_column(String(200))
    """Name of the user, the token, or the rule."""
    actor_kind: Mapped[str] = mapped_column(String(8))
    actor_id: Mapped[str | None] = mapped_column(String(36))
    """Of the user or the token."""
    action: Mapped[str] = mapped_column(String(64))
    """Operation of the API, or what else was done."""
    target: Mapped[str] = mapped_column(String(600))
    """Path of the request, or what the action was about."""
    detail: Mapped[dict[str, Any]]
    """What was asked for, without secrets."""
    address: Mapped[str | None] = mapped_column(String(64))
