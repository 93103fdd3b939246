"""``/healthz``, ``/readyz`` and ``/metrics``: read from what is there when they are asked, never pushed."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse, Response

from mainstay.probes.core_types import HealthState
from mainstay.service import services as running
from mainstay.service.common import compression
from mainstay.service.common.loops import Loops
from mainstay.service.exposition.page import page
from mainstay.service.services import Services


async def healthz(_request: Request) -> Response:
    """The process answers."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """Work can be done: the database answers, frames become durable, the loops turn."""
    services, loops = running.services_of(request), request.app.state.loops
    checks = await run_in_threadpool(_checks, services, loops)
    ready = all(fault is None for fault in checks.values())
    told = {name: fault or "ok" for name, fault in checks.items()}
    return JSONResponse({"status": "ok" if ready else "not ready", "checks": told}, status_code=200 if ready else 503)


def _checks(services: Services, loops: Loops) -> dict[str, str | None]:
    writer = services.ingest.writer
    dead = [loop.name for loop in loops if not loop.alive]
    return {
        "database": _database_fault(services),
        "ingest": None if writer.healthy() else f"frames wait {writer.lag():.1f} s for the disk",
        "loops": f"not running: {', '.join(dead)}" if dead else None,
    }


def _database_fault(services: Services) -> str | None:
    try:
        services.database.ping()
    except SQLAlchemyError as error:
        return type(error).__name__
    return None


async def metrics(request: Request) -> Response:
    """Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    for make in request.app.state.collectors:
        registry.register(make(running.services_of(request)))
    registry.register(LoopCollector(request.app.state.loops))
    encoding = compression.choose(request.headers.get("accept-encoding", ""))
    text = await run_in_threadpool(_metrics_text, registry, running.services_of(request), encoding)
    return Response(text, media_type=CONTENT_TYPE_LATEST, headers=compression.headers(encoding))


def _metrics_text(registry: CollectorRegistry, services: Services, encoding: str | None) -> bytes:
    return compression.compress(generate_latest(registry) + page(services), encoding)


def _counter(name: str, about: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"mainstay_{name}", about, value=value)


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"mainstay_{name}", about, value=value)


class IngestCollector(Collector):
    """The data path."""

    def __init__(self, services: Services) -> None:
        self.services = services

    def collect(self) -> Iterator[Metric]:
        ingest, stats = self.services.ingest, self.services.ingest.writer.stats
        yield _counter("frames_stored", "Frames made durable", stats.stored)
        yield _counter("frames_duplicate", "Frames that were stored before", stats.duplicates)
        yield _counter("samples_stored", "Samples made durable", stats.samples)
        yield _counter("frame_bytes_stored", "Bytes of frames made durable", stats.stored_bytes)
        yield _counter("commits", "Group commits", stats.commits)
        yield _counter("commit_failures", "Group commits that failed", stats.commit_failures)
        yield _counter("commit_seconds", "Time spent in group commits", stats.commit_seconds)
        yield _gauge("frames_pending", "Frames waiting for a commit", ingest.writer.pending)
        yield _gauge("frames_pending_age_seconds", "Age of the oldest waiting frame", ingest.writer.lag())
        yield _gauge("ring_bytes", "Memory of the telemetry ring", ingest.ring.nbytes)
        yield _gauge("step_ring_bytes", "Memory of the step rings", ingest.steps.nbytes)
        latest = ingest.seen.latest()
        if latest is not None:
            yield _gauge("data_age_seconds", "Since any node last reported", self.services.clock.now() - latest)
        refused = CounterMetricFamily("mainstay_frames_rejected", "Frames refused, by problem", labels=["problem"])
        for slug, count in sorted(ingest.refused.items()):
            refused.add_metric([slug], count)
        yield refused


class FleetCollector(Collector):
    """Nodes, devices and watchers."""

    def __init__(self, services: Services) -> None:
        self.services = services

    def collect(self) -> Iterator[Metric]:
        with self.services.database.reading() as session:
            fleet = self.services.fleet.current(session)
        nodes = GaugeMetricFamily("mainstay_nodes", "Nodes, by state", labels=["state"])
        for state in HealthState:
            nodes.add_metric([state.value], fleet.states.get(state.value, 0))
        yield nodes
        yield _gauge("devices", "Devices in the latest reports", fleet.devices)
        yield _gauge("event_streams", "Open event streams", self.services.hub.watchers)
        yield _counter("watch_messages", "Messages handed to event streams", self.services.hub.sent)


class LoopCollector(Collector):
    """Background loops."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops

    def collect(self) -> Iterator[Metric]:
        turns = CounterMetricFamily("mainstay_loop_iterations", "Turns that went well", labels=["loop"])
        failures = CounterMetricFamily("mainstay_loop_failures", "Turns that failed", labels=["loop"])
        seconds = GaugeMetricFamily("mainstay_loop_turn_seconds", "Length of the last turn", labels=["loop"])
        for loop in self.loops:
            turns.add_metric([loop.name], loop.turns)
            failures.add_metric([loop.name], loop.failures)
            seconds.add_metric([loop.name], loop.last_seconds)
        yield from (turns, failures, seconds)
