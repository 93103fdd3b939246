"""Localisations, and the orders of their rounds: two for each pair, one a node."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.kit.db import Base, UnixTime


class LocalisationState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class SideState(StrEnum):
    QUEUED = "queued"
    TAKEN = "taken"
    DONE = "done"
    EXPIRED = "expired"


_OPEN = text("state IN ('queued', 'taken')")


class LocalisationRow(Base):
    __tablename__ = "localisations"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    why: Mapped[str] = mapped_column(Text)
    nodes: Mapped[list[str]]
    """Those to be told about."""
    partners: Mapped[list[str]]
    """Known-good nodes that measure with them."""
    addresses: Mapped[dict[str, Any]]
    """Node → where its peers reach it."""
    round: Mapped[int]
    """The round whose orders are out."""
    document: Mapped[str] = mapped_column(Text)
    """``localisation.Document`` as JSON: all rounds before this one, and what this one asks for."""
    verdict: Mapped[dict[str, Any] | None]
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(UnixTime)
    finished_at: Mapped[float | None] = mapped_column(UnixTime)

    __table_args__ = (
        CheckConstraint("state IN ('running', 'done', 'cancelled')", name="state"),
        Index(None, "created_at", "id"),
    )


class LocalisationOrderRow(Base):
    """One side of a pair of one round."""

    __tablename__ = "localisation_orders"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    localisation_id: Mapped[str] = mapped_column(ForeignKey("localisations.id", ondelete="CASCADE"))
    round: Mapped[int]
    position: Mapped[int]
    """Which pair of the round."""
    role: Mapped[str] = mapped_column(String(16))
    node: Mapped[str] = mapped_column(String(128))
    peer: Mapped[str] = mapped_column(String(128))
    state: Mapped[str] = mapped_column(String(16))
    order: Mapped[dict[str, Any]]
    """``probes.benchmarks.pairing.PairOrder``, as it is handed out."""
    result: Mapped[dict[str, Any] | None]
    """``probes.benchmarks.result.BenchmarkResult``."""
    created_at: Mapped[float] = mapped_column(UnixTime)
    taken_at: Mapped[float | None] = mapped_column(UnixTime)
    deadline_at: Mapped[float] = mapped_column(UnixTime)

    __table_args__ = (
        CheckConstraint("state IN ('queued', 'taken', 'done', 'expired')", name="state"),
        UniqueConstraint("localisation_id", "round", "position", "role"),
        Index("ix_localisation_orders_open", "node", "deadline_at", sqlite_where=_OPEN, postgresql_where=_OPEN),
    )
