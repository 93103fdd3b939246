"""Tables of fault localizations and the tasks of their rounds: two for each pair, one a node."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime, partial


class LocalizationRunState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class SideState(StrEnum):
    QUEUED = "queued"
    TAKEN = "taken"
    DONE = "done"
    EXPIRED = "expired"


_OPEN = "state IN ('queued', 'taken')"


class LocalizationRow(Base):
    __tablename__ = "localizations"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    nodes: Mapped[list[str]]
    """Pairs to report."""
    partners: Mapped[list[str]]
    """Known-good nodes that measure with them."""
    addresses: Mapped[dict[str, Any]]
    """Node → where its peers reach it."""
    round: Mapped[int]
    """The round whose orders are out."""
    document: Mapped[str] = mapped_column(Text)
    """``localization.Document`` as JSON: all rounds before this one, and what this one asks for."""
    verdict: Mapped[dict[str, Any] | None]
    state_reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(UnixTime)
    finished_at: Mapped[float | None] = mapped_column(UnixTime)
    allow_occupied: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Measures even if a job runs on a node."""

    __table_args__ = (
        CheckConstraint("state IN ('running', 'done', 'cancelled')", name="state"),
        Index(None, "created_at", "id"),
    )


class LocalizationTaskRow(Base):
    """One side of a pair of one round."""

    __tablename__ = "localization_tasks"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    localization_id: Mapped[str] = mapped_column(ForeignKey("localizations.id", ondelete="CASCADE"))
    round: Mapped[int]
    position: Mapped[int]
    """Which pair of the round."""
    role: Mapped[str] = mapped_column(String(16))
    node: Mapped[str] = mapped_column(String(128))
    peer: Mapped[str] = mapped_column(String(128))
    state: Mapped[str] = mapped_column(String(16))
    order: Mapped[dict[str, Any]]
    """``mainstay.probes.benchmarks.pair_protocol.PairTask``, as it is handed out."""
    result: Mapped[dict[str, Any] | None]
    """``mainstay.probes.benchmarks.result.BenchmarkResult``."""
    created_at: Mapped[float] = mapped_column(UnixTime)
    taken_at: Mapped[float | None] = mapped_column(UnixTime)
    deadline_at: Mapped[float] = mapped_column(UnixTime)

    __table_args__ = (
        CheckConstraint("state IN ('queued', 'taken', 'done', 'expired')", name="state"),
        UniqueConstraint("localization_id", "round", "position", "role"),
        Index("ix_localization_tasks_open", "node", "deadline_at", **partial(_OPEN)),
    )
