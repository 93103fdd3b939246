"""The table of changes: what a watcher may have missed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime


class ChangeRow(Base):
    __tablename__ = "changes"
    # AUTOINCREMENT: SQLite would otherwise give the id of a pruned newest row again.
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - SQLAlchemy reads it as a class attribute

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    topic: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]]
    created_at: Mapped[float] = mapped_column(UnixTime)
