"""Background work of history: compacts finished hours, and forgets old files once an hour."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from mainstay.service.common.loops import Loop
from mainstay.service.fleet.models import NodeRow
from mainstay.service.services import Services
from mainstay.service.telemetry.blocks import HOUR

if TYPE_CHECKING:
    from mainstay.service.history.compactor import Compactor

TURN_SECONDS: Final = 60.0
LATE_SECONDS: Final = 600.0
"""Interval at which compacted hours are searched for blocks that came late."""
_STALE_SECONDS: Final = 6 * HOUR
"""Age of temporary files that a killed process left."""


def make(services: Services) -> list[Loop]:
    work = HistoryWork(services)

    def compact() -> None:
        if work.run_once():
            loop.wake()

    # Files in the data directory are this process's own; those in an object store belong to all.
    is_shared = bool(services.settings.history.url)
    loop = Loop("history", TURN_SECONDS, services.leases.elect("history", lambda: compact) if is_shared else compact)
    return [loop]


@dataclass
class HistoryWork:
    """Keeps the files of history. Several processes may do so at once: the same hour gives the same files."""

    services: Services
    _checked_at: float = field(default=0.0, init=False)

    def run_once(self) -> bool:
        """Compact at most one hour, so that a stop does not wait for many; whether more may be due."""
        services = self.services
        now, stored = services.clock.now(), services.blocks.hours()
        newest = int(now - services.settings.history.grace_seconds) // HOUR - 1
        hours = sorted(hour for hour in {*stored, *(h + 1 for h in stored)} if hour <= newest)
        if not hours:
            return False  # and no Arrow in a service that has nothing to compact
        marks = services.history.archive.marks()
        fresh = [hour for hour in hours if hour not in marks]
        if fresh:
            self._compactor().compact(fresh[0], None)
            return True
        if now < self._checked_at + LATE_SECONDS:
            return False
        compactor = self._compactor()
        late = compactor.late(marks[hour] for hour in hours)
        if late is not None:
            compactor.compact(late.hour, late)
            return True
        self._checked_at = now
        self._clean(now, hours[0])
        return False

    def _compactor(self) -> Compactor:
        from mainstay.service.history.compactor import Compactor  # noqa: PLC0415 - starts threads

        services = self.services
        return Compactor(
            services.blocks, services.ingest.stored, services.history.archive, self._nodes, services.settings.data_dir
        )

    def _nodes(self) -> int:
        with self.services.database.reading() as session:
            return session.scalar(select(func.count()).select_from(NodeRow)) or 0

    def _clean(self, now: float, oldest: int) -> None:
        from mainstay.service.history import retention  # noqa: PLC0415 - starts threads

        services = self.services
        archive, settings = services.history.archive, services.settings
        archive.drop_marks_before(oldest)
        retention.merge_days(archive, now - (settings.telemetry.retention_hours + 2) * HOUR)
        windows = retention.incident_windows(services.database, now)
        retention.forget(archive, retention.limits_of(settings.history), windows, now)
        for folder in settings.data_dir.glob("compact-*"):
            if folder.stat().st_mtime < time.time() - _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
