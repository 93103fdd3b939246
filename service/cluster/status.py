"""Which processes a service has, and which of them does what."""

from __future__ import annotations

from typing import Final, Literal

from sqlalchemy import Row, delete, text

from mainstay.service.cluster.leases import Leases
from mainstay.service.cluster.models import ProcessRow
from mainstay.service.cluster.schemas import ClusterRead, LeaseRead, ProcessRead
from mainstay.service.common.db import AnySession, WriteSession

_PROCESSES: Final = text(
    "SELECT *, extract(epoch FROM started_at)::float8 AS began,"
    " extract(epoch FROM clock_timestamp() - seen_at)::float8 AS seen FROM processes ORDER BY started_at"
)
_LEASES: Final = text(
    "SELECT name, holder, epoch, extract(epoch FROM expires_at - clock_timestamp())::float8 AS rest"
    " FROM leases ORDER BY name"
)
_FORGET_SECONDS: Final = 86_400.0


def read_shared(session: AnySession, lease_seconds: float) -> ClusterRead:
    """The processes on one PostgreSQL, from what they reported.

    Args:
        session: reads.
        lease_seconds: silence after which a process is called silent.
    """
    return ClusterRead(
        shared=True,
        processes=[_process(row, lease_seconds) for row in session.execute(_PROCESSES)],
        leases=[_lease(row) for row in session.execute(_LEASES)],
    )


def read_single(leases: Leases, pending: int) -> ClusterRead:
    """The one process of a service on SQLite: it does everything."""
    me = leases.process
    process = ProcessRead(
        id=_id(me.id), host=me.host, pid=me.pid, url=me.url, version=me.version, role="all",
        started_at=me.started_at, seen_seconds=0.0, state="running", pending_frames=pending, lag_seconds=0.0,
    )  # fmt: skip
    held = [LeaseRead(name=name, holder=process.id, epoch=0, expires_seconds=0.0) for name in leases.names()]
    return ClusterRead(shared=False, processes=[process], leases=held)


def forget_old(session: WriteSession, now: float) -> None:
    """Forget processes of which nothing was heard for a day."""
    session.execute(delete(ProcessRow).where(ProcessRow.seen_at < now - _FORGET_SECONDS))


def _process(row: Row[tuple[object, ...]], lease_seconds: float) -> ProcessRead:
    silent: Literal["running", "silent"] = "silent" if row.seen > lease_seconds else "running"
    return ProcessRead(
        id=_id(row.id), host=row.host, pid=row.pid, url=row.url, version=row.version, role=row.role,
        started_at=row.began, seen_seconds=row.seen, state="stopped" if row.stopped else silent,
        pending_frames=row.pending, lag_seconds=row.lag,
    )  # fmt: skip


def _lease(row: Row[tuple[object, ...]]) -> LeaseRead:
    holder = None if row.holder is None or row.rest <= 0 else _id(row.holder)
    return LeaseRead(name=row.name, holder=holder, epoch=row.epoch, expires_seconds=row.rest)


def _id(number: int) -> str:
    return f"{number:016x}"
