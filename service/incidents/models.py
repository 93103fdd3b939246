"""Incidents and what hangs on them. An incident's state changes only by compare-and-set on (state, version)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.probes.core_types import RecommendedAction
from mainstay.service.common.db import Base, UnixTime, partial
from mainstay.service.incidents.lifecycle import IncidentState

_STATES = ", ".join(f"'{state}'" for state in IncidentState)


class IncidentRow(Base):
    __tablename__ = "incidents"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    title: Mapped[str] = mapped_column(String(300))
    summary: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    version: Mapped[int]
    """Grows with every change; the other half of compare-and-set."""
    severity: Mapped[str] = mapped_column(String(16))
    needs_operator: Mapped[bool]
    opened_at: Mapped[float] = mapped_column(UnixTime)
    recovering_at: Mapped[float | None] = mapped_column(UnixTime)
    recovered_at: Mapped[float | None] = mapped_column(UnixTime)
    verified_at: Mapped[float | None] = mapped_column(UnixTime)
    closed_at: Mapped[float | None] = mapped_column(UnixTime)
    acknowledged_at: Mapped[float | None] = mapped_column(UnixTime)
    """When a person took it over; empty again when it comes back after it had recovered."""
    acknowledged_by: Mapped[str | None] = mapped_column(String(200))
    assignee: Mapped[str | None] = mapped_column(String(200))
    """Who works on it."""
    updated_at: Mapped[float] = mapped_column(UnixTime)
    """Time of the last finding or change, as correlation sees it."""
    due_at: Mapped[float | None] = mapped_column(UnixTime)
    """When the detection loop must check it again; empty when only an event or an operator can change it."""
    job: Mapped[str | None] = mapped_column(String(128))
    node: Mapped[str | None] = mapped_column(String(128))
    device: Mapped[str | None] = mapped_column(String(128))
    ranks: Mapped[list[int]]
    kinds: Mapped[list[str]]
    cause: Mapped[str | None] = mapped_column(String(32))
    """``mainstay.detectors.finding.Cause`` of the likeliest root cause that names one."""

    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        Index(None, "opened_at", "id"),
        Index(None, "state"),
        Index(None, "job"),
        Index(None, "node"),
        Index("ix_incidents_due", "due_at", **partial("due_at IS NOT NULL")),
    )


class FindingRow(Base):
    """A finding; at most one active row a key, so that a repeated statement is the same row again."""

    __tablename__ = "findings"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    key: Mapped[str] = mapped_column(String(600))
    kind: Mapped[str] = mapped_column(String(32))
    node: Mapped[str | None] = mapped_column(String(128))
    device: Mapped[str | None] = mapped_column(String(128))
    job: Mapped[str | None] = mapped_column(String(128))
    rank: Mapped[int | None]
    peer: Mapped[int | None]
    time: Mapped[float] = mapped_column(UnixTime)
    began_at: Mapped[float | None] = mapped_column(UnixTime)
    """Its first ``time``, which repeated statements renew; empty in rows of earlier versions."""
    severity: Mapped[str] = mapped_column(String(16))
    detector: Mapped[str] = mapped_column(String(64))
    confidence: Mapped[float]
    evidence: Mapped[dict[str, Any]]
    active: Mapped[bool]
    recommended_action: Mapped[str] = mapped_column(String(16), default=RecommendedAction.NONE.value)
    cause: Mapped[str | None] = mapped_column(String(32))
    cleared_at: Mapped[float | None] = mapped_column(UnixTime)
    event_id: Mapped[str | None] = mapped_column(String(36))
    incident_id: Mapped[str | None] = mapped_column(ForeignKey("incidents.id"))

    __table_args__ = (
        Index("uq_findings_active_key", "key", unique=True, **partial("active")),
        Index(None, "time", "id"),
        # SQLite takes a partial index only where the query says the same words: "= 1" is how SQLAlchemy asks it.
        Index("ix_findings_active_time", "time", "id", **partial("active", sqlite="active = 1")),
        Index("ix_findings_device_cleared", "cleared_at", **partial("device IS NOT NULL")),
        Index(None, "incident_id"),
        Index(None, "node", "time"),
        Index(None, "job", "time"),
    )


class TimelineRow(Base):
    """One entry of an incident's story. Never changed, never deleted."""

    __tablename__ = "incident_timeline"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    time: Mapped[float] = mapped_column(UnixTime)
    kind: Mapped[str] = mapped_column(String(32))
    text: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]]

    __table_args__ = (Index(None, "incident_id", "time", "id"), Index(None, "time", "id"))


class PlanRow(Base):
    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    job: Mapped[str] = mapped_column(String(128))
    generation: Mapped[int]
    created_at: Mapped[float] = mapped_column(UnixTime)
    body: Mapped[dict[str, Any]]
    """``mainstay.recovery.recovery_plan.RecoveryPlan`` as JSON."""
    incident_id: Mapped[str | None] = mapped_column(ForeignKey("incidents.id"))

    __table_args__ = (Index(None, "created_at", "id"), Index(None, "incident_id"), Index(None, "job"))


class ActionRow(Base):
    __tablename__ = "actions"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    recovery: Mapped[str] = mapped_column(String(128))
    name: Mapped[str] = mapped_column(String(128))
    state: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[float] = mapped_column(UnixTime)
    finished_at: Mapped[float | None] = mapped_column(UnixTime)
    seconds: Mapped[float | None]
    detail: Mapped[str] = mapped_column(Text)

    __table_args__ = (
        CheckConstraint("state IN ('running', 'done', 'failed')", name="state"),
        Index(None, "incident_id", "started_at"),
    )


class RunPaceRow(Base):
    """How long a step took after the start of a run: later runs of the job are compared with it."""

    __tablename__ = "run_paces"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    job: Mapped[str] = mapped_column(String(128))
    started_at: Mapped[float] = mapped_column(UnixTime)
    name: Mapped[str] = mapped_column(String(200))
    shape: Mapped[str] = mapped_column(String(200))
    """The mesh, as ``dp8 pp2 tp4``."""
    cohort: Mapped[str] = mapped_column(String(200))
    """Hardware and software of its nodes; empty where they are not known."""
    state_bytes: Mapped[int] = mapped_column(BigInteger)
    """Training state of all ranks; 0 where it is not known."""
    seconds: Mapped[float]
    work: Mapped[list[Any]]
    """Numbers, or null: ``mainstay.detectors.job.expected_pace.SIGNALS``."""
    nodes: Mapped[list[str]]
    measured_at: Mapped[float] = mapped_column(UnixTime)

    __table_args__ = (UniqueConstraint("job", "started_at"), Index(None, "name", "measured_at"))
