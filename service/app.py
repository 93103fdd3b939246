"""The composition root: builds the app and the frozen ``Services`` behind it.

A feature joins by one line in ``ROUTERS`` and, where it runs in the background or has metrics, one in ``LOOPS`` and
``COLLECTORS``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client.metrics_core import Metric
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mainstay import __version__
from mainstay.service import health
from mainstay.service.admission import endpoints as admission
from mainstay.service.audit import endpoints as audit
from mainstay.service.auth import endpoints as auth
from mainstay.service.auth import loops as auth_loops
from mainstay.service.auth import openid_endpoints
from mainstay.service.auth import user_endpoints as users
from mainstay.service.auth.guard import COOKIE
from mainstay.service.auth.openid import provider_of
from mainstay.service.auth.quotas import TokenQuotas
from mainstay.service.auth.service import create_code, ensure_admin
from mainstay.service.auth.throttle import SignInThrottle
from mainstay.service.auth.tokens import TokenCache
from mainstay.service.check_selection import endpoints as selections
from mainstay.service.check_selection.service import Selector
from mainstay.service.cluster import endpoints as cluster
from mainstay.service.cluster import loops as cluster_loops
from mainstay.service.cluster.leases import Leases, Process
from mainstay.service.common import idempotency, migrate, openapi, problem
from mainstay.service.common.body import BodyLimit
from mainstay.service.common.clock import Clock, SystemClock
from mainstay.service.common.compression import Compression
from mainstay.service.common.db import Database
from mainstay.service.common.durations import Durations, RequestDurations
from mainstay.service.common.histogram import Histogram
from mainstay.service.common.hosts import AllowedHosts
from mainstay.service.common.loops import Loop, Loops
from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.common.shared_wakeups import SharedWakeups
from mainstay.service.common.wakeups import WakeupRegistry
from mainstay.service.common.web import Dashboard, SecurityHeaders
from mainstay.service.detector_policies import endpoints as detector_policies
from mainstay.service.events import endpoints as events
from mainstay.service.events.writer import EventWriter
from mainstay.service.exposition import remote_write
from mainstay.service.exposition.collector import collect_health
from mainstay.service.fleet import bulk_endpoints as node_moves
from mainstay.service.fleet import device_endpoints as devices
from mainstay.service.fleet import endpoints as fleet
from mainstay.service.fleet import lifecycle_endpoints as node_life
from mainstay.service.fleet import loops as fleet_loops
from mainstay.service.fleet.directory import FleetDirectory
from mainstay.service.fleet.heatmap import LayoutCache
from mainstay.service.fleet.node_reports import NodeReports
from mainstay.service.history import loops as history_loops
from mainstay.service.history.query import History
from mainstay.service.incidents import detection_loop, lemon_scan
from mainstay.service.incidents import endpoints as incidents
from mainstay.service.incidents.metrics import collect_open_work
from mainstay.service.incidents.run_metrics import collect_runs
from mainstay.service.jobs import endpoints as jobs
from mainstay.service.jobs import live_endpoints as live_jobs
from mainstay.service.jobs.occupancy import Occupancy
from mainstay.service.jobs.repository import world_size
from mainstay.service.localization import endpoints as localizations
from mainstay.service.notifications import endpoints as notifications
from mainstay.service.notifications import loops as notification_loops
from mainstay.service.notifications.metrics import collect as collect_notifications
from mainstay.service.overview import endpoints as overview
from mainstay.service.post_mortems import endpoints as post_mortems
from mainstay.service.remediation import endpoints as remediation
from mainstay.service.remediation import reconcile
from mainstay.service.remediation.metrics import collect_remediation
from mainstay.service.reports import endpoints as reports
from mainstay.service.retention import loops as retention_loops
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.silences import endpoints as silences
from mainstay.service.simulation import endpoints as planning
from mainstay.service.sources import endpoints as sources
from mainstay.service.sources import loops as source_loops
from mainstay.service.stream import endpoints as stream
from mainstay.service.stream import loops as stream_loops
from mainstay.service.stream.hub import ChangeHub
from mainstay.service.telemetry import block_endpoints as blocks
from mainstay.service.telemetry import endpoints as telemetry
from mainstay.service.telemetry import loops as telemetry_loops
from mainstay.service.telemetry import route as frames
from mainstay.service.telemetry.blocks_postgres import PostgresBlockStore
from mainstay.service.telemetry.factory import build_ingest
from mainstay.service.telemetry.log_follower import LogFollower
from mainstay.service.validation import cohort_comparison_endpoints as comparisons
from mainstay.service.validation import endpoints as validation
from mainstay.service.validation import loops as validation_loops
from mainstay.service.validation import sweep_endpoints as sweeps
from mainstay.service.xid_policies import endpoints as policies

_log: Final = logging.getLogger(__name__)
Extra = Callable[[Services], AbstractContextManager[object]]
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""Five hundred events with all their data; the frame route has a bound of its own."""

