"""Rows of tokens and browser sessions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import delete, or_, select, update

from mainstay.service.auth.models import SessionRow, TeamRow, TokenRow, UserRow
from mainstay.service.auth.tokens import TokenKind
from mainstay.service.common.db import AnySession, WriteSession


def valid_token(session: AnySession, digest: str, now: float) -> TokenRow | None:
    """The token with this digest, unless it is expired or revoked, or its user disabled."""
    row = session.scalar(select(TokenRow).where(TokenRow.digest == digest))
    return row if row is not None and is_valid(session, row, now) else None


def is_valid(session: AnySession, row: TokenRow, now: float) -> bool:
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
        return False
    user = None if row.user_id is None else session.get(UserRow, row.user_id)
    return row.user_id is None or (user is not None and user.disabled_at is None)


def session_token(session: AnySession, digest: str, now: float) -> tuple[TokenRow, float] | None:
    """The token behind a browser session and when the session ends."""
    found = session.execute(
        select(TokenRow, SessionRow.expires_at)
        .join(SessionRow, SessionRow.token_id == TokenRow.id)
        .where(SessionRow.digest == digest, SessionRow.expires_at > now)
    ).one_or_none()
    if found is None or not is_valid(session, found[0], now):
        return None
    return found[0], found[1]


def jobs_of_teams(session: AnySession, teams: Collection[str]) -> tuple[str, ...]:
    """The jobs of these teams, as ``TeamRow.jobs`` has them."""
    rows = session.scalars(select(TeamRow.jobs).where(TeamRow.name.in_(teams))) if teams else ()
    return tuple(sorted({job for jobs in rows for job in jobs}))


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


def changed_since(session: AnySession, since: float) -> dict[str, float]:
    """Ids of the tokens that were revoked, or whose user or team changed, at ``since`` or later → when."""
    revoked = select(TokenRow.id, TokenRow.revoked_at).where(TokenRow.revoked_at >= since)
    users = select(TokenRow.id, UserRow.changed_at).join(UserRow, UserRow.id == TokenRow.user_id)
    rows = [*session.execute(revoked), *session.execute(users.where(UserRow.changed_at >= since))]
    found: dict[str, float] = {row[0]: row[1] for row in rows}
    for team, at in session.execute(select(TeamRow.name, TeamRow.changed_at).where(TeamRow.changed_at >= since)):
        found |= {token: max(at, found.get(token, 0.0)) for token in tokens_of_teams(session, {team})}
    return found


def tokens_of_teams(session: AnySession, teams: Collection[str]) -> set[str]:
    """Ids of the tokens of these teams and of their members."""
    users = [id_ for id_, of in session.execute(select(UserRow.id, UserRow.teams)) if not set(of).isdisjoint(teams)]
    found = select(TokenRow.id).where(or_(TokenRow.team.in_(teams), TokenRow.user_id.in_(users)))
    return set(session.scalars(found.where(TokenRow.revoked_at.is_(None))))


def tokens_of_user(session: AnySession, user: str) -> set[str]:
    """Ids of the tokens of a user that are not revoked."""
    return set(session.scalars(select(TokenRow.id).where(TokenRow.user_id == user, TokenRow.revoked_at.is_(None))))


def store_uses(session: WriteSession, uses: Mapping[str, float]) -> None:
    """Store when tokens (by id) were last used (Unix seconds)."""
    rows = [{"id": token, "last_used_at": at} for token, at in uses.items()]
    session.execute(update(TokenRow), rows)


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
    return next((row.id for row in rows if is_valid(session, row, now)), None)


def spend_code(session: WriteSession, digest: str, now: float) -> TokenRow | None:
    """The valid token that a sign-in code stands for; the code is gone, whoever was second gets None."""
    statement = delete(SessionRow).where(SessionRow.digest == digest, SessionRow.expires_at > now)
    token_id = session.scalar(statement.returning(SessionRow.token_id))
    row = None if token_id is None else session.get(TokenRow, token_id)
    return row if row is not None and is_valid(session, row, now) else None


def prune_sessions(session: WriteSession, now: float) -> None:
    session.execute(delete(SessionRow).where(SessionRow.expires_at < now))
