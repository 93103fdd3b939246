"""Validations, what they measured, what good looks like, and when to look again."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.probes.core_types import Verdict
from mainstay.service.common.db import Base, UnixTime, partial


class ValidationState(StrEnum):
    QUEUED = "queued"
    TAKEN = "taken"
    RUNNING = "running"
    DONE = "done"
    EXPIRED = "expired"


_STATES = ", ".join(f"'{state}'" for state in ValidationState)
_PENDING = "state IN ('queued', 'taken', 'running')"
_VERDICTS = ", ".join(f"'{verdict}'" for verdict in Verdict)


class SweepRow(Base):
    __tablename__ = "sweeps"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    suite: Mapped[str] = mapped_column(String(200))
    schedule: Mapped[str | None] = mapped_column(String(200))
    nodes: Mapped[list[str] | None]
    """Names, or empty for every node."""
    enabled: Mapped[bool]
    created_at: Mapped[float] = mapped_column(UnixTime)
    next_run_at: Mapped[float | None] = mapped_column(UnixTime)
    last_run_at: Mapped[float | None] = mapped_column(UnixTime)
    cohort: Mapped[str | None] = mapped_column(String(200))
    """The only one of ``cohorts``, for clients and services of the version before."""
    racks: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    cohorts: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    states: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    """Only nodes in one of these racks, cohorts, and states at the time of a run; empty: any."""
    run_at: Mapped[float | None] = mapped_column(UnixTime)
    """It runs once, at this time, instead of by schedule."""
    timezone: Mapped[str] = mapped_column(String(64), default="UTC", server_default="UTC")
    """IANA name: cron text of the schedule is in it."""
    benchmarks: Mapped[list[str] | None]
    """A part of the suite; empty: all of it."""
    max_concurrent: Mapped[int | None]
    """Nodes that are validated at the same time; empty: no limit."""
    max_per_switch: Mapped[int | None]
    """Of these, how many under one switch (a rack, where no switch is reported)."""
    retries: Mapped[int] = mapped_column(default=0, server_default="0")
    timeout_seconds: Mapped[float | None]
    """Longest validation of one node; empty: by the suite."""
    remeasure: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often what failed is measured again before it is taken for failed."""
    version: Mapped[int] = mapped_column(default=1, server_default="1")
    """Counts changes by people, to be sent with the next one: two who edit the same version do not overwrite each
    other."""

    __table_args__ = (Index("ix_sweeps_due", "next_run_at", **partial("next_run_at IS NOT NULL")),)


class SweepRunRow(Base):
    """One run of a sweep. ``fanned_out_at`` stays empty until its validations exist: a lost task is sent again."""

    __tablename__ = "sweep_runs"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    sweep_id: Mapped[str] = mapped_column(ForeignKey("sweeps.id", ondelete="CASCADE"))
    started_at: Mapped[float] = mapped_column(UnixTime)
    fanned_out_at: Mapped[float | None] = mapped_column(UnixTime)
    finished_at: Mapped[float | None] = mapped_column(UnixTime)

    __table_args__ = (Index(None, "sweep_id", "started_at"),)


class ValidationRow(Base):
    __tablename__ = "validations"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    node: Mapped[str] = mapped_column(String(128))
    suite: Mapped[str] = mapped_column(String(200))
    sweep_id: Mapped[str | None] = mapped_column(ForeignKey("sweeps.id", ondelete="SET NULL"))
    run_id: Mapped[str | None] = mapped_column(ForeignKey("sweep_runs.id", ondelete="SET NULL"))
    state: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(UnixTime)
    deadline_at: Mapped[float] = mapped_column(UnixTime)
    """Not finished by then: expired, and its verdict is UNKNOWN. While it is held: until when it waits for a job."""
    taken_at: Mapped[float | None] = mapped_column(UnixTime)
    started_at: Mapped[float | None] = mapped_column(UnixTime)
    finished_at: Mapped[float | None] = mapped_column(UnixTime)
    benchmarks: Mapped[list[str] | None]
    """A part of the suite; empty: all of it."""
    progress: Mapped[dict[str, Any] | None]
    """The last progress report of the node (``mainstay.probes.validation_tasks.ValidationProgress``)."""
    held: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Queued, but not handed out before others of its run have ended, or a job has left the node. Kept by one that ends
    without being handed out: it was skipped."""
    attempt: Mapped[int] = mapped_column(default=1, server_default="1")
    retries: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often it may be tried again when nothing could be measured."""
    not_before_at: Mapped[float | None] = mapped_column(UnixTime)
    timeout_seconds: Mapped[float | None]
    cancelled_at: Mapped[float | None] = mapped_column(UnixTime)
    cancel_reason: Mapped[str] = mapped_column(Text, default="", server_default="")
    cancel_told_at: Mapped[float | None] = mapped_column(UnixTime)
    remeasure: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often the node may measure again what failed."""
    allow_occupied: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Runs even if a job runs on the node."""

    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        CheckConstraint(f"verdict IN ({_VERDICTS})", name="verdict"),
        UniqueConstraint("run_id", "node"),
        Index(None, "created_at", "id"),
        Index(None, "node", "created_at"),
        Index(None, "sweep_id"),
        Index("ix_validations_pending", "deadline_at", **partial(_PENDING)),
    )


