"""``/v1/users``, ``/v1/teams`` and ``/v1/auth/sessions``: people, their teams, and where they are signed in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response
from sqlalchemy import select

from mainstay.service.auth import passwords, repository, serializers, service, users
from mainstay.service.auth.guard import Admin, Reader
from mainstay.service.auth.models import TeamRow, TokenRow, UserRow
from mainstay.service.auth.schemas import (
    PasswordChange,
    SessionRead,
    TeamIn,
    TeamRead,
    UserAccess,
    UserCreate,
    UserName,
    UserPassword,
    UserRead,
)
from mainstay.service.auth.tokens import Scope
from mainstay.service.auth.users import Access
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, WriteSession, Writing, after_commit
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.common.schemas import Name, Output, Uuid
from mainstay.service.services import Services, ServicesDep

router = APIRouter(prefix="/v1", tags=["auth"])
User = Annotated[UserName, Path(alias="name")]


class SessionPage(Page[SessionRead]):
    """Sessions, newest first."""


class UserPage(Page[UserRead]):
    """Users, newest first."""


class TeamList(Output):
    """Teams by name."""

    items: list[TeamRead]


def _forget(session: WriteSession, services: Services, tokens: set[str]) -> None:
    after_commit(session, lambda: services.tokens.forget(tokens))


@router.get("/auth/sessions", operation_id="list_sessions")
def list_sessions(reader: Reader, session: Reading, page: Paging, now: Now) -> SessionPage:
    """Where users are signed in, newest first. An admin sees all, others their own."""
    wanted = select(TokenRow).where(
        TokenRow.sign_in.is_not(None), TokenRow.revoked_at.is_(None), TokenRow.expires_at > now
    )
    if not reader.may(Scope.ADMIN):
        wanted = wanted.where(TokenRow.user_id == reader.user_id)
    rows, cursor = paginate(session, wanted, keys=(TokenRow.created_at, TokenRow.id), page=page)
    return SessionPage(items=serializers.read_sessions(session, rows, reader.token_id), next_cursor=cursor)


@router.delete("/auth/sessions/{id}", status_code=204, operation_id="end_session", response_class=Response)
def end_session(
    token: Annotated[Uuid, Path(alias="id")], reader: Reader, services: ServicesDep, session: Writing, now: Now
) -> None:
    """Sign a browser out. Who is no admin can end only sessions of their own."""
    row = session.get(TokenRow, token)
    if row is None or row.sign_in is None or not (reader.may(Scope.ADMIN) or row.user_id == reader.user_id):
        raise service.UnknownTokenError(f"no session has the id {token}")
    service.revoke_token(session, token, now=now)
    _forget(session, services, {token})


# A password is checked and hashed, which takes most of a second, before the transaction that writes begins.
def _hash_own(body: PasswordChange, reader: Reader, services: ServicesDep) -> str:
    with services.database.reading() as session:
        row = None if reader.user_id is None else session.get(UserRow, reader.user_id)
    if row is None:
        raise UnprocessableError("a token has no password: sign in as a user")
    if not passwords.check_password(body.current_password, row.password):
        raise UnprocessableError("the current password is wrong")
    return users.hash_new(body.password, row.name)


def _hash_given(body: UserPassword, name: User, _: Admin) -> str:
    return users.hash_new(body.password, name)


def _hash_first(body: UserCreate, _: Admin) -> str | None:
    return None if body.password is None else users.hash_new(body.password, body.name)


@router.put("/auth/password", status_code=204, operation_id="change_password", response_class=Response)
def change_password(
    body: PasswordChange,
    reader: Reader,
    hashed: Annotated[str, Depends(_hash_own)],
    services: ServicesDep,
    session: Writing,
    *,
    now: Now,
) -> None:
    """Change the password of the user who asks, and sign the user out everywhere."""
    del body
    row = session.get_one(UserRow, reader.user_id)
    _forget(session, services, users.set_password(session, row, hashed, now=now))


@router.get("/users", operation_id="list_users")
def list_users(_: Admin, session: Reading, page: Paging) -> UserPage:
    """Users, newest first."""
    rows, cursor = paginate(session, select(UserRow), keys=(UserRow.created_at, UserRow.id), page=page)
    return UserPage(items=[serializers.read_user(row) for row in rows], next_cursor=cursor)


@router.post("/users", status_code=201, operation_id="create_user", responses=problems(409))
def create_user(
    body: UserCreate, _: Admin, hashed: Annotated[str | None, Depends(_hash_first)], session: Writing, now: Now
) -> UserRead:
    """Create a local user."""
    row = users.create_user(session, body.name, _access(body), now=now, display_name=body.display_name, password=hashed)
    return serializers.read_user(row)


def _access(body: UserCreate | UserAccess) -> Access:
    return Access(role=body.role, teams=tuple(body.teams), team_role=body.team_role)


@router.put("/users/{name}/access", operation_id="put_user_access", responses=problems(404, 409))
def put_user_access(
    name: User, body: UserAccess, _: Admin, services: ServicesDep, session: Writing, *, now: Now
) -> UserRead:
    """Change the roles and the teams of a user, at once."""
    row = users.require_user(session, name)
    _forget(session, services, users.change_access(session, row, _access(body), now=now))
    return serializers.read_user(row)


@router.put("/users/{name}/password", operation_id="put_user_password", responses=problems(404))
def put_user_password(
    name: User,
    body: UserPassword,
    _: Admin,
    hashed: Annotated[str, Depends(_hash_given)],
    services: ServicesDep,
    session: Writing,
    *,
    now: Now,
) -> UserRead:
    """Set the password of a local user, and sign the user out everywhere."""
    del body
    row = users.require_user(session, name)
    _forget(session, services, users.set_password(session, row, hashed, now=now))
    return serializers.read_user(row)


@router.post("/users/{name}:disable", operation_id="disable_user", responses=problems(409))
def disable_user(name: User, _: Admin, services: ServicesDep, session: Writing, now: Now) -> UserRead:
    """End the sessions and the tokens of a user, who can sign in no longer."""
    return _set_disabled(session, services, name, disabled=True, now=now)


@router.post("/users/{name}:enable", operation_id="enable_user", responses=problems(409))
def enable_user(name: User, _: Admin, services: ServicesDep, session: Writing, now: Now) -> UserRead:
    """Let a disabled user sign in again. The user's tokens work again; sessions stay ended."""
    return _set_disabled(session, services, name, disabled=False, now=now)


