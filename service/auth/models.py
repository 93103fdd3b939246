"""Tables of auth. Only digests of secrets are stored."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, UniqueConstraint
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
    user_id: Mapped[str | None] = mapped_column(String(36), index=True)
    """Id of the user whom it stands for: it may never do more than the user."""
    team: Mapped[str | None] = mapped_column(String(128))
    """Its scopes hold for the jobs of this team only."""
    sign_in: Mapped[str | None] = mapped_column(String(16))
    """How the user signed in (``SignInMethod``). Such a token has no secret: only the session of a browser uses it."""
    address: Mapped[str | None] = mapped_column(String(64))
    """From which the user signed in."""
    last_used_at: Mapped[float | None] = mapped_column(UnixTime)
    """Within ``last_use.SECONDS``."""


class SessionRow(Base):
    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[float] = mapped_column(UnixTime)
    expires_at: Mapped[float] = mapped_column(UnixTime, index=True)


class UserRow(Base):
    """A person. Users are disabled, never deleted: the audit log names them."""

    __tablename__ = "users"
    __table_args__ = (UniqueConstraint("issuer", "subject"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    display_name: Mapped[str] = mapped_column(String(200))
    role: Mapped[str | None] = mapped_column(String(16))
    """What the user may do in the whole fleet; empty: nothing."""
    team_role: Mapped[str | None] = mapped_column(String(16))
    """What the user may do with the jobs of ``teams``."""
    teams: Mapped[list[str]]
    password: Mapped[str | None] = mapped_column(String(200))
    """From ``passwords.hash_password``; empty: the user cannot sign in with one."""
    issuer: Mapped[str | None] = mapped_column(String(500))
    """OpenID Connect provider that vouches for the user; empty for a local user."""
    subject: Mapped[str | None] = mapped_column(String(255))
    """The user's identifier at the provider."""
    created_at: Mapped[float] = mapped_column(UnixTime)
    changed_at: Mapped[float] = mapped_column(UnixTime, index=True)
    """When what the user may do changed."""
    disabled_at: Mapped[float | None] = mapped_column(UnixTime)
    signed_in_at: Mapped[float | None] = mapped_column(UnixTime)


class TeamRow(Base):
    """People who share jobs."""

    __tablename__ = "teams"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    jobs: Mapped[list[str]]
    """IDs of jobs; one that ends in ``*`` stands for all that begin so."""
    groups: Mapped[list[str]]
    """Groups at the OpenID Connect provider whose members belong to the team."""
    changed_at: Mapped[float] = mapped_column(UnixTime)
