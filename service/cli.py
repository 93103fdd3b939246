"""``mainstay serve``, ``up``, ``worker``, and ``token``. Invalid input gives one clear line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

from cyclopts import App, Parameter

from mainstay.detectors.cli_errors import Flag
from mainstay.probes.data_dir import keep_files_private
from mainstay.service.config.cli import ConfigFile

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.auth.models import TokenRow
    from mainstay.service.auth.service import NewToken
    from mainstay.service.common.db import Database
    from mainstay.service.services import Services
    from mainstay.service.settings import Settings


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions:
    """Settings as options: ``mainstay.service.config.load`` lists the other sources."""

    config: ConfigFile = None
    data_dir: Path | None = None
    """Keep database, blocks, and the admin token in this directory."""
    database_url: str | None = None
    """Use the database sqlite:///FILE or postgresql://…."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions(DatabaseOptions):
    """What a worker needs as well."""

    broker_url: str | None = None
    """Use the broker memory:// or redis://…."""
    log_format: Literal["console", "json"] | None = None
    """Set the format of log lines."""
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    """Set the lowest severity of log lines."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(WorkerOptions):
    """What the control plane needs as well."""

    host: str | None = None
    """Listen on this address; the default is loopback."""
    port: int | None = None
    """Listen on this port (8080); 0 takes a free one."""
    migrate: bool | None = None
    """Migrate the database schema first (default on SQLite)."""
    tls_certificate: Path | None = None
    """Read the PEM certificate chain from this file."""
    tls_key: Path | None = None
    """Read the PEM private key from this file."""
    tls_client_ca: Path | None = None
    """Require certificates of nodes that an authority in this PEM file signed."""
    insecure_listen: Annotated[bool | None, Parameter(negative="")] = None
    """Listen beyond loopback without TLS (a proxy provides it)."""


def serve(options: ServeOptions = ServeOptions()) -> None:
    """Run the control plane: API, dashboard, ingest, detectors. Tasks and sweeps also need a worker."""
    _serve(options, "serve", extras=())


def up(options: ServeOptions = ServeOptions(), *, node: bool = True) -> None:
    """Run all services locally: service, dashboard, worker, scheduler, and node daemon.

    Parameters
    ----------
    node
        Run the node daemon of this machine.
    """
    from mainstay.service.celery_app import embedded

    _serve(options, "up", extras=(embedded,), own_probe=node)


Extra = Callable[["Services"], AbstractContextManager[object]]


def _serve(options: ServeOptions, command: str, *, extras: tuple[Extra, ...], own_probe: bool = False) -> None:
    from mainstay.service import server as server_module
    from mainstay.service.app import create_app
    from mainstay.service.common import log
    from mainstay.service.local_node import own_node

    settings = _settings(options, command)
    keep_files_private()
    try:
        server_module.check_listen(settings)
        server_module.check_data_dir(settings.data_dir)
        lock = server_module.lock_data_dir(settings.data_dir)
        server_module.check_database(settings)
        sock = server_module.bind(settings)
    except server_module.CannotServeError as error:
        _fail(command, str(error), 1)
    log.configure(settings.log_level, settings.log_format)
    settings = settings.model_copy(update={"port": sock.getsockname()[1]})
    if own_probe:
        extras = (*extras, lambda services: own_node(services, settings.base_url))
    app = create_app(settings, extras=extras)
    server = server_module.make_server(app, settings, lambda _: _welcome(settings, app.state.first_code))
    with lock:
        server.run(sockets=[sock])
    if not server.started:
        sys.exit(1)  # uvicorn has logged why


def _welcome(settings: Settings, first_code: str | None) -> None:
    from mainstay.service.auth.links import sign_in_link

    print(f"Mainstay is ready on {settings.base_url}", flush=True)
    if first_code is not None:
        minutes = settings.auth.sign_in_code_seconds / 60
        print(
            f"Sign in (works once, for {minutes:g} minutes): {sign_in_link(settings.base_url, first_code)}", flush=True
        )
    else:
        print(f"For a sign-in link, run: mainstay token login-link --data-dir {settings.data_dir}", flush=True)


def worker(
    options: WorkerOptions = WorkerOptions(),
    *,
    beat: Flag = False,
    beat_only: Flag = False,
    concurrency: int = 2,
) -> None:
    """Run a Celery worker (and, with --beat, the scheduler).

    Parameters
    ----------
    beat
        Schedule sweeps as well.
    beat_only
        Schedule sweeps and run no tasks.
    concurrency
        Run this many tasks at the same time.
    """
    from mainstay.service import server as server_module
    from mainstay.service.common import log

    settings = _settings(options, "worker")
    if settings.celery.broker_url.startswith("memory"):
        _fail("worker", "memory:// works only inside one process: give --broker-url redis://…, or use mainstay up")
    if not 1 <= concurrency <= 64:
        _fail("worker", f"--concurrency {concurrency} must be from 1 to 64")
    keep_files_private()
    try:
        server_module.check_data_dir(settings.data_dir)
        server_module.check_database(settings)
    except server_module.CannotServeError as error:
        _fail("worker", str(error), 1)
    log.configure(settings.log_level, settings.log_format)
    from mainstay.service.app import build_services, close_services
    from mainstay.service.celery_app import run

    services = build_services(settings)
    run(services, tasks=not beat_only, beat=beat or beat_only, concurrency=concurrency)
    close_services(services)


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
    expires_hours: float | None = None,
    quiet: Flag = False,
) -> None:
    """Create an access token and print it once.

    Parameters
    ----------
    name
        Name the token by its purpose.
    scopes
        Set the scopes, separated by commas: read, report, act, admin.
    kind
        Choose the kind; a job token only reports.
    job
        Bind a job token to one job.
    any_job
        Let a job token write the data of every job.
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
        _fail("token", f"scope {unknown[0]!r} must be one of {', '.join(Scope)}")
    if not name.strip():
        _fail("token", "NAME must not be empty: name the token by its purpose")
    chosen = (Scope.REPORT,) if kind == "job" else tuple(Scope(scope) for scope in wanted)
    new = NewToken(name=name, kind=TokenKind(kind), scopes=chosen, job=job, any_job=any_job)
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

    hours = expires_hours if expires_hours is not None else _settings(options, "token").auth.join_token_hours
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

    settings, now = _settings(options, "token"), SystemClock().now()
    with _database(options).session() as session:
        admin = repository.newest_admin(session, now)
        if admin is None:
            _fail("token", "there is no valid admin token: the next start of the service makes one", 1)
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
        _fail("token", "name the racks of the relay with --rack, or give --all-racks")
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
    from mainstay.service.common.clock import SystemClock

    database, now = _database(options), SystemClock().now()
    with database.reading() as session:
        rows = [r for r in session.scalars(select(TokenRow).order_by(TokenRow.created_at.desc())) if is_valid(r, now)]
    if json:
        from pydantic import TypeAdapter

        reads = [TokenRead.model_validate(row) for row in rows]
        print(TypeAdapter(list[TokenRead]).dump_json(reads, indent=2).decode())
    else:
        _print_tokens(rows)


