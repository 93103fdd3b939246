"""Tables of remediation proposals for nodes and their outcomes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime, partial
from mainstay.service.remediation.schemas import RemediationState

_STATES = ", ".join(f"'{state}'" for state in RemediationState)
_OPEN = "state IN ('proposed', 'held', 'accepted')"


class RemediationRow(Base):
    """At most one open row for each node and incident, regardless of the number of findings."""

    __tablename__ = "remediations"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    node: Mapped[str] = mapped_column(String(128))
    device: Mapped[str | None] = mapped_column(String(128))
    hardware: Mapped[str | None] = mapped_column(String(300))
    """The device itself, wherever it is put later; empty when the trouble is the node's."""
    recommended_action: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    dry_run: Mapped[bool]
    reason: Mapped[str] = mapped_column(Text)
    rules: Mapped[list[Any]]
    """``RuleRead`` as JSON, in the order in which they were asked."""
    tried: Mapped[list[Any]]
    """Actions that did not help: {recommended_action, at, outcome}, oldest first."""
    created_at: Mapped[float] = mapped_column(UnixTime)
    decided_at: Mapped[float | None] = mapped_column(UnixTime)
    decided_by: Mapped[str | None] = mapped_column(String(200))
    ended_at: Mapped[float | None] = mapped_column(UnixTime)
    """Done, dismissed, superseded or failed."""
    version_seen: Mapped[int] = mapped_column(default=0)
    """Accepted only: the newest ``state_version`` of the node that was taken into account."""

    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        Index(None, "incident_id", "node"),
        Index(None, "created_at", "id"),
        Index(None, "node", "created_at"),
        Index(None, "hardware", "ended_at"),
        Index("uq_remediations_open", "incident_id", "node", unique=True, **partial(_OPEN)),
    )