class ResultRow(Base):
    """One metric of one benchmark of one validation, with all its repetitions: what criteria are learned from."""

    __tablename__ = "validation_results"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    validation_id: Mapped[str] = mapped_column(ForeignKey("validations.id", ondelete="CASCADE"))
    position: Mapped[int]
    cohort: Mapped[str] = mapped_column(String(200))
    """The cohort whose criteria evaluated it: hardware and software of the node at that time."""
    benchmark: Mapped[str] = mapped_column(String(200))
    metric: Mapped[str] = mapped_column(String(200))
    unit: Mapped[str] = mapped_column(String(32))
    better: Mapped[str] = mapped_column(String(8))
    values: Mapped[list[Any]]
    value: Mapped[float | None]
    """What was judged."""
    digest: Mapped[str | None] = mapped_column(String(128))
    verdict: Mapped[str] = mapped_column(String(16))
    device: Mapped[str] = mapped_column(String(128))
    criterion: Mapped[dict[str, Any] | None]
    reason: Mapped[str] = mapped_column(Text)
    remeasured: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often the benchmark was measured again on this device, because it had failed."""

    __table_args__ = (
        CheckConstraint(f"verdict IN ({_VERDICTS})", name="verdict"),
        Index(None, "validation_id", "position"),
        Index(None, "cohort", "benchmark", "metric"),
    )


class CriterionRow(Base):
    __tablename__ = "criteria"

    benchmark: Mapped[str] = mapped_column(String(200), primary_key=True)
    metric: Mapped[str] = mapped_column(String(200), primary_key=True)
    cohort: Mapped[str] = mapped_column(String(200), primary_key=True)
    better: Mapped[str] = mapped_column(String(8))
    low: Mapped[float | None]
    high: Mapped[float | None]
    unit: Mapped[str] = mapped_column(String(32))
    warn: Mapped[float | None]
    center: Mapped[float | None]
    allowed: Mapped[list[Any]]
    n: Mapped[int]
    source: Mapped[str] = mapped_column(String(200))
    learned_at: Mapped[float] = mapped_column(UnixTime)
    distribution: Mapped[dict[str, Any] | None]
    """``Distribution`` of ``detectors.validation.criterion_limits``: the reference sample. Empty: limits only."""
    sessions: Mapped[dict[str, Any] | None]
    """``Sessions`` of ``detectors.validation.sessions``: their number and spread. Empty: not recorded."""

    __table_args__ = (CheckConstraint("better IN ('higher', 'lower', 'equal')", name="better"),)


class NodeVerdictRow(Base):
    """A node's current verdict: it latches until a check of equal or greater power passes."""

    __tablename__ = "node_verdicts"

    node: Mapped[str] = mapped_column(String(128), primary_key=True)
    verdict: Mapped[str] = mapped_column(String(16))
    power: Mapped[int]
    suite: Mapped[str] = mapped_column(String(200))
    """The suite that set it."""
    validation_id: Mapped[str] = mapped_column(String(36))
    at: Mapped[float] = mapped_column(UnixTime)

    __table_args__ = (CheckConstraint(f"verdict IN ({_VERDICTS})", name="verdict"),)
