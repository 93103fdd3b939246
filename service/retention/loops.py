"""Background work of retention: a slow loop, a bounded number of rows a turn, each kind in its own transaction."""

from __future__ import annotations

import logging
from typing import Final

from mainstay.service.common.loops import Loop
from mainstay.service.retention.repository import FORGET, FORGET_HISTORY
from mainstay.service.services import Services

_log: Final = logging.getLogger(__name__)
DAY: Final = 86_400.0


def make(services: Services) -> list[Loop]:
    limits = services.settings.retention

    def delete_old_rows() -> None:
        for days, kinds in ((limits.days, FORGET), (limits.history_days, FORGET_HISTORY)):
            before = services.clock.now() - days * DAY
            for name, forget in kinds:
                with services.database.session() as session:
                    count = forget(session, before, limits.batch)
                if count:
                    _log.info("forgot %d %s older than %g days", count, name, days)

    return [Loop("retention", limits.interval_seconds, services.leases.elect("housekeeping", lambda: delete_old_rows))]
