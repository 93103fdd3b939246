"""The table of changes: what a watcher may have missed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, FetchedValue, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime
from mainstay.service.stream.position import Position


class ChangeRow(Base):
    __tablename__ = "changes"
    # AUTOINCREMENT: SQLite would otherwise give the id of a pruned newest row again.
    __table_args__ = (Index(None, "transaction", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    topic: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]]
    created_at: Mapped[float] = mapped_column(UnixTime)
    transaction: Mapped[int] = mapped_column(BigInteger, server_default=FetchedValue())
    """The one that wrote it, numbered by PostgreSQL; 0 on SQLite."""

    @property
    def position(self) -> Position:
        return Position(self.transaction, self.id)
