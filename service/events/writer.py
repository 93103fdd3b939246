"""Events that arrive together are stored together. Duplicates and events about unknown nodes cost no transaction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

import anyio

from mainstay.probes.core_types import EventKind
from mainstay.service.common.back_pressure import GroupWriter
from mainstay.service.common.clock import Clock
from mainstay.service.common.db import Database
from mainstay.service.common.wakeups import WakeupRegistry
from mainstay.service.events import service
from mainstay.service.events.schemas import EventIn, EventsAccepted
from mainstay.service.fleet.service import require_nodes

BATCH: Final = 500
"""Events in one transaction, and the most that one request has: some 60 ms."""
WAITING: Final = 20_000
"""Events that may wait: a rank of each of 10,000 nodes that exits, twice. They are stored within seconds."""
_REMEMBERED: Final = 50_000
"""Ids of stored events kept in memory: a spool sends again what was not acknowledged, moments later."""
LOW_VALUE: Final = frozenset(
    {
        *(EventKind.LINK_UP, EventKind.NODE_STARTED, EventKind.JOB_STARTED, EventKind.ACTION_STARTED),
        *(EventKind.MIGRATION_STARTED, EventKind.STACK_DUMP, EventKind.FLIGHT_RECORDER),
    }
)
"""What says that something began or is well again: shed before faults, and its sender repeats it."""


class EventWriter:
    """Stores the events of many requests in one transaction. Call it from the event loop."""

    def __init__(self, database: Database, wakers: WakeupRegistry, clock: Clock) -> None:
        self._database, self._wakers, self._clock = database, wakers, clock
        self._nodes: set[str] = set()
        self._stored: OrderedDict[str, None] = OrderedDict()
        self._writer: GroupWriter[Sequence[EventIn], int] = GroupWriter(
            "events", self._store, size=BATCH, longest=WAITING, pressure=database.pressure
        )

    async def require_nodes(self, names: Collection[str]) -> None:
        """Check that all these nodes are known, without a writer's turn.

        Raises:
            UnknownNodeError: names the first that is not.
        """
        if new := set(names) - self._nodes:
            await anyio.to_thread.run_sync(self._look_up, new, limiter=self._database.pressure.threads.machines)
            self._nodes |= new

    def _look_up(self, names: Collection[str]) -> None:
        with self._database.reading() as session:
            require_nodes(session, names)

    async def keep(self, events: Sequence[EventIn], *, set_aside: int = 0) -> EventsAccepted:
        """Store the events that are not stored yet, durably; ``set_aside`` others were of unknown kinds.

        Raises:
            BusyError: too many events wait.
            Exception: what the database said about these events.
        """
        fresh = [event for event in events if event.id not in self._stored]
        accepted = 0
        if fresh:
            low = all(event.kind in LOW_VALUE for event in fresh)
            accepted = await self._writer.write(fresh, key=object(), weight=len(fresh), low_value=low)
            self._stored.update(dict.fromkeys(event.id for event in fresh))
            while len(self._stored) > _REMEMBERED:
                self._stored.popitem(last=False)
        return EventsAccepted(accepted=accepted, duplicates=len(events) - accepted, set_aside=set_aside)

    def _store(self, batch: Sequence[Sequence[EventIn]]) -> list[int]:
        with self._database.session() as session:
            everything = [event for events in batch for event in events]
            new = service.store(session, self._wakers, everything, now=self._clock.now())
        counts = []
        for events in batch:  # an id that two requests carry is the first one's
            mine = new & {event.id for event in events}
            new -= mine
            counts.append(len(mine))
        return counts
