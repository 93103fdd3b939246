"""``mainstay serve``, ``up``, and ``worker``. Invalid input gives one clear line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mainstay.detectors.cli_errors import Flag
from mainstay.probes.command_options import fail
from mainstay.probes.data_dir import keep_files_private
from mainstay.probes.open_files import raise_open_file_limit
from mainstay.service.config.options import ServeOptions, WorkerOptions, settings_of

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.services import Services
    from mainstay.service.settings import Settings


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

    settings = settings_of(options, command)
    keep_files_private()
    raise_open_file_limit()
    try:
        server_module.check_listen(settings)
        server_module.check_data_dir(settings.data_dir)
        lock = server_module.lock_data_dir(settings.data_dir)
        server_module.check_database(settings)
        sock = server_module.bind(settings)
    except server_module.CannotServeError as error:
        fail(command, str(error), 1)
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

    settings = settings_of(options, "worker")
    if settings.celery.broker_url.startswith("memory"):
        fail("worker", "memory:// works only inside one process: give --broker-url redis://…, or use mainstay up")
    if not 1 <= concurrency <= 64:
        fail("worker", f"--concurrency {concurrency} must be from 1 to 64")
    keep_files_private()
    try:
        server_module.check_data_dir(settings.data_dir)
        server_module.check_database(settings)
    except server_module.CannotServeError as error:
        fail("worker", str(error), 1)
    log.configure(settings.log_level, settings.log_format)
    from mainstay.service.app import build_services, close_services
    from mainstay.service.celery_app import run

    services = build_services(settings)
    run(services, tasks=not beat_only, beat=beat or beat_only, concurrency=concurrency)
    close_services(services)
