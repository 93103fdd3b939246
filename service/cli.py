"""``mainstay serve``, ``up``, ``worker`` and ``token``. Bad input and bad surroundings give one clear line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from cyclopts import App, Parameter

if TYPE_CHECKING:  # commands import what they need when they run
    from service.auth.models import TokenRow
    from service.auth.service import NewToken
    from service.kit.db import Database
    from service.services import Services
    from service.settings import Settings


def _option(about: str) -> Any:
    return Parameter(help=about)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What is not given comes from the environment (``MAINSTAY_PORT``, …) or has its default."""

    host: Annotated[str | None, _option("Address to listen on; loopback unless you say otherwise.")] = None
    port: Annotated[int | None, _option("Port to listen on (8080); 0 takes a free one.")] = None
    data_dir: Annotated[Path | None, _option("Where database, blocks and the admin token live.")] = None
    database_url: Annotated[str | None, _option("sqlite:///FILE or postgresql://….")] = None
    broker_url: Annotated[str | None, _option("memory:// or redis://….")] = None
    migrate: Annotated[bool | None, _option("Bring the database schema up to date first (default on SQLite).")] = None
    tls_certificate: Annotated[Path | None, _option("PEM certificate chain.")] = None
    tls_key: Annotated[Path | None, _option("PEM private key.")] = None
    insecure_listen: Annotated[
        bool | None, Parameter(help="Listen beyond loopback without TLS (a proxy carries it).", negative="")
    ] = None
    log_format: Annotated[Literal["console", "json"] | None, _option("How log lines look.")] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, _option("Least severe line.")] = None


def serve(options: ServeOptions = ServeOptions()) -> None:
    """The control plane: API, dashboard, ingest, detectors. Tasks and sweeps need a worker beside it."""
    _serve(options, "serve", extras=())


def up(
    options: ServeOptions = ServeOptions(),
    *,
    node: Annotated[bool, Parameter(help="Run this machine's own probe.")] = True,
) -> None:
    """Service, dashboard, worker, beat and this machine's probe in one command."""
    from service.worker import embedded

    _serve(options, "up", extras=(embedded,), own_probe=node)


Extra = Callable[["Services"], AbstractContextManager[object]]


def _serve(options: ServeOptions, command: str, *, extras: tuple[Extra, ...], own_probe: bool = False) -> None:
    from service import serving
    from service.app import create_app
    from service.kit import log
    from service.own_node import own_node

    settings = _settings(options, command)
    try:
        serving.check_listen(settings)
        serving.check_data_dir(settings.data_dir)
        serving.check_database(settings)
        sock = serving.bind(settings)
    except serving.CannotServeError as error:
        _fail(command, str(error), 1)
    log.configure(settings.log_level, settings.log_format)
    settings = settings.model_copy(update={"port": sock.getsockname()[1]})
    if own_probe:
        extras = (*extras, lambda services: own_node(services, settings.base_url))
    app = create_app(settings, extras=extras)
    server = serving.make_server(app, settings, lambda _: _welcome(settings, app.state.first_token))
    server.run(sockets=[sock])
    if not server.started:
        sys.exit(1)  # uvicorn has logged why


