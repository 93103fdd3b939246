"""Background work of the stream: telling watchers, and forgetting what is old."""

from __future__ import annotations

from service.auth import repository as auth
from service.kit import idempotency
from service.kit.loops import Loop
from service.services import Services
from service.stream import changes

PRUNE_SECONDS = 60.0


def make(services: Services) -> list[Loop]:
    def prune() -> None:
        now = services.clock.now()
        with services.database.session() as session:
            changes.prune(session, services.settings.stream.keep_changes)
            idempotency.prune(session, now)
            auth.prune_sessions(session, now)

    tell = Loop("stream-tell", services.settings.stream.poll_interval, services.hub.poll)
    return [tell, Loop("prune", PRUNE_SECONDS, prune)]
