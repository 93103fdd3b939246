"""What a running service is made of: built once by the lifespan, frozen, passed down.

A feature that needs a part of its own adds a field here and builds it in ``mainstay.service.app``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from mainstay.service.common.histogram import Histogram
from mainstay.service.common.wakeups import WakeupRegistry
from mainstay.service.incidents.detector_status import DetectorStatusCache
from mainstay.service.validation.long_poll import LongPollRegistry

if TYPE_CHECKING:
    from mainstay.service.auth.openid import Provider
    from mainstay.service.auth.quotas import TokenQuotas
    from mainstay.service.auth.throttle import SignInThrottle
    from mainstay.service.auth.tokens import TokenCache
    from mainstay.service.check_selection.service import Selector
    from mainstay.service.cluster.leases import Leases
    from mainstay.service.common.back_pressure import BackPressure
    from mainstay.service.common.clock import Clock
    from mainstay.service.common.db import Database
    from mainstay.service.events.writer import EventWriter
    from mainstay.service.fleet.directory import FleetDirectory
    from mainstay.service.fleet.heatmap import LayoutCache
    from mainstay.service.fleet.last_seen import LastSeenCache
    from mainstay.service.fleet.node_reports import NodeReports
    from mainstay.service.history.query import History
    from mainstay.service.jobs.occupancy import Occupancy
    from mainstay.service.settings import Settings
    from mainstay.service.stream.hub import ChangeHub
    from mainstay.service.telemetry.blocks import BlockStore
    from mainstay.service.telemetry.ingest import Ingest
    from mainstay.service.telemetry.log_follower import LogFollower
    from mainstay.service.telemetry.pairs import PairStore
    from mainstay.service.telemetry.progress import ProgressStore
    from mainstay.service.telemetry.ring import TelemetryRing
    from mainstay.service.telemetry.steps import StepStore


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of one process of the control plane."""

    settings: Settings
    clock: Clock
    database: Database
    leases: Leases
    tokens: TokenCache
    sign_ins: SignInThrottle
    openid: Provider | None
    """The OpenID Connect provider; None where none is configured."""
    hub: ChangeHub
    ingest: Ingest
    follower: LogFollower | None
    """Reads what other processes accepted; None where the blocks are not in PostgreSQL."""
    history: History
    fleet: FleetDirectory
    layout: LayoutCache
    selector: Selector
    reports: NodeReports
    occupancy: Occupancy
    events: EventWriter
    quotas: TokenQuotas
    wakers: WakeupRegistry
    waiting: LongPollRegistry = field(default_factory=LongPollRegistry)
    accounts: DetectorStatusCache = field(default_factory=DetectorStatusCache)
    remote_write: Counter[str] = field(default_factory=Counter)
    """What this process sent to a remote-write receiver (``exposition.remote_write``)."""
    event_delays: Histogram = field(default_factory=Histogram)
    """From the arrival of an event until its findings are stored."""

    @property
    def pressure(self) -> BackPressure:
        """Threads by purpose, and what was refused because too much arrived."""
        return self.database.pressure

    @property
    def ring(self) -> TelemetryRing:
        """The last minutes of every device."""
        return self.ingest.ring

    @property
    def steps(self) -> StepStore:
        """The last steps of every job."""
        return self.ingest.steps

    @property
    def progress(self) -> ProgressStore:
        """The last minutes of every job's ranks."""
        return self.ingest.progress

    @property
    def pairs(self) -> PairStore:
        """The last transfers between every job's ranks."""
        return self.ingest.pairs

    @property
    def seen(self) -> LastSeenCache:
        """When each node last reported."""
        return self.ingest.seen

    @property
    def blocks(self) -> BlockStore:
        """Frames as they came."""
        return self.ingest.store


def services_of(request: Request) -> Services:
    """The services of the app that serves ``request``."""
    services: Services = request.app.state.services
    return services


async def _services(request: Request) -> Services:
    return services_of(request)


ServicesDep = Annotated[Services, Depends(_services)]
"""Dependency: the whole of the running service."""
