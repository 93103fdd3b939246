"""People and their teams: who they are, what they may do, and how they sign in with a password."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from mainstay.probes.ids import uuid7
from mainstay.service.auth import passwords, repository
from mainstay.service.auth.models import SessionRow, TeamRow, TokenRow, UserRow
from mainstay.service.auth.roles import UserRole, scopes_of
from mainstay.service.auth.tokens import TokenKind, digest, make_secret
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, NotFoundError, UnauthorizedError, UnprocessableError


class SignInMethod(StrEnum):
    PASSWORD = "password"  # noqa: S105 - a name
    OPENID = "openid"


class UnknownUserError(NotFoundError):
    slug, title = "unknown-user", "Unknown user"


class UserExistsError(ConflictError):
    slug, title = "user-exists", "User exists"


class UnknownTeamError(NotFoundError):
    slug, title = "unknown-team", "Unknown team"


class LastAdminError(ConflictError):
    slug, title = "last-admin", "Last administrator"


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a user may do: ``role`` in the whole fleet, ``team_role`` with the jobs of ``teams``."""

    role: UserRole | None = None
    teams: tuple[str, ...] = ()
    team_role: UserRole | None = None


def check_access(session: AnySession, access: Access) -> None:
    """Check that the teams exist, and that a role in teams comes with teams and the reverse.

    Raises:
        UnprocessableError: it names what is wrong.
    """
    known = set(session.scalars(select(TeamRow.name).where(TeamRow.name.in_(access.teams)))) if access.teams else set()
    if missing := sorted(set(access.teams) - known):
        raise UnprocessableError(f"team {missing[0]!r} does not exist: create it first")
    if bool(access.teams) is (access.team_role is None):
        raise UnprocessableError("teams and team_role belong together: give both or neither")


def create_user(
    session: WriteSession, name: str, access: Access, *, now: float, display_name: str = "", password: str | None = None
) -> UserRow:
    """A local user; ``password`` is a hash.

    Raises:
        UserExistsError, UnprocessableError: the name is taken, or a value is not valid.
    """
    if session.scalar(select(UserRow.id).where(UserRow.name == name)) is not None:
        raise UserExistsError(f"a user {name!r} exists")
    check_access(session, access)
    row = UserRow(
        id=uuid7(), name=name, display_name=display_name or name, created_at=now, changed_at=now,
        password=password,
        **_columns(access),
    )  # fmt: skip
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:  # another process was first
        raise UserExistsError(f"a user {name!r} exists") from error
    return row


def hash_new(password: str, name: str) -> str:
    """The hash of a new password, if it is long enough and not the name; takes half a second.

    Raises:
        UnprocessableError: says which.
    """
    if not passwords.SHORTEST <= len(password) <= passwords.LONGEST:
        raise UnprocessableError(f"a password has {passwords.SHORTEST} to {passwords.LONGEST} characters")
    if name.lower() in password.lower() and len(password) < len(name) + passwords.SHORTEST:
        raise UnprocessableError("a password must not consist of the user's name and little else")
    return passwords.hash_password(password)


def _columns(access: Access) -> dict[str, Any]:
    return {"role": access.role, "teams": list(dict.fromkeys(access.teams)), "team_role": access.team_role}


def require_user(session: AnySession, name: str) -> UserRow:
    """The user of this name.

    Raises:
        UnknownUserError: there is none.
    """
    row = session.scalar(select(UserRow).where(UserRow.name == name))
    if row is None:
        raise UnknownUserError(f"no user has the name {name!r}")
    return row


def change_access(session: WriteSession, row: UserRow, access: Access, *, now: float) -> set[str]:
    """Give the user other roles or teams; returns the ids of the tokens that this concerns.

    Raises:
        UnprocessableError, LastAdminError: ``access`` is not valid, or no user could manage users afterwards.
    """
    check_access(session, access)
    _keep_an_admin(session, row, stays=access.role is UserRole.ADMIN)
    for column, value in _columns(access).items():
        setattr(row, column, value)
    row.changed_at = now
    return repository.tokens_of_user(session, row.id)


def set_password(session: WriteSession, row: UserRow, password: str, *, now: float) -> set[str]:
    """Give a local user another password (a hash) and end the user's sessions; returns the ids of their tokens.

    Raises:
        UnprocessableError: a provider signs the user in.
    """
    if row.issuer is not None:
        raise UnprocessableError(f"user {row.name!r} signs in through {row.issuer}: change the password there")
    row.password = password
    return end_sessions(session, row, now=now)


