"""Other monitors: whom we scrape, and what those that report here said last."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime


class DcgmTargetRow(Base):
    """A dcgm-exporter. Whoever moves ``due_at`` on scrapes it: several processes may try."""

    __tablename__ = "dcgm_targets"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    url: Mapped[str] = mapped_column(String(500), unique=True)
    node: Mapped[str | None] = mapped_column(String(128))
    """Whose values these are; empty when the exporter's host label shall say."""
    interval_seconds: Mapped[float]
    enabled: Mapped[bool]
    created_at: Mapped[float] = mapped_column(UnixTime)
    due_at: Mapped[float] = mapped_column(UnixTime)
    sequence: Mapped[int] = mapped_column(BigInteger)
    """Of the last scrape begun; the frames of the target carry it."""
    failures: Mapped[int]
    """Scrapes that failed since the last one that went well."""
    last_scrape_at: Mapped[float | None] = mapped_column(UnixTime)
    """When a scrape last went well."""
    last_error: Mapped[str | None] = mapped_column(String(500))
    samples: Mapped[int] = mapped_column(BigInteger)
    """Values stored from it so far."""
    memory: Mapped[dict[str, Any]]
    """What the next scrape is compared with (``mainstay.service.sources.dcgm.changes.ScrapeState``)."""

    __table_args__ = (Index(None, "created_at", "id"), Index(None, "due_at"))


class ReportedHealthRow(Base):
    """What another monitor last said about one of its checks: only a change makes an event."""

    __tablename__ = "reported_health"

    source: Mapped[str] = mapped_column(String(32), primary_key=True)
    node: Mapped[str] = mapped_column(String(128), primary_key=True)
    check: Mapped[str] = mapped_column("check_name", String(200), primary_key=True)
    health: Mapped[str] = mapped_column(String(64))
    """Its word for the state, with the action that it suggests."""
    time: Mapped[float] = mapped_column(UnixTime)
    """When it said so, by its own clock."""
