"""``mainstay token``: manage tokens. Invalid input gives one clear line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from cyclopts import App

from mainstay.detectors.cli_errors import Flag
from mainstay.probes.command_options import fail
from mainstay.service.auth.cli_database import changing, database_of
from mainstay.service.config.options import DatabaseOptions, settings_of

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.auth.schemas import TokenRead
    from mainstay.service.auth.service import NewToken

token = App(name="token", help="Manage tokens.")


@token.command
def create(
    name: str,
    options: DatabaseOptions = DatabaseOptions(),
    *,
    scopes: str = "read",
    kind: Literal["user", "job"] = "user",
    job: str | None = None,
    any_job: Flag = False,
    team: str | None = None,
    expires_hours: float | None = None,
    quiet: Flag = False,
) -> None:
    """Create an access token and print it once.

    Parameters
    ----------
    name
        Name the token by its purpose.
    scopes
        Set the scopes, separated by commas: read, report, respond, act, admin.
    kind
        Choose the kind; a job token only reports.
    job
        Bind a job token to one job.
    any_job
        Let a job token write the data of every job.
    team
        Limit the token to the jobs of this team.
    expires_hours
        Set the lifetime in hours; the default is unlimited.
    quiet
        Print only the secret.
    """
    from mainstay.service.auth.service import NewToken
    from mainstay.service.auth.tokens import Scope, TokenKind

    wanted = [part.strip() for part in scopes.split(",") if part.strip()]
    unknown = [scope for scope in wanted if scope not in set(Scope)]
    if unknown:
        fail("token", f"scope {unknown[0]!r} must be one of {', '.join(Scope)}")
    if not name.strip():
        fail("token", "NAME must not be empty: name the token by its purpose")
    chosen = (Scope.REPORT,) if kind == "job" else tuple(Scope(scope) for scope in wanted)
    new = NewToken(name=name, kind=TokenKind(kind), scopes=chosen, job=job, any_job=any_job, team=team)
    _issue(options, new, hours=expires_hours, quiet=quiet)


@token.command
def join(
    options: DatabaseOptions = DatabaseOptions(),
    *,
    node: str | None = None,
    expires_hours: float | None = None,
    quiet: Flag = False,
) -> None:
    """Create a one-time token with which a node enrolls itself.

    Parameters
    ----------
    node
        Bind the token to one node (required to enroll a known node again).
    expires_hours
        Set the lifetime in hours; the default is 24.
    quiet
        Print only the secret.
    """
    from mainstay.service.auth.service import NewToken
    from mainstay.service.auth.tokens import Scope, TokenKind

    hours = expires_hours if expires_hours is not None else settings_of(options, "token").auth.join_token_hours
    new = NewToken(name=f"join {node or 'any node'}", kind=TokenKind.JOIN, scopes=(Scope.REPORT,), node=node)
    _issue(options, new, hours=hours, quiet=quiet)


@token.command
def login_link(options: DatabaseOptions = DatabaseOptions(), *, url: str | None = None, quiet: Flag = False) -> None:
    """Print a link that signs an administrator in to the dashboard once, within minutes.

    Parameters
    ----------
    url
        Begin the link with this URL; the default follows from the settings.
    quiet
        Print only the link.
    """
    from mainstay.service.auth import repository
    from mainstay.service.auth.links import sign_in_link
    from mainstay.service.auth.service import create_code
    from mainstay.service.common.clock import SystemClock

    settings, now = settings_of(options, "token"), SystemClock().now()
    with database_of(options, "token").session() as session:
        admin = repository.newest_admin(session, now)
        if admin is None:
            fail("token", "there is no valid admin token: the next start of the service makes one", 1)
        code = create_code(session, admin, now=now, seconds=settings.auth.sign_in_code_seconds)
    link = sign_in_link(url or settings.base_url, code)
    print(link if quiet else f"{link}\n(works once, for {settings.auth.sign_in_code_seconds / 60:g} minutes)")


@token.command
def relay(
    options: DatabaseOptions = DatabaseOptions(),
    *,
    name: str,
    rack: tuple[str, ...] = (),
    all_racks: Flag = False,
    expires_hours: float | None = None,
    quiet: Flag = False,
) -> None:
    """Create the token of a rack relay and print it once.

    Parameters
    ----------
    name
        Name the relay.
    rack
        Let the relay carry frames of nodes in this rack; may be repeated.
    all_racks
        Let the relay carry frames of all nodes, with a rack or without.
    expires_hours
        Set the lifetime in hours; the default is unlimited.
    quiet
        Print only the secret.
    """
    from mainstay.service.auth.service import NewToken
    from mainstay.service.auth.tokens import ALL_RACKS, TokenKind

    if bool(rack) == all_racks:
        fail("token", "name the racks of the relay with --rack, or give --all-racks")
    racks = (ALL_RACKS,) if all_racks else rack
    _issue(options, NewToken(name=name, kind=TokenKind.RELAY, racks=racks), hours=expires_hours, quiet=quiet)


@token.command(name="list")
def list_(options: DatabaseOptions = DatabaseOptions(), *, json: Flag = False) -> None:
    """List valid tokens, newest first, without their secrets.

    Parameters
    ----------
    json
        Print JSON.
    """
    from sqlalchemy import select

    from mainstay.service.auth.models import TokenRow
    from mainstay.service.auth.repository import is_valid
    from mainstay.service.auth.schemas import TokenRead
    from mainstay.service.auth.serializers import read_tokens
    from mainstay.service.common.clock import SystemClock

    database, now = database_of(options, "token"), SystemClock().now()
    with database.reading() as session:
        found = select(TokenRow).where(TokenRow.sign_in.is_(None)).order_by(TokenRow.created_at.desc())
        rows = [row for row in session.scalars(found) if is_valid(session, row, now)]
        reads = read_tokens(session, rows)
    if json:
        from pydantic import TypeAdapter

        print(TypeAdapter(list[TokenRead]).dump_json(reads, indent=2).decode())
    else:
        _print_tokens(reads)


@token.command
def revoke(token_id: str, options: DatabaseOptions = DatabaseOptions()) -> None:
    """Revoke a token and end its sessions.

    Parameters
    ----------
    token_id
        Revoke the token with this ID (see 'mainstay token list').
    """
    from mainstay.service.auth.service import UnknownTokenError, revoke_token

    with changing(options, "token", "revoke_token", token_id, {}) as (session, now):
        try:
            revoke_token(session, token_id, now=now)
        except UnknownTokenError as error:
            fail("token", f"{error}; 'mainstay token list' shows the IDs", 1)
    print("Revoked; running services reject the token within seconds.")


def _issue(options: DatabaseOptions, new: NewToken, *, hours: float | None, quiet: bool) -> None:
    """Create the token and print its secret."""
    from mainstay.service.auth.service import create_token

    _check_names(new)
    if hours is not None and not 0 < hours <= 87_600:
        fail("token", f"--expires-hours {hours} must be above 0 and at most 87600")
    detail = {"name": new.name, "kind": new.kind, "scopes": list(new.scopes), "job": new.job, "team": new.team}
    with changing(options, "token", "create_token", new.name, detail) as (session, now):
        ends = None if hours is None else now + hours * 3600
        row, secret = create_token(session, replace(new, expires_at=ends), now=now)
    print(secret if quiet else f"{secret}\n(ID {row.id}; the secret is shown only once)")


def _check_names(new: NewToken) -> None:
    from mainstay.probes.core_types import validate_name
    from mainstay.service.auth.tokens import ALL_RACKS

    try:
        for value, what in ((new.node, "--node"), (new.job, "--job"), *((rack, "--rack") for rack in new.racks)):
            if value is not None and value != ALL_RACKS:
                validate_name(value, what)
    except ValueError as error:
        fail("token", str(error))


def _print_tokens(rows: list[TokenRead]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("id", no_wrap=True, min_width=36)
    for title in ("kind", "name", "scopes", "starts with", "bound to"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(row.id, row.kind, row.name, ",".join(row.scopes), row.prefix, _bound_to(row))
    Console().print(table)


def _bound_to(row: TokenRead) -> str:
    return row.node or row.job or row.team or row.user or ",".join(row.racks or ())
