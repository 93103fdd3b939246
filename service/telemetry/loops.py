"""Background work of telemetry: the tick that watchers see, and retention."""

from __future__ import annotations

from mainstay.service.common.loops import Loop
from mainstay.service.services import Services
from mainstay.service.stream.changes import Topic
from mainstay.service.telemetry import log_follower
from mainstay.service.telemetry.blocks import HOUR

TICK_SECONDS = 1.0
RETENTION_SECONDS = 300.0


def make(services: Services) -> list[Loop]:
    stats = services.ingest.writer.stats

    def tick() -> None:
        now = services.clock.now()
        data = {"id": f"{now:.3f}", "time": now, "frames": stats.stored, "samples": stats.samples}
        services.hub.publish_transient(Topic.TELEMETRY, data | {"newest": stats.newest_stop})

    def retain() -> None:
        oldest = services.clock.now() - services.settings.telemetry.retention_hours * HOUR
        # A block reaches at most an hour past its own: the hour before the limit may still hold something to keep.
        services.blocks.drop_before(int(oldest) // HOUR - 1)
        if services.follower is not None:
            services.follower.store.forget_commits(log_follower.KEEP_SECONDS)

    elected = services.leases.elect("housekeeping", lambda: retain)
    loops = [Loop("telemetry-tick", TICK_SECONDS, tick), Loop("telemetry-retention", RETENTION_SECONDS, elected)]
    if services.follower is not None:
        loops.append(Loop("telemetry-log", log_follower.INTERVAL, services.follower.run_once))
    return loops
