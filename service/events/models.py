"""Events as received. A row with an empty ``judged_at`` is work for the detection loop: the table is its outbox."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime, partial


class EventRow(Base):
    __tablename__ = "events"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    time: Mapped[float] = mapped_column(UnixTime)
    kind: Mapped[str] = mapped_column(String(32))
    node: Mapped[str | None] = mapped_column(String(128))
    device: Mapped[str | None] = mapped_column(String(128))
    job: Mapped[str | None] = mapped_column(String(128))
    rank: Mapped[int | None]
    generation: Mapped[int | None]
    data: Mapped[dict[str, Any]]
    received_at: Mapped[float] = mapped_column(UnixTime)
    judged_at: Mapped[float | None] = mapped_column(UnixTime)

    __table_args__ = (
        Index(None, "time", "id"),
        Index(None, "node", "time"),
        Index(None, "job", "time"),
        Index("ix_events_unjudged", "time", **partial("judged_at IS NULL")),
    )


class XidTotalRow(Base):
    """Count of an XID on a GPU; it stays correct when old events are deleted."""

    __tablename__ = "xid_totals"

    gpu: Mapped[str] = mapped_column(String(300), primary_key=True)
    """UUID of the card that sat there when it happened; node and device where no UUID is known."""
    xid: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int] = mapped_column(BigInteger)
    first_at: Mapped[float] = mapped_column(UnixTime)
    last_at: Mapped[float] = mapped_column(UnixTime)
    last_source: Mapped[str] = mapped_column(String(32))
    """The source of the last one: the driver and the kernel log report the same XID."""
