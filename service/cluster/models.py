"""Tables of a service of several processes: which processes there are, and which of them holds which lease."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime


class ProcessRow(Base):
    """A ``mainstay serve`` that uses this database; the last report of one that ended stays for a day."""

    __tablename__ = "processes"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Random, another at each start."""
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    url: Mapped[str] = mapped_column(String(300))
    version: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(16), default="all", server_default="all")
    started_at: Mapped[float] = mapped_column(UnixTime)
    seen_at: Mapped[float] = mapped_column(UnixTime)
    """By the clock of the database."""
    pending: Mapped[int] = mapped_column(Integer)
    """Frames that waited for a commit."""
    lag: Mapped[float]
    """Seconds between a commit of another process and its arrival in the memory of this one."""
    stopped: Mapped[bool]
    """It said that it ends."""


class LeaseRow(Base):
    """One kind of work that one process does at a time."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[int | None] = mapped_column(BigInteger)
    """``ProcessRow.id``; kept when the lease has expired."""
    epoch: Mapped[int] = mapped_column(BigInteger)
    """Grows with each holder: a transaction of an earlier one is refused."""
    expires_at: Mapped[float] = mapped_column(UnixTime)
    """By the clock of the database."""
    shared: Mapped[bytes | None]
    """What the holder shares with the other processes (MessagePack)."""
