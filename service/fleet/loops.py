"""Background loop of the fleet: records report times and marks nodes as timed out."""

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

    return [Loop("fleet-voices", INTERVAL, sweep_heartbeats)]
