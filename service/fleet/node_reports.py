"""Node reports that arrive together are stored together: a cluster that boots sends thousands within seconds.

Invariant: an answer is sent after its commit, and a report that cannot be stored fails alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import OperationalError

from mainstay.service.admission.node_facts import Occupancy
from mainstay.service.common.clock import Clock
from mainstay.service.common.db import Database
from mainstay.service.fleet import serializers, service
from mainstay.service.fleet.directory import read_nodes
from mainstay.service.fleet.last_seen import LastSeenCache
from mainstay.service.fleet.schemas import NodeRead, NodeReportCreate

BATCH: Final = 50
"""Reports in one transaction: some 60 ms."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    name: str
    said: NodeReportCreate
    answer: asyncio.Future[NodeRead]


@dataclass
class NodeReports:
    """Gathers what arrives while the last batch is being written. Call it from the event loop."""

    database: Database
    seen: LastSeenCache
    clock: Clock
    occupancy: Occupancy
    _waiting: list[_Waiting] = field(default_factory=list, init=False, repr=False)
    _writer: asyncio.Task[None] | None = field(default=None, init=False, repr=False)

    async def keep(self, name: str, said: NodeReportCreate) -> NodeRead:
        """Store a report; returns the node as it is then.

        Raises:
            Exception: what the database said about this report.
        """
        answer: asyncio.Future[NodeRead] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(name, said, answer))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return await answer

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch = self._next()
                answers = await run_in_threadpool(self._store, batch)
                for waiting, answer in zip(batch, answers, strict=True):
                    _answer(waiting.answer, answer)
        finally:
            self._writer = None

    def _next(self) -> list[_Waiting]:
        """The oldest reports, one a node: a second one of the same node waits for the first."""
        names: set[str] = set()
        batch: list[_Waiting] = []
        for waiting in self._waiting[:BATCH]:
            if waiting.name in names:
                break
            names.add(waiting.name)
            batch.append(waiting)
        del self._waiting[: len(batch)]
        return batch

    def _store(self, batch: Sequence[_Waiting]) -> Sequence[NodeRead | Exception]:
        try:
            return self._store_together(batch)
        except OperationalError as error:  # the database is away or locked: no report is to blame
            return [error] * len(batch)
        except Exception as error:  # noqa: BLE001 - named boundary: one report must not keep the others from being stored
            if len(batch) == 1:
                return [error]
            return [answer for waiting in batch for answer in self._store([waiting])]

    def _store_together(self, batch: Sequence[_Waiting]) -> list[NodeRead]:
        now = self.clock.now()
        with self.database.session() as session:
            service.report_all(session, {waiting.name: waiting.said for waiting in batch}, now=now)
            for waiting in batch:
                self.seen.note(waiting.name, now)
            nodes = {node.name: node for node in read_nodes(session, [waiting.name for waiting in batch])}
            jobs = self.occupancy.by_node(session)
            return serializers.serialize_nodes(session, [nodes[w.name] for w in batch], self.seen, jobs, now)


def _answer(future: asyncio.Future[NodeRead], answer: NodeRead | Exception) -> None:
    if future.done():  # its caller hung up
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
