"""Events as they came. A row whose ``judged_at`` is empty is work for the judge: the table is its outbox."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from service.kit.db import Base, UnixTime


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
        Index(
            "ix_events_unjudged",
            "time",
            sqlite_where=text("judged_at IS NULL"),
            postgresql_where=text("judged_at IS NULL"),
        ),
    )