def _welcome(settings: Settings, first_token: str | None) -> None:
    print(f"Mainstay is ready on {settings.base_url}", flush=True)
    if first_token is not None:
        print(f"Sign in (shown this once): {settings.base_url}/sign-in#token={first_token}", flush=True)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Where the worker finds its work."""

    data_dir: Annotated[Path | None, _option("Where the SQLite database lives.")] = None
    database_url: Annotated[str | None, _option("sqlite:///FILE or postgresql://….")] = None
    broker_url: Annotated[str | None, _option("redis://….")] = None
    log_format: Annotated[Literal["console", "json"] | None, _option("How log lines look.")] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, _option("Least severe line.")] = None


def worker(
    options: WorkerOptions = WorkerOptions(),
    *,
    beat: Annotated[bool, Parameter(help="Schedule sweeps as well.", negative="")] = False,
    beat_only: Annotated[bool, Parameter(help="Schedule sweeps and run no tasks.", negative="")] = False,
    concurrency: Annotated[int, Parameter(help="Tasks at the same time.")] = 2,
) -> None:
    """A Celery worker (and, with --beat, the scheduler)."""
    from service import serving
    from service.kit import log

    settings = _settings(options, "worker")
    if settings.celery.broker_url.startswith("memory"):
        _fail("worker", "memory:// does not leave its process: give --broker-url redis://…, or use mainstay up")
    if not 1 <= concurrency <= 64:
        _fail("worker", f"--concurrency {concurrency} is not between 1 and 64")
    try:
        serving.check_database(settings)
    except serving.CannotServeError as error:
        _fail("worker", str(error), 1)
    log.configure(settings.log_level, settings.log_format)
    from service.worker import run

    run(settings, tasks=not beat_only, beat=beat or beat_only, concurrency=concurrency)


token = App(name="token", help="Create, list and revoke access tokens and join tokens.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions:
    """Which service the token is for: its database is changed directly."""

    data_dir: Annotated[Path | None, _option("The service's data directory.")] = None
    database_url: Annotated[str | None, _option("The service's database.")] = None


@token.command
def create(
    name: Annotated[str, Parameter(help="What it is for.")],
    options: DatabaseOptions = DatabaseOptions(),
    *,
    scopes: Annotated[str, Parameter(help="Comma-separated: read, report, act, admin.")] = "read",
    kind: Annotated[Literal["user", "job"], Parameter(help="A job token only reports.")] = "user",
    job: Annotated[str | None, Parameter(help="Bind a job token to one job.")] = None,
    expires_hours: Annotated[float | None, Parameter(help="Life in hours; for ever if not given.")] = None,
    quiet: Annotated[bool, Parameter(help="Print the secret and nothing else.", negative="")] = False,
) -> None:
    """Create an access token and print it: it is shown this once."""
    from service.auth.service import NewToken
    from service.auth.tokens import Scope, TokenKind

    wanted = [part.strip() for part in scopes.split(",") if part.strip()]
    unknown = [scope for scope in wanted if scope not in set(Scope)]
    if unknown:
        _fail("token", f"scope {unknown[0]!r} is none of {', '.join(Scope)}")
    chosen = (Scope.REPORT,) if kind == "job" else tuple(Scope(scope) for scope in wanted)
    new = NewToken(name=name, kind=TokenKind(kind), scopes=chosen, job=job)
    _issue(options, new, hours=expires_hours, quiet=quiet)


@token.command
def join(
    options: DatabaseOptions = DatabaseOptions(),
    *,
    node: Annotated[str | None, Parameter(help="Bind it to one node (needed to enrol a known node again).")] = None,
    expires_hours: Annotated[float | None, Parameter(help="Life in hours; 24 if not given.")] = None,
    quiet: Annotated[bool, Parameter(help="Print the secret and nothing else.", negative="")] = False,
) -> None:
    """Create a one-time token with which a node enrols itself."""
    from service.auth.service import NewToken
    from service.auth.tokens import Scope, TokenKind

    hours = expires_hours if expires_hours is not None else _settings(options, "token").auth.join_token_hours
    new = NewToken(name=f"join {node or 'any node'}", kind=TokenKind.JOIN, scopes=(Scope.REPORT,), node=node)
    _issue(options, new, hours=hours, quiet=quiet)


@token.command(name="list")
def list_(
    options: DatabaseOptions = DatabaseOptions(),
    *,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="")] = False,
) -> None:
    """Tokens that are in force, newest first; never their secrets."""
    from sqlalchemy import select

    from service.auth.models import TokenRow
    from service.auth.repository import is_valid
    from service.auth.schemas import TokenRead
    from service.kit.clock import SystemClock

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
def revoke(
    token_id: Annotated[str, Parameter(help="The id that 'mainstay token list' shows.")],
    options: DatabaseOptions = DatabaseOptions(),
) -> None:
    """End a token and the sessions opened with it."""
    from service.auth.service import UnknownTokenError, revoke_token
    from service.kit.clock import SystemClock

    try:
        with _database(options).session() as session:
            revoke_token(session, token_id, now=SystemClock().now())
    except UnknownTokenError as error:
        _fail("token", str(error), 1)
    print("revoked; running services forget it within seconds")


def _issue(options: DatabaseOptions, new: NewToken, *, hours: float | None, quiet: bool) -> None:
    """Make the token and print its secret."""
    from service.auth.service import create_token
    from service.kit.clock import SystemClock
    from service.kit.problem import ProblemError

    _check_names(new)
    if hours is not None and not 0 < hours <= 87_600:
        _fail("token", f"--expires-hours {hours} is not between 0 and 87600")
    now = SystemClock().now()
    ends = None if hours is None else now + hours * 3600
    try:
        with _database(options).session() as session:
            row, secret = create_token(session, replace(new, expires_at=ends), now=now)
    except ProblemError as error:
        _fail("token", str(error))
    print(secret if quiet else f"{secret}\n(id {row.id}; the secret is shown this once)")


def _check_names(new: NewToken) -> None:
    from probes.words import check_name

    try:
        for value, what in ((new.node, "--node"), (new.job, "--job")):
            if value is not None:
                check_name(value, what)
    except ValueError as error:
        _fail("token", str(error))


def _print_tokens(rows: list[TokenRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("id", no_wrap=True, min_width=36)
    for title in ("kind", "name", "scopes", "starts with", "node", "job"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(row.id, row.kind, row.name, ",".join(row.scopes), row.prefix, row.node or "", row.job or "")
    Console().print(table)


def _settings(options: ServeOptions | WorkerOptions | DatabaseOptions, command: str) -> Settings:
    from pydantic import ValidationError

    from service.settings import Settings

    given = {name: value for name, value in asdict(options).items() if value is not None}
    broker = given.pop("broker_url", None)
    try:
        settings = Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        _fail(command, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")
    if broker is not None:
        celery = settings.celery.model_copy(update={"broker_url": broker})
        settings = settings.model_copy(update={"celery": celery})
    return settings.model_copy(update={"data_dir": settings.data_dir.expanduser().absolute()})


def _database(options: DatabaseOptions) -> Database:
    from sqlalchemy.engine import make_url

    from service import serving
    from service.kit.db import Database

    settings = _settings(options, "token").model_copy(update={"migrate": False})
    file = make_url(settings.resolved_database_url).database or ""
    if settings.resolved_database_url.startswith("sqlite") and not Path(file).is_file():
        _fail("token", f"there is no database at {file}: give the service's --data-dir or --database-url", 1)
    try:
        serving.check_database(settings)
    except serving.CannotServeError as error:
        _fail("token", str(error), 1)
    return Database(settings.resolved_database_url)


def _fail(command: str, message: str, code: int = 2) -> NoReturn:
    print(f"mainstay {command}: {message}", file=sys.stderr)
    sys.exit(code)
