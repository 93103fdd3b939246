"""Rows of tokens and browser sessions."""

from __future__ import annotations

from sqlalchemy import delete, select, update

from mainstay.service.auth.models import SessionRow, TokenRow
from mainstay.service.auth.tokens import TokenKind
from mainstay.service.common.db import AnySession, WriteSession


def valid_token(session: AnySession, digest: str, now: float) -> TokenRow | None:
    """The token with this digest, unless it is expired or revoked."""
    row = session.scalar(select(TokenRow).where(TokenRow.digest == digest))
    return row if row is not None and is_valid(row, now) else None


def is_valid(row: TokenRow, now: float) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


def session_token(session: AnySession, digest: str, now: float) -> tuple[TokenRow, float] | None:
    """The token behind a browser session and when the session ends."""
    found = session.execute(
        select(TokenRow, SessionRow.expires_at)
        .join(SessionRow, SessionRow.token_id == TokenRow.id)
        .where(SessionRow.digest == digest, SessionRow.expires_at > now)
    ).one_or_none()
    if found is None or not is_valid(found[0], now):
        return None
    return found[0], found[1]


def spend_join_token(session: WriteSession, token_id: str, now: float) -> bool:
    """Mark a join token used; false when someone else was first."""
    statement = (
        update(TokenRow)
        .where(TokenRow.id == token_id, TokenRow.kind == TokenKind.JOIN, TokenRow.used_at.is_(None))
        .values(used_at=now, revoked_at=now)
        .returning(TokenRow.id)
    )
    return session.scalar(statement) is not None


def revoke(session: WriteSession, token_id: str, now: float) -> bool:
    """Revoke a token and end its sessions; false when there is none such, or it was revoked before."""
    statement = (
        update(TokenRow)
        .where(TokenRow.id == token_id, TokenRow.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(TokenRow.id)
    )
    done = session.scalar(statement) is not None
    session.execute(delete(SessionRow).where(SessionRow.token_id == token_id))
    return done


def revoke_node_tokens(session: WriteSession, node: str, now: float) -> set[str]:
    """Revoke the old credentials of a node that enrolls again and gets a new one; returns their ids."""
    statement = (
        update(TokenRow)
        .where(TokenRow.node == node, TokenRow.kind == TokenKind.NODE, TokenRow.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(TokenRow.id)
    )
    return set(session.scalars(statement))


def revoked_since(session: AnySession, since: float) -> set[str]:
    """Ids of the tokens that were revoked at ``since`` or later."""
    return set(session.scalars(select(TokenRow.id).where(TokenRow.revoked_at >= since)))


def has_admin(session: AnySession) -> bool:
    statement = select(TokenRow.id).where(TokenRow.kind == TokenKind.ADMIN, TokenRow.revoked_at.is_(None)).limit(1)
    return session.scalar(statement) is not None


def newest_admin(session: AnySession, now: float) -> str | None:
    """The id of the valid admin token that was made last."""
    rows = session.scalars(
        select(TokenRow)
        .where(TokenRow.kind == TokenKind.ADMIN, TokenRow.revoked_at.is_(None))
        .order_by(TokenRow.created_at.desc(), TokenRow.id.desc())
    )
    return next((row.id for row in rows if is_valid(row, now)), None)


def spend_code(session: WriteSession, digest: str, now: float) -> TokenRow | None:
    """The valid token that a sign-in code stands for; the code is gone, whoever was second gets None."""
    statement = delete(SessionRow).where(SessionRow.digest == digest, SessionRow.expires_at > now)
    token_id = session.scalar(statement.returning(SessionRow.token_id))
    row = None if token_id is None else session.get(TokenRow, token_id)
    return row if row is not None and is_valid(row, now) else None


def prune_sessions(session: WriteSession, now: float) -> None:
    session.execute(delete(SessionRow).where(SessionRow.expires_at < now))