def _set_disabled(session: WriteSession, services: Services, name: str, *, disabled: bool, now: float) -> UserRead:
    row = users.require_user(session, name)
    _forget(session, services, users.set_disabled(session, row, disabled=disabled, now=now))
    return serializers.read_user(row)


@router.get("/teams", operation_id="list_teams")
def list_teams(_: Admin, session: Reading) -> TeamList:
    """Teams by name."""
    rows = session.scalars(select(TeamRow).order_by(TeamRow.name))
    return TeamList(items=[TeamRead.model_validate(row) for row in rows])


@router.put("/teams/{name}", operation_id="put_team")
def put_team(
    name: Annotated[Name, Path()], body: TeamIn, _: Admin, services: ServicesDep, session: Writing, *, now: Now
) -> TeamRead:
    """Create a team, or change its jobs and groups, at once."""
    row = users.put_team(session, name, body.jobs, body.groups, now=now)
    _forget(session, services, repository.tokens_of_teams(session, {name}))
    return TeamRead.model_validate(row)


@router.delete("/teams/{name}", status_code=204, operation_id="delete_team", response_class=Response)
def delete_team(name: Annotated[Name, Path()], _: Admin, services: ServicesDep, session: Writing, now: Now) -> None:
    """Delete a team. Its tokens are revoked; its members keep what their other roles allow."""
    _forget(session, services, users.delete_team(session, name, now=now))