SWITCH_SECONDS: Final = 0.001
"""How long a thread that computes keeps the interpreter from one that waits for it. A request waits at each step of a
query: with Python's 5 ms, a few rows cost it a hundredth of a second."""

ROUTERS: Final[tuple[APIRouter, ...]] = (
    admission.router,  # first: a request is held against each in turn, and a scheduler waits for this one
    auth.router,
    users.router,
    openid_endpoints.router,
    audit.router,
    fleet.router,
    node_life.router,
    node_moves.router,
    devices.router,
    telemetry.router,
    blocks.router,
    events.router,
    jobs.router,
    live_jobs.router,
    incidents.router,
    post_mortems.router,
    notifications.router,
    silences.router,
    reports.router,
    remediation.router,
    policies.router,
    detector_policies.router,
    validation.router,
    sweeps.router,
    selections.router,
    comparisons.router,
    localizations.router,
    overview.router,
    planning.router,
    sources.router,
    stream.router,
    cluster.router,
)
"""One line a feature."""
LOOPS: Final[tuple[Callable[[Services], list[Loop]], ...]] = (
    auth_loops.make,
    fleet_loops.make,
    telemetry_loops.make,
    stream_loops.make,
    detection_loop.make_loops,
    lemon_scan.make_loops,
    reconcile.make_loops,
    notification_loops.make,
    retention_loops.make,
    validation_loops.make,
    source_loops.make,
    cluster_loops.make,
    history_loops.make,
    remote_write.make,
)
"""What runs in the background: each makes its loops from the services."""
GATEWAY_LOOPS: Final = (auth_loops.make, fleet_loops.make, stream_loops.make, validation_loops.make, cluster_loops.make)
"""The same of a gateway: it knows tokens, nodes, and their orders."""
COLLECTORS: Final[tuple[Callable[[Services], Iterator[Metric]], ...]] = (
    health.collect_ingest,
    health.collect_fleet,
    collect_open_work,
    collect_runs,
    collect_health,
    collect_remediation,
    collect_notifications,
    remote_write.collect,
)
"""What ``/metrics`` reads when it is asked; the first alone knows enough in a gateway."""


def build_services(settings: Settings, clock: Clock | None = None) -> Services:
    """Open everything that a process of the control plane needs (a Celery worker calls this too); starts nothing."""
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    clock = clock or SystemClock()
    database = Database(settings.resolved_database_url)
    if settings.migrates:
        migrate.upgrade(database)
    process = Process(url=settings.base_url, started_at=clock.now(), role=settings.cluster.role)
    ingest = build_ingest(settings, database, clock, world_size, process.id)
    shared = ingest.store if isinstance(ingest.store, PostgresBlockStore) and not settings.is_gateway else None
    filled = min(settings.telemetry.ring_seconds, settings.telemetry.refill_seconds)
    history = History(ingest.ring, ingest.store, ingest.catalogs, settings.history_url, clock.now() - filled + 2)
    outgoing = AddressPolicy.from_texts(settings.sources.allowed_networks)
    fleet, occupancy, wakers = FleetDirectory(settings.stream.keep_changes), Occupancy(), WakeupRegistry()
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        leases=Leases(database, process, settings.cluster.lease_seconds),
        tokens=TokenCache(settings.auth.cache_seconds, time.monotonic),
        sign_ins=SignInThrottle(settings.auth.sign_in_failures, settings.auth.sign_in_failures_total, time.monotonic),
        openid=provider_of(settings.openid, outgoing, time.monotonic, clock.now),
        hub=ChangeHub(database),
        ingest=ingest,
        follower=None if shared is None else LogFollower(ingest, shared),
        history=history,
        fleet=fleet,
        layout=LayoutCache(),
        selector=Selector(settings.incidents.shared_fault_nodes),
        reports=NodeReports(database, fleet, ingest.seen, clock, occupancy),
        occupancy=occupancy,
        events=EventWriter(database, wakers, clock),
        quotas=TokenQuotas(settings.quotas),
        wakers=wakers,
    )


