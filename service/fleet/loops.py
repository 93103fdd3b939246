"""Background work of the fleet: who spoke, who fell silent."""

from __future__ import annotations

from service.fleet.service import follow_voices
from service.kit.loops import Loop
from service.services import Services

INTERVAL = 1.0


def make(services: Services) -> list[Loop]:
    def turn() -> None:
        with services.database.session() as session:
            follow_voices(
                session,
                services.seen.take_dirty(),
                now=services.clock.now(),
                silent_after=services.settings.fleet.silent_after,
            )

    return [Loop("fleet-voices", INTERVAL, turn)]
