"""Tables of jobs, as their coordinators last described them, and of their recoveries."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.recovery.job_request import RequestState
from mainstay.service.common.db import Base, UnixTime
from mainstay.service.jobs.schemas import JobState

_REQUEST_STATES = ", ".join(f"'{state}'" for state in RequestState)
_STATES = ", ".join(f"'{state}'" for state in JobState)


class JobRow(Base):
    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    state: Mapped[str] = mapped_column(String(16))
    generation: Mapped[int]
    command: Mapped[str] = mapped_column(Text)
    topology: Mapped[dict[str, Any]]
    protection: Mapped[dict[str, Any]]
    steps_total: Mapped[int | None] = mapped_column(BigInteger)
    last_step: Mapped[int | None] = mapped_column(BigInteger)
    started_at: Mapped[float] = mapped_column(UnixTime)
    finished_at: Mapped[float | None] = mapped_column(UnixTime)
    last_seen_at: Mapped[float] = mapped_column(UnixTime)
    request_obstacles: Mapped[dict[str, Any] | None]
    """Kind of request -> why none can be carried out; empty: it can. Null where the coordinator does not say."""

    __table_args__ = (CheckConstraint(f"state IN ({_STATES})", name="state"), Index(None, "started_at", "id"))


class RecoveryRow(Base):
    """One recovery of one job: from the failure to the verified step. Times are the coordinator's, not ours."""

    __tablename__ = "recoveries"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    job: Mapped[str] = mapped_column(String(128))
    generation: Mapped[int | None]
    failed_at: Mapped[float] = mapped_column(UnixTime)
    planned_at: Mapped[float | None] = mapped_column(UnixTime)
    recovered_at: Mapped[float | None] = mapped_column(UnixTime)
    verified_at: Mapped[float | None] = mapped_column(UnixTime)
    failed_ranks: Mapped[list[int]]
    restore_strategy: Mapped[str | None] = mapped_column(String(32))
    steps_lost: Mapped[int | None]
    absent_ranks: Mapped[int] = mapped_column(default=0, server_default="0")
    """Ranks without a process when training continued."""
    planned_seconds: Mapped[float | None]
    seconds: Mapped[float | None]
    parts: Mapped[dict[str, Any]]
    epoch: Mapped[int | None]
    outcome: Mapped[str] = mapped_column(String(16))
    """acting, recovered, verified or failed."""
    reason: Mapped[str | None] = mapped_column(Text)
    plan_id: Mapped[str | None] = mapped_column(String(128))
    incident_id: Mapped[str | None] = mapped_column(String(36))
    strategy: Mapped[str | None] = mapped_column(String(32))
    """The recovery strategy that was carried out."""
    predicted_seconds: Mapped[float | None]
    """From the failure to the first committed step, as predicted when it was decided; ``seconds`` is what it took."""
    excess_cost_seconds: Mapped[float | None]
    """That the best alternative, as predicted, would have saved."""
    decision: Mapped[dict[str, Any] | None]
    """All options that were weighed: ``mainstay.service.jobs.strategy_decisions.StrategyEvaluation``."""

    __table_args__ = (
        CheckConstraint("outcome IN ('recovering', 'recovered', 'verified', 'failed')", name="outcome"),
        Index(None, "job", "failed_at"),
        Index(None, "incident_id"),
        Index(None, "plan_id"),
    )


class JobRequestRow(Base):
    """A request to a job. Handed out with the answers to its reports until it has answered."""

    __tablename__ = "migration_requests"  # the first kind: services of the version before use the table too

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    job: Mapped[str] = mapped_column(String(128))
    kind: Mapped[str] = mapped_column(String(16))
    node: Mapped[str | None] = mapped_column(String(128))
    rank: Mapped[int | None]
    reason: Mapped[str] = mapped_column(String(500))
    actor: Mapped[str] = mapped_column(String(200))
    state: Mapped[str] = mapped_column(String(16))
    detail: Mapped[str] = mapped_column(String(500))
    seconds: Mapped[float | None]
    steps_lost: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(UnixTime)
    updated_at: Mapped[float] = mapped_column(UnixTime)
    target: Mapped[str | None] = mapped_column(String(128))
    """Node to which they are to go; empty: where standbys wait."""
    dp: Mapped[int] = mapped_column(default=0)
    pp: Mapped[int] = mapped_column(default=0)
    tp: Mapped[int] = mapped_column(default=0)
    stages: Mapped[list[int]] = mapped_column(default=list)
    """Of each pipeline, instead of ``dp`` and ``pp``; empty: none are given."""
    step: Mapped[int | None] = mapped_column(BigInteger)
    """Training continued after it, or it is on disk."""
    finding: Mapped[str | None] = mapped_column(String(36))
    """That it rests on; empty where a person gave it."""
    remediation: Mapped[str | None] = mapped_column(String(36))
    """Accepted, it made the request."""

    __table_args__ = (
        CheckConstraint(f"state IN ({_REQUEST_STATES})", name="state"),
        Index(None, "job", "created_at", "id"),
        Index(None, "remediation"),
    )
