"""Tables of auth. Only digests of secrets are stored."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime

KINDS = ("admin", "user", "node", "job", "join", "relay")


class TokenRow(Base):
    __tablename__ = "tokens"
    __table_args__ = (CheckConstraint(f"kind IN {KINDS}", name="kind"), Index(None, "created_at", "id"))

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    """sha256 of the whole token: it has 256 random bits, so a slow hash would protect nothing more."""
    prefix: Mapped[str] = mapped_column(String(32))
    """The first characters of the secret, which identify it in lists."""
    kind: Mapped[str] = mapped_column(String(8))
    name: Mapped[str] = mapped_column(String(200))
    scopes: Mapped[list[str]]
    node: Mapped[str | None] = mapped_column(String(128), index=True)
    job: Mapped[str | None] = mapped_column(String(128))
    racks: Mapped[list[str] | None]
    """Of a relay: the racks it may speak for, or ``*``."""
    created_at: Mapped[float] = mapped_column(UnixTime)
    expires_at: Mapped[float | None] = mapped_column(UnixTime)
    revoked_at: Mapped[float | None] = mapped_column(UnixTime)
    used_at: Mapped[float | None] = mapped_column(UnixTime)
    """When a join token was spent."""


class SessionRow(Base):
    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[float] = mapped_column(UnixTime)
    expires_at: Mapped[float] = mapped_column(UnixTime, index=True)
