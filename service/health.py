"""``/healthz``, ``/readyz`` and ``/metrics``: read from what is there when they are asked, never pushed."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import anyio
from fastapi import Request
from prometheus_client import PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse, Response, StreamingResponse

from mainstay import __version__
from mainstay.probes.core_types import HealthState
from mainstay.service import services as running
from mainstay.service.common import compression
from mainstay.service.common.durations import Durations
from mainstay.service.common.loops import Loops
from mainstay.service.common.shared_body import SharedBody
from mainstay.service.exposition import text
from mainstay.service.exposition.families import counter, gauge, histogram
from mainstay.service.exposition.page import FleetPage
from mainstay.service.services import Services
from mainstay.service.stream import changes

LEAST_FREE_BYTES: Final = 64 * 2**20
"""SQLite needs room for its log before it can make room: some seconds of a large fleet's telemetry."""
TEXT: Final = CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS: Final = openmetrics.CONTENT_TYPE_LATEST
END: Final = b"# EOF\n"
DETECTION: Final = "detection"
LATE_TURNS: Final = 10.0
"""Intervals without a turn of the detection loop after which detection is called late; a turn of a large fleet takes
tenths of a second."""
STOPPED_TURNS: Final = 60.0
"""The same, after which it does not work: findings of a minute ago are of no use to a job that waits for them."""