@token.command
def revoke(token_id: str, options: DatabaseOptions = DatabaseOptions()) -> None:
    """Revoke a token and end its sessions.

    Parameters
    ----------
    token_id
        Revoke the token with this ID (see 'mainstay token list').
    """
    from mainstay.service.auth.service import UnknownTokenError, revoke_token
    from mainstay.service.common.clock import SystemClock

    try:
        with _database(options).session() as session:
            revoke_token(session, token_id, now=SystemClock().now())
    except UnknownTokenError as error:
        _fail("token", f"{error}; 'mainstay token list' shows the IDs", 1)
    print("Revoked; running services reject the token within seconds.")


def _issue(options: DatabaseOptions, new: NewToken, *, hours: float | None, quiet: bool) -> None:
    """Create the token and print its secret."""
    from mainstay.service.auth.service import create_token
    from mainstay.service.common.clock import SystemClock
    from mainstay.service.common.problem import ProblemError

    _check_names(new)
    if hours is not None and not 0 < hours <= 87_600:
        _fail("token", f"--expires-hours {hours} must be above 0 and at most 87600")
    now = SystemClock().now()
    ends = None if hours is None else now + hours * 3600
    try:
        with _database(options).session() as session:
            row, secret = create_token(session, replace(new, expires_at=ends), now=now)
    except ProblemError as error:
        _fail("token", str(error))
    print(secret if quiet else f"{secret}\n(ID {row.id}; the secret is shown only once)")


def _check_names(new: NewToken) -> None:
    from mainstay.probes.core_types import validate_name
    from mainstay.service.auth.tokens import ALL_RACKS

    try:
        for value, what in ((new.node, "--node"), (new.job, "--job"), *((rack, "--rack") for rack in new.racks)):
            if value is not None and value != ALL_RACKS:
                validate_name(value, what)
    except ValueError as error:
        _fail("token", str(error))


def _print_tokens(rows: list[TokenRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("id", no_wrap=True, min_width=36)
    for title in ("kind", "name", "scopes", "starts with", "bound to"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(row.id, row.kind, row.name, ",".join(row.scopes), row.prefix, _bound_to(row))
    Console().print(table)


def _bound_to(row: TokenRow) -> str:
    return row.node or row.job or ",".join(row.racks or ())


def _settings(options: ServeOptions | WorkerOptions | DatabaseOptions, command: str) -> Settings:
    from mainstay.service.config.load import InvalidSettingsError, load

    given = {name: value for name, value in asdict(options).items() if value is not None}
    file = given.pop("config", None)
    if "broker_url" in given:
        given["celery"] = {"broker_url": given.pop("broker_url")}
    try:
        return load(given, file).settings
    except InvalidSettingsError as error:
        _fail(command, str(error))


def _database(options: DatabaseOptions) -> Database:
    from sqlalchemy.engine import make_url

    from mainstay.service import server as server_module
    from mainstay.service.common.db import Database

    settings = _settings(options, "token").model_copy(update={"migrate": False})
    file = make_url(settings.resolved_database_url).database or ""
    if settings.resolved_database_url.startswith("sqlite") and not Path(file).is_file():
        _fail("token", f"there is no database at {file}: give the service's --data-dir or --database-url", 1)
    try:
        server_module.check_database(settings)
    except server_module.CannotServeError as error:
        _fail("token", str(error), 1)
    return Database(settings.resolved_database_url)


def _fail(command: str, message: str, code: int = 2) -> NoReturn:
    print(f"mainstay {command}: {message}", file=sys.stderr)
    sys.exit(code)