def set_disabled(session: WriteSession, row: UserRow, *, disabled: bool, now: float) -> set[str]:
    """Disable a user, which ends the user's sessions and tokens at once, or enable one; returns their ids.

    Raises:
        LastAdminError: no user could manage users afterwards.
    """
    concerned = repository.tokens_of_user(session, row.id)
    if disabled:
        _keep_an_admin(session, row, stays=False)
        end_sessions(session, row, now=now)
    row.disabled_at, row.changed_at = now if disabled else None, now
    return concerned


def _keep_an_admin(session: AnySession, row: UserRow, *, stays: bool) -> None:
    if stays or row.role != UserRole.ADMIN or row.disabled_at is not None or repository.has_admin(session):
        return
    others = select(UserRow.id).where(
        UserRow.role == UserRole.ADMIN, UserRow.disabled_at.is_(None), UserRow.id != row.id
    )
    if session.scalar(others.limit(1)) is None:
        raise LastAdminError(f"user {row.name!r} is the last administrator: make another one first")


def check_sign_in(session: AnySession, name: str, password: str) -> UserRow:
    """The local user with this password. Takes as long for a name that does not exist.

    Raises:
        UnauthorizedError: there is none such, or the user is disabled.
    """
    row = session.scalar(select(UserRow).where(UserRow.name == name))
    stored = None if row is None or row.disabled_at is not None else row.password
    if not passwords.check_password(password, stored) or row is None:
        raise UnauthorizedError("the name or the password is wrong", error="invalid_token")
    return row


def open_session(
    session: WriteSession, user: UserRow, method: SignInMethod, *, address: str, now: float, hours: float
) -> str:
    """A browser session of a user: its secret. The token behind it has no secret, and no scopes: the roles decide."""
    ends, cookie = now + hours * 3600, make_secret(TokenKind.USER).removeprefix("mst_user_")
    token = TokenRow(
        id=uuid7(), digest=digest(make_secret(TokenKind.USER)), prefix="session", kind=TokenKind.USER.value,
        name=f"session of {user.name}", scopes=[], created_at=now, expires_at=ends, user_id=user.id,
        sign_in=method.value, address=address[:64],
    )  # fmt: skip
    session.add(token)
    session.flush()
    session.add(SessionRow(digest=digest(cookie), token_id=token.id, created_at=now, expires_at=ends))
    user.signed_in_at = now
    return cookie


def end_sessions(session: WriteSession, row: UserRow, *, now: float) -> set[str]:
    """Sign a user out everywhere; returns the ids of the tokens."""
    found = select(TokenRow.id).where(
        TokenRow.user_id == row.id, TokenRow.sign_in.is_not(None), TokenRow.revoked_at.is_(None)
    )
    ended = set(session.scalars(found))
    for token in ended:
        repository.revoke(session, token, now)
    return ended


def put_team(session: WriteSession, name: str, jobs: Sequence[str], groups: Sequence[str], *, now: float) -> TeamRow:
    """Create a team or change its jobs and groups."""
    row = session.get(TeamRow, name) or TeamRow(name=name)
    row.jobs, row.groups, row.changed_at = list(dict.fromkeys(jobs)), list(dict.fromkeys(groups)), now
    session.add(row)
    session.flush()
    return row


def delete_team(session: WriteSession, name: str, *, now: float) -> set[str]:
    """Delete a team; returns the ids of the tokens that this concerns. Its own tokens are revoked.

    Raises:
        UnknownTeamError: there is none such.
    """
    row = session.get(TeamRow, name)
    if row is None:
        raise UnknownTeamError(f"there is no team {name!r}")
    concerned = repository.tokens_of_teams(session, {name})
    for user in session.scalars(select(UserRow)):
        if name in user.teams:
            user.teams, user.changed_at = [one for one in user.teams if one != name], now
            user.team_role = user.team_role if user.teams else None
    for token in session.scalars(select(TokenRow.id).where(TokenRow.team == name)).all():
        repository.revoke(session, token, now)
    session.delete(row)
    return concerned


def may_do_nothing(row: UserRow) -> bool:
    """Whether no role lets the user see anything."""
    return not scopes_of(row.role) and not (row.teams and scopes_of(row.team_role))
