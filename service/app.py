"""The composition root: builds the app and the frozen ``Services`` behind it.

A feature joins by one line in ``ROUTERS`` and, where it runs in the background or has metrics, one in ``LOOPS`` and
``COLLECTORS``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

from mainstay import __version__
from service.auth.tokens import TokenCache
from service.kit import idempotency, migrate, problem
from service.kit.clock import Clock, SystemClock
from service.kit.db import Database
from service.kit.loops import Loop, Loops
from service.services import Services
from service.settings import Settings
from service.stream.hub import ChangeHub

ROUTERS: tuple[APIRouter, ...] = ()
"""One line a feature."""
LOOPS: tuple[Callable[[Services], list[Loop]], ...] = ()
"""What runs in the background: each makes its loops from the services."""


def build_services(settings: Settings, clock: Clock | None = None) -> Services:
    """Open everything that a process of the control plane needs (a Celery worker calls this too)."""
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.resolved_database_url)
    if settings.migrate:
        migrate.upgrade(database)
    return Services(
        settings=settings,
        clock=clock or SystemClock(),
        database=database,
        tokens=TokenCache(settings.auth.cache_seconds, time.monotonic),
        hub=ChangeHub(),
    )


def create_app(settings: Settings, clock: Clock | None = None) -> FastAPI:
    """The ASGI app; resources open in its lifespan, not here."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services = build_services(settings, clock)
        loops = Loops(loop for make in LOOPS for loop in make(services))
        app.state.services, app.state.database, app.state.clock = services, services.database, services.clock
        app.state.loops = loops
        loops.start()
        _calm_collector()
        yield
        loops.stop()
        services.database.close()

    app = FastAPI(title="Mainstay", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    problem.install(app)
    idempotency.install(app)
    for router in ROUTERS:
        app.include_router(router, prefix="/v1")
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _calm_collector() -> None:
    """What lives as long as the process is not looked at again: less CPU a request and no long pauses (measured)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        app.openapi_schema = problem.document(schema)
    return app.openapi_schema