async def healthz(_request: Request) -> Response:
    """The process answers."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """Work can be done: the database can be written, frames become durable, the disk has room, the loops turn.

    503 where the service cannot do its job; ``degraded`` with 200 where it does, but late or with refusals.
    """
    services, loops = running.services_of(request), request.app.state.loops
    limiter = services.pressure.threads.health
    faults = await anyio.to_thread.run_sync(_faults, services, loops, limiter=limiter)
    warnings = {"detection": _late(loops), "shedding": _shedding(services)}
    told = {name: faults.get(name) or warnings.get(name) or "ok" for name in (*faults, *warnings)}
    ready = not any(faults.values())
    status = "not ready" if not ready else "degraded" if any(warnings.values()) else "ok"
    return JSONResponse({"status": status, "checks": told}, status_code=200 if ready else 503)


def _faults(services: Services, loops: Loops) -> dict[str, str | None]:
    """Check → why the service cannot do its job."""
    writer = services.ingest.writer
    dead = [loop.name for loop in loops if not loop.alive]
    return {
        "database": _database_fault(services),
        "disk": disk_fault(services.settings.data_dir),
        "ingest": None if writer.healthy() else f"frames wait {writer.lag():.1f} s for the disk",
        "loops": f"not running: {', '.join(dead)}" if dead else None,
        "detection": _late(loops, STOPPED_TURNS),
    }


def _database_fault(services: Services) -> str | None:
    try:
        services.database.ping()
    except SQLAlchemyError as error:
        return type(error).__name__
    return services.database.lock_fault()


def disk_fault(directory: Path, least: int = LEAST_FREE_BYTES) -> str | None:
    """Why nothing more can be stored in ``directory``; None where at least ``least`` bytes are free."""
    free = shutil.disk_usage(directory).free
    if free >= least:
        return None
    return f"{free / 2**20:.0f} MiB are free in {directory}, and {least / 2**20:.0f} are needed: make room"


def _late(loops: Loops, turns: float = LATE_TURNS) -> str | None:
    """Why detection is behind: no turn was completed for so many intervals."""
    for loop in loops:
        if loop.name.startswith(DETECTION) and loop.late_seconds() > turns * max(1.0, loop.interval):
            why = f", the last turn failed: {loop.last_error}" if loop.last_error else ""
            return f"detection is {loop.late_seconds():.0f} s late{why}"
    return None


def _shedding(services: Services) -> str | None:
    refused = services.pressure.shed.recent()
    return f"refused within the last minute: {', '.join(refused)}" if refused else None


async def metrics(request: Request) -> Response:
    """OpenMetrics for a client that prefers it, else Prometheus text."""
    encoding = compression.choose(request.headers.get("accept-encoding", ""))
    kind = OPENMETRICS if prefers_openmetrics(request.headers.get("accept", "")) else TEXT
    parts = await request.app.state.metrics[kind].read(encoding)
    headers = compression.headers(encoding) | {"Vary": "Accept, Accept-Encoding"}
    return StreamingResponse(parts, media_type=kind, headers=headers)


def prefers_openmetrics(accept: str) -> bool:
    """Whether an ``Accept`` header wants OpenMetrics 1.0.0 at least as much as text."""
    best = {OPENMETRICS: 0.0, TEXT: 0.0}
    for part in accept.lower().replace(" ", "").split(","):
        kind, *rest = part.split(";")
        given = {name: value for name, _, value in (parameter.partition("=") for parameter in rest)}
        is_ours = kind == "application/openmetrics-text" and given.get("version", "1.0.0") == "1.0.0"
        if is_ours or kind in {"text/plain", "text/*", "*/*"}:
            quality = given.get("q", "1").replace(".", "", 1)
            form = OPENMETRICS if is_ours else TEXT
            best[form] = max(best[form], float(given.get("q", "1")) if quality.isdecimal() else 0.0)
    return best[OPENMETRICS] > 0 and best[OPENMETRICS] >= best[TEXT]


def metrics_bodies(services: Services, families: Collector) -> Mapping[str, SharedBody]:
    """What ``/metrics`` answers in each format: the collectors, then the fleet."""
    fleet = FleetPage(services)

    def in_text() -> Iterator[bytes]:
        yield generate_latest(families)
        yield from fleet.parts()

    def in_openmetrics() -> Iterator[bytes]:
        yield openmetrics.generate_latest(families).removesuffix(END)  # type: ignore[no-untyped-call]
        yield from chain.from_iterable(map(text.as_openmetrics, fleet.parts()))
        yield END

    def shared(make: Callable[[], Iterator[bytes]]) -> SharedBody:
        return SharedBody(lambda encoding: compression.stream(make(), encoding), services.pressure.threads.health)

    return {TEXT: shared(in_text), OPENMETRICS: shared(in_openmetrics)}


@dataclass(frozen=True)
class Families(Collector):
    """All metrics but those of devices and nodes."""

    services: Services
    loops: Loops
    requests: Durations
    collectors: Sequence[Callable[[Services], Iterator[Metric]]]

    def collect(self) -> Iterator[Metric]:
        own = (collect(self.services) for collect in self.collectors)
        of_process = collect_process(self.requests), collect_loops(self.loops)
        for metric in chain(*own, *of_process, PROCESS_COLLECTOR.collect(), PLATFORM_COLLECTOR.collect()):
            metric.unit = text.unit_of(metric.name)  # of OpenMetrics alone
            yield metric


def collect_process(requests: Durations) -> Iterator[Metric]:
    """This build, and what it answered."""
    facts = {"version": __version__, "python": platform.python_version(), "machine": platform.machine()}
    yield InfoMetricFamily(
        "mainstay_build", "Version of Mainstay, of Python, and the kind of machine, as labels; always 1", value=facts
    )
    about = "Time until a request was answered in full, by route and status class, without frames and bundles"
    family = HistogramMetricFamily("mainstay_http_request_duration_seconds", about, labels=["route", "status"])
    for labels, durations in sorted(requests.items()):
        family.add_metric(labels, *durations.read())
    yield family


def collect_ingest(services: Services) -> Iterator[Metric]:
    """The data path."""
    ingest, stats = services.ingest, services.ingest.writer.stats
    yield counter("frames_stored", "Frames made durable", stats.stored)
    yield counter("frames_duplicate", "Frames that were stored before", stats.duplicates)
    yield counter("samples_stored", "Samples made durable", stats.samples)
    yield counter("frame_bytes_stored", "Bytes of frames made durable", stats.stored_bytes)
    yield counter("commits", "Deprecated: see mainstay_commit_duration_seconds_count", stats.commits)
    yield counter("commit_failures", "Group commits that failed", stats.commit_failures)
    yield counter("commit_seconds", "Deprecated: see mainstay_commit_duration_seconds_sum", stats.commit_seconds)
    yield histogram("commit_duration_seconds", "Time that a group commit took", stats.commit_durations)
    about = "Time that a frame or bundle waited for its commit, until it was acknowledged"
    yield histogram("frame_acknowledgement_seconds", about, stats.acknowledgements)
    about = "Time from the arrival of an event until its findings were stored"
    yield histogram("event_to_finding_seconds", about, services.event_delays)
    yield gauge("frames_pending", "Frames waiting for a commit", ingest.writer.pending)
    yield gauge("frames_pending_age_seconds", "Age of the oldest waiting frame", ingest.writer.lag())
    yield gauge("ring_bytes", "Memory of the telemetry ring", ingest.ring.nbytes)
    yield gauge("step_ring_bytes", "Memory of the step rings", ingest.steps.nbytes)
    latest = ingest.seen.latest()
    if latest is not None:
        yield gauge("data_age_seconds", "Since any node last reported", services.clock.now() - latest)
    refused = CounterMetricFamily("mainstay_frames_rejected", "Frames refused, by problem", labels=["problem"])
    for slug, count in sorted(ingest.refused.items()):
        refused.add_metric([slug], count)
    yield refused
    shed = CounterMetricFamily("mainstay_shed", "Requests refused because too many waited, by kind", labels=["what"])
    for what, count in sorted(services.pressure.shed.totals.items()):
        shed.add_metric([what], count)
    yield shed


def collect_fleet(services: Services) -> Iterator[Metric]:
    """Nodes, devices and watchers."""
    with services.database.reading() as session:
        fleet = services.fleet.current(session)
        delay = changes.delay(session, services.clock.now())
    nodes = GaugeMetricFamily("mainstay_nodes", "Nodes, by state", labels=["state"])
    for state in HealthState:
        nodes.add_metric([state.value], fleet.states.get(state.value, 0))
    yield nodes
    yield gauge("devices", "Devices in the latest reports", fleet.devices)
    yield gauge("event_streams", "Open event streams", services.hub.watchers)
    yield gauge("changes_delay_seconds", "Age of the oldest change held back by an open transaction", delay)
    yield counter("watch_messages", "Messages handed to event streams", services.hub.sent)


def collect_loops(loops: Loops) -> Iterator[Metric]:
    """Background loops."""
    turns = CounterMetricFamily("mainstay_loop_iterations", "Turns that went well", labels=["loop"])
    failures = CounterMetricFamily("mainstay_loop_failures", "Turns that failed", labels=["loop"])
    about = "Deprecated, length of the last turn: see mainstay_loop_turn_duration_seconds"
    seconds = GaugeMetricFamily("mainstay_loop_turn_seconds", about, labels=["loop"])
    about = "Time that a turn took, also one that failed"
    durations = HistogramMetricFamily("mainstay_loop_turn_duration_seconds", about, labels=["loop"])
    for loop in loops:
        turns.add_metric([loop.name], loop.turns)
        failures.add_metric([loop.name], loop.failures)
        seconds.add_metric([loop.name], loop.last_seconds)
        durations.add_metric([loop.name], *loop.durations.read())
    yield from (turns, failures, seconds, durations)
