"""Background work of retention: a slow loop, a bounded number of rows a turn, each kind in its own transaction."""

from __future__ import annotations

import logging
from typing import Final

from mainstay.service.common.loops import Loop
from mainstay.service.retention.repository import FORGET
from mainstay.service.services import Services

_log: Final = logging.getLogger(__name__)
DAY: Final = 86_400.0


def make(services: Services) -> list[Loop]:
    limits = services.settings.retention

    def delete_old_rows() -> None:
        before = services.clock.now() - limits.days * DAY
        for name, forget in FORGET:
            with services.database.session() as session:
                count = forget(session, before, limits.batch)
            if count:
                _log.info("forgot %d %s older than %g days", count, name, limits.days)

    return [Loop("retention", limits.interval_seconds, services.leases.elect("housekeeping", lambda: delete_old_rows))]
