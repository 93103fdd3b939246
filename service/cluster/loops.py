"""The loop that renews the leases of this process, and its first and last report."""

from __future__ import annotations

import logging
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from mainstay.service.cluster.leases import RENEWALS
from mainstay.service.common.loops import Loop
from mainstay.service.services import Services

_log: Final = logging.getLogger(__name__)


def make(services: Services) -> list[Loop]:
    if services.database.is_sqlite:
        return []
    return [Loop("leases", services.leases.seconds / RENEWALS, lambda: join(services))]


def join(services: Services) -> None:
    """Report this process, and take over leases that have expired."""
    lag = 0.0 if services.follower is None else services.follower.lag
    for name in services.leases.renew(pending=services.ingest.writer.pending, lag=lag):
        services.wakers.wake(name)  # a loop that others wake has the name of its lease


def leave(services: Services) -> None:
    """Let other processes take over at once."""
    try:
        services.leases.release()
    except SQLAlchemyError as error:
        _log.warning("the leases were not given up, and expire by themselves: %s", error)
