"""Background loops of the stream: they publish changes and delete old ones."""

from __future__ import annotations

from mainstay.service.auth import repository as auth
from mainstay.service.cluster import status as cluster
from mainstay.service.common import idempotency
from mainstay.service.common.loops import Loop
from mainstay.service.services import Services
from mainstay.service.stream import changes

PRUNE_SECONDS = 60.0


def make(services: Services) -> list[Loop]:
    def prune() -> None:
        now = services.clock.now()
        with services.database.session() as session:
            changes.prune(session, services.settings.stream.keep_changes)
            idempotency.prune(session, now)
            auth.prune_sessions(session, now)
            cluster.forget_old(session, now)

    report = Loop("shed-report", PRUNE_SECONDS, services.pressure.shed.report)
    tell = Loop("stream-tell", services.settings.stream.poll_interval_seconds, services.hub.poll)
    return [tell, report, Loop("prune", PRUNE_SECONDS, services.leases.elect("housekeeping", lambda: prune))]
