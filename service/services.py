"""What a running service is made of: built once by the lifespan, frozen, passed down.

A feature that needs a part of its own adds a field here and builds it in ``service.app``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from service.kit.wake import Wakers

if TYPE_CHECKING:
    from service.auth.tokens import TokenCache
    from service.kit.clock import Clock
    from service.kit.db import Database
    from service.settings import Settings
    from service.stream.hub import ChangeHub


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of one process of the control plane."""

    settings: Settings
    clock: Clock
    database: Database
    tokens: TokenCache
    hub: ChangeHub
    wakers: Wakers = field(default_factory=Wakers)


def of(request: Request) -> Services:
    """The services of the app that serves ``request``."""
    services: Services = request.app.state.services
    return services


async def _services(request: Request) -> Services:
    return of(request)


ServicesDep = Annotated[Services, Depends(_services)]
"""Dependency: the whole of the running service."""