def close_services(services: Services) -> None:
    services.blocks.close()
    services.database.close()


def create_app(settings: Settings, clock: Clock | None = None, extras: Sequence[Extra] = ()) -> FastAPI:
    """The ASGI app; resources open in its lifespan, not here.

    Args:
        settings: read once by the caller.
        clock: the system's unless a test brings its own.
        extras: what shall live as long as the services do: an embedded worker, this machine's probe.
    """
    durations = Durations(Histogram)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services = build_services(settings, clock)
        loops = Loops(loop for make in (GATEWAY_LOOPS if settings.is_gateway else LOOPS) for loop in make(services))
        app.state.services, app.state.database, app.state.clock = services, services.database, services.clock
        families = health.Families(services, loops, durations, COLLECTORS[: 1 if settings.is_gateway else None])
        app.state.loops, app.state.metrics = loops, health.metrics_bodies(services, families)
        app.state.first_code = _first_code(services)
        _start(services, loops)
        with ExitStack() as stack:
            stack.enter_context(SharedWakeups(services.database, services.wakers))
            for extra in extras:
                stack.enter_context(extra(services))
            yield
        services.hub.close()
        loops.stop()
        services.ingest.writer.stop()
        cluster_loops.leave(services)
        close_services(services)

    app = frames.FrameGateway(title="Mainstay", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit, limit=MAX_BODY_BYTES)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Compression)
    app.add_middleware(AllowedHosts, bound=settings.host, names=settings.allowed_hosts)
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1"))
    app.add_middleware(RequestDurations, durations=durations)  # the last one is the first to see a request
    problem.install(app)
    idempotency.install(app)
    _add_routes(app, dashboard=not settings.is_gateway)
    return app


def _add_routes(app: FastAPI, *, dashboard: bool) -> None:
    # not include_router, which builds every route again for every app: half a second at the first request
    app.router.routes.extend([*frames.ROUTES, *(route for router in ROUTERS for route in router.routes)])
    for path, endpoint in (("/healthz", health.healthz), ("/readyz", health.readyz), ("/metrics", health.metrics)):
        app.router.routes.append(Route(path, endpoint, methods=["GET"]))
    if dashboard:
        app.router.routes.append(Route("/{path:web}", Dashboard().__call__, methods=["GET"]))
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]


def _first_code(services: Services) -> str | None:
    """On the first start: a code that signs the administrator in."""
    settings, now = services.settings, services.clock.now()
    with services.database.session() as session:
        token_id = ensure_admin(session, settings.data_dir, now=now)
        if token_id is None:
            return None
        return create_code(session, token_id, now=now, seconds=settings.auth.sign_in_code_seconds)


def _start(services: Services, loops: Loops) -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    if services.settings.is_gateway:
        services.ingest.subjects.find_nodes()
    else:
        restored = services.ingest.refill()
        _log.info("telemetry of the last minutes restored from %d blocks", restored)
    services.ingest.writer.start(asyncio.get_running_loop())
    cluster_loops.join(services)
    loops.start()


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        frames.document(schema)
        openapi.complete(schema, cookie=COOKIE)
        app.openapi_schema = schema
    return app.openapi_schema
