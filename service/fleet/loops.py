"""Background loop of the fleet: records report times, marks nodes as timed out, keeps the directory up to date."""

from __future__ import annotations

from mainstay.service.common.loops import Loop
from mainstay.service.fleet.service import follow_voices
from mainstay.service.services import Services

INTERVAL = 1.0


def make(services: Services) -> list[Loop]:
    def sweep_heartbeats() -> None:
        follow_voices(
            services.database,
            services.seen.take_dirty(),
            now=services.clock.now(),
            heartbeat_timeout_seconds=services.settings.fleet.heartbeat_timeout_seconds,
        )

    def follow_changes() -> None:
        """A request then finds little to read; one that finds more reads it itself."""
        with services.database.reading() as session:
            if services.database.is_sqlite:  # one process: it heard every report itself
                services.fleet.current(session)
            else:
                services.fleet.follow_reports(session)

    return [Loop("fleet-voices", INTERVAL, sweep_heartbeats), Loop("fleet-directory", INTERVAL, follow_changes)]
