"""``mainstay user`` and ``mainstay team``: people and what they may do. Each change is in the audit log."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from mainstay.detectors.cli_errors import Flag
from mainstay.probes.command_options import fail
from mainstay.service.auth.cli_database import changing, database_of
from mainstay.service.config.options import DatabaseOptions

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.auth.models import UserRow
    from mainstay.service.auth.users import Access
    from mainstay.service.common.db import WriteSession

user = App(name="user", help="Manage users.")
team = App(name="team", help="Manage teams: people who share jobs.")
RoleName = Literal["viewer", "responder", "operator", "admin"]


@user.command
def create(
    name: str,
    options: DatabaseOptions = DatabaseOptions(),
    *,
    role: RoleName | None = None,
    team: tuple[str, ...] = (),
    team_role: RoleName | None = None,
    display_name: str = "",
    password_stdin: Flag = False,
) -> None:
    """Create a local user, who signs in with a password.

    Parameters
    ----------
    name
        Name the user, for instance by e-mail address.
    role
        What the user may do in the whole fleet; without it, nothing.
    team
        Make the user a member of this team; may be repeated.
    team_role
        What the user may do with the jobs of the teams.
    display_name
        Name to show; the default is NAME.
    password_stdin
        Read the password from standard input instead of asking for it.
    """
    from mainstay.service.auth import users

    access = _access(role, team, team_role)
    hashed = _hashed(name, stdin=password_stdin)
    detail = {"role": role, "teams": list(team), "team_role": team_role}
    with changing(options, "user", "create_user", name, detail) as (session, now):
        _check_name(name)
        users.create_user(session, name, access, now=now, display_name=display_name, password=hashed)
    print(f"Created user {name}.")


@user.command
def set_access(
    name: str,
    options: DatabaseOptions = DatabaseOptions(),
    *,
    role: RoleName | None = None,
    team: tuple[str, ...] = (),
    team_role: RoleName | None = None,
) -> None:
    """Replace the roles and the teams of a user.

    Parameters
    ----------
    name
        Change this user.
    role
        What the user may do in the whole fleet; without it, nothing.
    team
        Make the user a member of this team; may be repeated.
    team_role
        What the user may do with the jobs of the teams.
    """
    from mainstay.service.auth import users

    access, detail = _access(role, team, team_role), {"role": role, "teams": list(team), "team_role": team_role}
    _change(options, "put_user_access", name, lambda s, row, now: users.change_access(s, row, access, now=now), detail)
    print(f"Changed user {name}; running services know it within seconds.")


@user.command
def set_password(name: str, options: DatabaseOptions = DatabaseOptions(), *, password_stdin: Flag = False) -> None:
    """Set the password of a local user, and sign the user out everywhere.

    Parameters
    ----------
    name
        Change this user.
    password_stdin
        Read the password from standard input instead of asking for it.
    """
    from mainstay.service.auth import users

    hashed = _hashed(name, stdin=password_stdin)
    _change(options, "put_user_password", name, lambda s, row, now: users.set_password(s, row, hashed, now=now))
    print(f"Changed the password of user {name}.")


@user.command
def disable(name: str, options: DatabaseOptions = DatabaseOptions()) -> None:
    """End the sessions and tokens of a user, who can sign in no longer.

    Parameters
    ----------
    name
        Disable this user.
    """
    from mainstay.service.auth import users

    _change(options, "disable_user", name, lambda s, row, now: users.set_disabled(s, row, disabled=True, now=now))
    print(f"Disabled user {name}; running services know it within seconds.")


@user.command
def enable(name: str, options: DatabaseOptions = DatabaseOptions()) -> None:
    """Let a disabled user sign in again.

    Parameters
    ----------
    name
        Enable this user.
    """
    from mainstay.service.auth import users

    _change(options, "enable_user", name, lambda s, row, now: users.set_disabled(s, row, disabled=False, now=now))
    print(f"Enabled user {name}.")


@user.command(name="list")
def list_users(options: DatabaseOptions = DatabaseOptions(), *, json: Flag = False) -> None:
    """List users by name.

    Parameters
    ----------
    json
        Print JSON.
    """
    from sqlalchemy import select

    from mainstay.service.auth.models import UserRow
    from mainstay.service.auth.serializers import read_user

    with database_of(options, "user").reading() as session:
        reads = [read_user(row) for row in session.scalars(select(UserRow).order_by(UserRow.name))]
    rows = [
        (one.name, one.role or "", ",".join(one.teams), one.team_role or "", one.issuer or "password",
         "disabled" if one.disabled_at else "")
        for one in reads
    ]  # fmt: skip
    _print(reads, ("name", "role", "teams", "role in teams", "signs in by", ""), rows, json=json)


@team.command(name="set")
def put(
    name: str, options: DatabaseOptions = DatabaseOptions(), *, job: tuple[str, ...], group: tuple[str, ...] = ()
) -> None:
    """Create a team, or replace its jobs and groups.

    Parameters
    ----------
    name
        Name the team.
    job
        ID of a job of the team; one that ends in * stands for all that begin so. May be repeated.
    group
        Group at the OpenID Connect provider whose members belong to the team. May be repeated.
    """
    from pydantic import ValidationError

    from mainstay.service.auth import users
    from mainstay.service.auth.schemas import TeamIn

    try:
        TeamIn(jobs=list(job), groups=list(group))
    except ValidationError as error:
        fail("team", error.errors()[0]["msg"].removeprefix("Value error, "))
    with changing(options, "team", "put_team", name, {"jobs": list(job), "groups": list(group)}) as (session, now):
        _check_name(name)
        users.put_team(session, name, job, group, now=now)
    print(f"Stored team {name}; running services know it within seconds.")


@team.command
def delete(name: str, options: DatabaseOptions = DatabaseOptions()) -> None:
    """Delete a team and revoke its tokens.

    Parameters
    ----------
    name
        Delete this team.
    """
    from mainstay.service.auth import users

    with changing(options, "team", "delete_team", name, {}) as (session, now):
        users.delete_team(session, name, now=now)
    print(f"Deleted team {name}.")


@team.command(name="list")
def list_teams(options: DatabaseOptions = DatabaseOptions(), *, json: Flag = False) -> None:
    """List teams by name.

    Parameters
    ----------
    json
        Print JSON.
    """
    from sqlalchemy import select

    from mainstay.service.auth.models import TeamRow
    from mainstay.service.auth.schemas import TeamRead

    with database_of(options, "team").reading() as session:
        reads = [TeamRead.model_validate(row) for row in session.scalars(select(TeamRow).order_by(TeamRow.name))]
    rows = [(one.name, ",".join(one.jobs), ",".join(one.groups)) for one in reads]
    _print(reads, ("name", "jobs", "groups"), rows, json=json)


def _access(role: RoleName | None, teams: tuple[str, ...], team_role: RoleName | None) -> Access:
    from mainstay.service.auth.roles import UserRole
    from mainstay.service.auth.users import Access

    return Access(
        role=None if role is None else UserRole(role),
        teams=teams,
        team_role=None if team_role is None else UserRole(team_role),
    )


def _hashed(name: str, *, stdin: bool) -> str:
    from mainstay.service.auth.users import hash_new
    from mainstay.service.common.problem import ProblemError

    if stdin:
        password = sys.stdin.readline().rstrip("\n")
    elif not sys.stdin.isatty():
        fail("user", "there is no terminal to ask for the password: use --password-stdin")
    else:
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            fail("user", "the two passwords differ")
    try:
        return hash_new(password, name)
    except ProblemError as error:
        fail("user", str(error))


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from mainstay.service.auth.schemas import UserName

    try:
        TypeAdapter(UserName).validate_python(name)
    except ValidationError:
        fail("user", f"NAME {name!r} must consist of letters, digits, and . _ @ + -")


def _change(
    options: DatabaseOptions,
    action: str,
    name: str,
    change: Callable[[WriteSession, UserRow, float], object],
    detail: dict[str, Any] | None = None,
) -> None:
    from mainstay.service.auth.users import require_user

    with changing(options, "user", action, name, detail or {}) as (session, now):
        change(session, require_user(session, name), now)


def _print(reads: list[Any], titles: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, json: bool) -> None:
    if json:
        import json as json_module

        print(json_module.dumps([one.model_dump(mode="json") for one in reads], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
