"""Node reports that arrive together are stored together: a cluster that boots sends thousands within seconds.

Invariant: an answer is sent after its commit, and a report that cannot be stored fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mainstay.service.common.back_pressure import GroupWriter
from mainstay.service.common.clock import Clock
from mainstay.service.common.db import Database
from mainstay.service.fleet import serializers, service
from mainstay.service.fleet.directory import FleetDirectory
from mainstay.service.fleet.last_seen import LastSeenCache
from mainstay.service.fleet.schemas import NodeRead, NodeReportCreate
from mainstay.service.jobs.occupancy import Occupancy

BATCH: Final = 100
"""Reports in one transaction: some 60 ms."""
WAITING: Final = 10_000
"""Reports that may wait: a whole cluster that boots, stored within half a minute."""
Report = tuple[str, NodeReportCreate]


class NodeReports:
    """Stores what arrived while the last batch was being written. Call it from the event loop."""

    def __init__(
        self, database: Database, fleet: FleetDirectory, seen: LastSeenCache, clock: Clock, occupancy: Occupancy
    ) -> None:
        self._database, self._seen, self._clock, self._occupancy = database, seen, clock, occupancy
        self._fleet = fleet
        self._writer: GroupWriter[Report, NodeRead] = GroupWriter(
            "node reports", self._store, size=BATCH, longest=WAITING, pressure=database.pressure
        )

    async def keep(self, name: str, said: NodeReportCreate) -> NodeRead:
        """Store a report; returns the node as it is then.

        Raises:
            BusyError: too many reports wait.
            Exception: what the database said about this report.
        """
        return await self._writer.write((name, said), key=name)

    def _store(self, batch: Sequence[Report]) -> list[NodeRead]:
        now, reports = self._clock.now(), dict(batch)
        with self._database.session() as session:
            service.report_all(session, reports, now=now)
        self._seen.note_all(reports, now)
        with self._database.reading() as session:
            nodes = self._fleet.current(session).nodes  # reads these nodes, for everybody
            jobs = self._occupancy.by_node(session)
            return serializers.serialize_nodes(session, [nodes[name] for name, _ in batch], self._seen, jobs, now)
