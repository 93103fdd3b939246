"""Background loop of the fleet: records report times, marks nodes as timed out, keeps the directory up to date."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstay.service.common.loops import Loop
from mainstay.service.fleet.service import follow_voices
from mainstay.service.services import Services

INTERVAL = 1.0


@dataclass
class Listening:
    """Since when the service has listened without a break: it was not started, stopped, or frozen in between."""

    longest_gap: float
    """Seconds between two calls; longer ones are a break."""
    _since: float = field(default=0.0, init=False)
    _last: float | None = field(default=None, init=False)

    def since(self, now: float) -> float:
        """Unix seconds; call it in every turn."""
        if self._last is None or not 0.0 <= now - self._last <= self.longest_gap:
            self._since = now
        self._last = now
        return self._since


def make(services: Services) -> list[Loop]:
    timeout = services.settings.fleet.heartbeat_timeout_seconds
    listening = Listening(longest_gap=max(timeout / 2, 2 * INTERVAL))

    heard: dict[str, float] = {}
    since = 0.0

    def write_states() -> None:
        follow_voices(
            services.database,
            heard,
            now=services.clock.now(),
            heartbeat_timeout_seconds=timeout,
            listening_since=since,
        )

    elected = services.leases.elect("node-states", lambda: write_states)

    def sweep_heartbeats() -> None:
        nonlocal heard, since
        services.database.ping()  # while it is away, nothing is acknowledged, and no node is heard
        # Every process hears every node (``LogFollower``), and one of them writes.
        heard, since = services.seen.take_dirty(), listening.since(services.clock.now())
        elected()

    def follow_changes() -> None:
        """A request then finds little to read; one that finds more reads it itself."""
        with services.database.reading() as session:
            # This process hears every node itself, or, as a gateway, answers no question about them.
            if services.database.is_sqlite or services.follower is not None or services.settings.is_gateway:
                services.fleet.current(session)
            else:
                services.fleet.follow_reports(session)

    return [Loop("fleet-voices", INTERVAL, sweep_heartbeats), Loop("fleet-directory", INTERVAL, follow_changes)]
