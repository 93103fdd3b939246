"""Server process of the app; it checks the environment first, so that a problem is one line of output."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Final

import uvicorn
from fastapi import FastAPI
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from mainstay.probes.data_dir import TooOpenError, private_directory, require_private
from mainstay.probes.http_server import ReloadingServer, with_deadlines
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.telemetry.frame_protocol import FrameProtocol

LOCK_FILE: Final = "serve.lock"
_BACKLOG: Final = 4096
_GRACE_SECONDS: Final = 2
"""A frame waits a tenth of a second for its commit; what takes longer is a long poll, and is asked again."""
_KEEP_ALIVE_SECONDS: Final = 75
"""Longer than a node daemon pauses between frames: uvicorn's five seconds would close every connection in between."""


class CannotServeError(Exception):
    """The environment must be fixed first; the message contains the problem."""


def check_listen(settings: Settings) -> None:
    """Refuse to carry tokens in clear text beyond this machine, unless told to.

    Raises:
        CannotServeError: says which two ways there are.
    """
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise CannotServeError("TLS needs both --tls-certificate and --tls-key")
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        raise CannotServeError("client certificates need TLS: give --tls-certificate and --tls-key")
    for path in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca):
        if path is not None and not path.is_file():
            raise CannotServeError(f"{path} is not a file")
    if not (settings.is_loopback or settings.tls_certificate or settings.insecure_listen):
        raise CannotServeError(
            f"{settings.host} is not a loopback address: give --tls-certificate and --tls-key,"
            " or --insecure-listen if a TLS proxy stands in front"
        )


def check_data_dir(directory: Path) -> None:
    """Raise ``CannotServeError`` when the data directory cannot be written, or when others may use it."""
    try:
        private_directory(directory)
        probe = directory / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except TooOpenError as error:
        raise CannotServeError(str(error)) from error
    except OSError as error:
        raise CannotServeError(f"data directory {directory} cannot be written: {error.strerror}") from error


def lock_data_dir(directory: Path) -> IO[str]:
    """Hold the data directory for as long as the returned file is open; the kernel unlocks it when the process ends.

    Raises:
        CannotServeError: another service holds it. Two of them would contradict each other's findings.
    """
    file = (directory / LOCK_FILE).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise CannotServeError(
            f"data directory {directory} is in use by {holder}: stop it, or give another --data-dir"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def check_database(settings: Settings) -> None:
    """Check that the database can be used, before anything else touches it.

    Raises:
        CannotServeError: see ``open_database``; or it is no PostgreSQL and this is a gateway; or its schema is old and
            may not be changed, or a newer version of Mainstay made it.
    """
    with open_database(settings) as database:
        if settings.is_gateway and (database.is_sqlite or settings.blocks == "sqlite"):
            raise CannotServeError("a gateway stores frames in PostgreSQL: give --database-url postgresql://…")
        shown = database.url.render_as_string(hide_password=True)
        if unknown := migrate.unknown_revisions(database):
            raise CannotServeError(
                f"{shown} is of a newer version of Mainstay (schema {', '.join(sorted(unknown))}):"
                " install that version, or restore a backup of this one"
            )
        if not settings.migrates and not migrate.is_current(database):
            raise CannotServeError(f"the schema of {shown} is not current: start once with --migrate")


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """The database, which answers, for as long as the block lasts.

    Raises:
        CannotServeError: it does not answer, or other users may read its file.
    """
    try:
        database = Database(settings.resolved_database_url)
    except (ValueError, ArgumentError) as error:
        raise CannotServeError(f"database URL: {error}") from error
    shown = database.url.render_as_string(hide_password=True)
    try:
        if database.is_sqlite and (file := Path(database.url.database or "")).is_file():
            require_private(file)
        database.ping()
        yield database
    except TooOpenError as error:
        raise CannotServeError(str(error)) from error
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise CannotServeError(f"database {shown} does not answer: {cause}") from error
    finally:
        database.close()


def bind(settings: Settings) -> socket.socket:
    """The listening socket; port 0 takes a free one.

    Raises:
        CannotServeError: the address is taken, or not ours.
    """
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CannotServeError(
            f"cannot listen on {settings.host}:{settings.port}: {os.strerror(error.errno or 0)}; "
            "stop the process that listens there, or give another --port"
        ) from error


class Server(ReloadingServer):
    """Reports when it is ready, and ends streams and long polls before it waits for connections to close."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, on_ready: Callable[[Services], None]) -> None:
        super().__init__(config)
        self._app = app
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            tune_gc()
            self._on_ready(self._app.state.services)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        services: Services | None = getattr(self._app.state, "services", None)
        if services is not None:
            # Not here: a signal may come while this very thread holds a lock of the hub.
            self._loop.call_soon_threadsafe(_end_waits, services)
        super().handle_exit(sig, frame)


def _end_waits(services: Services) -> None:
    """End event streams and long polls, which would otherwise be cancelled with a traceback."""
    services.hub.close()
    services.waiting.notify(set(services.waiting.nodes()))


def tune_gc() -> None:
    """Exclude permanent objects from garbage collection: less CPU per request and no long pauses (measured)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def make_server(
    app: FastAPI, settings: Settings, on_ready: Callable[[Services], None] = lambda _services: None
) -> Server:
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=with_deadlines(FrameProtocol, settings.header_timeout_seconds, settings.body_timeout_seconds),
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # read where they matter (service/app.py), not for every frame
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
        # Browsers and jobs have none: who must show one is decided by the token (service/auth/guard.py).
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_OPTIONAL,
    )
    return Server(config, app, on_ready)
