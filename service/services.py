"""What a running service is made of: built once by the lifespan, frozen, passed down.

A feature that needs a part of its own adds a field here and builds it in ``service.app``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from service.admission.facts import Occupancy
from service.incidents.accounts import Accounts
from service.kit.wake import Wakers
from service.validation.waiting import WaitingNodes

if TYPE_CHECKING:
    from service.auth.tokens import TokenCache
    from service.fleet.seen import Seen
    from service.fleet.snapshot import LayoutCache
    from service.kit.clock import Clock
    from service.kit.db import Database
    from service.settings import Settings
    from service.stream.hub import ChangeHub
    from service.telemetry.blocks import BlockStore
    from service.telemetry.history import History
    from service.telemetry.ingest import Ingest
    from service.telemetry.pairs import PairStore
    from service.telemetry.progress import ProgressStore
    from service.telemetry.ring import Ring
    from service.telemetry.steps import StepStore
    from service.validation.selector import Selector


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of one process of the control plane."""

    settings: Settings
    clock: Clock
    database: Database
    tokens: TokenCache
    hub: ChangeHub
    ingest: Ingest
    history: History
    layout: LayoutCache
    selector: Selector
    wakers: Wakers = field(default_factory=Wakers)
    waiting: WaitingNodes = field(default_factory=WaitingNodes)
    accounts: Accounts = field(default_factory=Accounts)
    occupancy: Occupancy = field(default_factory=Occupancy)

    @property
    def ring(self) -> Ring:
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
    def seen(self) -> Seen:
        """When each node last spoke."""
        return self.ingest.seen

    @property
    def blocks(self) -> BlockStore:
        """Frames as they came."""
        return self.ingest.store


def of(request: Request) -> Services:
    """The services of the app that serves ``request``."""
    services: Services = request.app.state.services
    return services


async def _services(request: Request) -> Services:
    return of(request)


ServicesDep = Annotated[Services, Depends(_services)]
"""Dependency: the whole of the running service."""
