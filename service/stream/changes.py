"""Changes are written in the transaction of what changed, so a watcher hears of exactly what was committed.

Their order is that of (transaction, id). On PostgreSQL, writers do not wait for each other; a reader sees the changes
of transactions below the oldest one that is still open, to which nothing can be added. So an open transaction that has
written anything, in any database of the same cluster, holds back all changes: ``delay`` tells how long, and the
service's own connections end a transaction that stands still for ``db.IDLE_SECONDS``. One that only reads, such as
``pg_dump``, has no number and holds nothing back. SQLite has one writer: every transaction is 0, ids alone decide.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import BigInteger, and_, bindparam, delete, func, insert, literal_column, select, tuple_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from mainstay.service.common.db import AnySession, WriteSession, before_commit
from mainstay.service.stream.models import ChangeRow
from mainstay.service.stream.position import START, Position

_PENDING: Final = "stream_changes"


class Topic(StrEnum):
    INCIDENT = "incident"
    NODE = "node"
    JOB = "job"
    VALIDATION = "validation"
    EVENT = "event"
    REMEDIATION = "remediation"
    TELEMETRY = "telemetry"  # from memory, never stored


class _ByDatabase(FunctionElement[Any]):
    """The first of two expressions on PostgreSQL, the second on SQLite."""

    inherit_cache = True


@compiles(_ByDatabase)
def _compile(element: _ByDatabase, compiler: SQLCompiler, **how: Any) -> str:
    postgres, sqlite = element.clauses
    return compiler.process(postgres if compiler.dialect.name == "postgresql" else sqlite, **how)


def _snapshot(edge: str) -> _ByDatabase:
    number = f"pg_snapshot_{edge}(pg_current_snapshot())::text::bigint"
    return _ByDatabase(literal_column(number, BigInteger), literal_column(str(2**63 - 1), BigInteger))


ORDER: Final = (ChangeRow.transaction, ChangeRow.id)
SETTLED: Final = ChangeRow.transaction < _snapshot("xmin")
"""All transactions up to this one have ended: nothing can come before it any more."""
_FOREIGN: Final = ChangeRow.transaction >= _snapshot("xmax")
"""This cluster has not given the number: the change came with a backup of another one."""
_T, _ID = (bindparam(name, type_=BigInteger) for name in ("transaction", "id"))
# SQLite would search its index by the first column alone, and that is 0 in every row.
AFTER: Final = _ByDatabase(tuple_(*ORDER) > tuple_(_T, _ID), and_(ChangeRow.transaction == _T, ChangeRow.id > _ID))
"""Of the position whose fields are the parameters."""
_UNTIL: Final = _ByDatabase(tuple_(*ORDER) <= tuple_(_T, _ID), and_(ChangeRow.transaction == _T, ChangeRow.id <= _ID))
_NEWEST: Final = select(*ORDER).where(SETTLED).order_by(ChangeRow.transaction.desc(), ChangeRow.id.desc()).limit(1)


def record_change(session: WriteSession, topic: Topic | str, data: dict[str, Any]) -> None:
    """Tell watchers of ``topic`` that something changed; ``data`` is small JSON with an ``id``."""
    row = {"topic": Topic(topic).value, "data": data, "created_at": time.time()}
    session.info.setdefault(_PENDING, []).append(row)
    before_commit(session, _PENDING, _write)


def _write(session: WriteSession) -> None:
    session.execute(insert(ChangeRow), session.info.pop(_PENDING))


def newest(session: AnySession, skip: int = 0) -> Position:
    """Position of the newest settled change, or of the one ``skip`` before it; ``START`` without one."""
    row = session.execute(_NEWEST.offset(skip)).first()
    return Position(*row) if row else START


def after(session: AnySession, last: Position, limit: int = 500) -> list[ChangeRow] | None:
    """Settled changes after ``last``, oldest first; None where some of them may have been pruned."""
    rows = list(session.scalars(select(ChangeRow).where(AFTER, SETTLED).order_by(*ORDER).limit(limit), asdict(last)))
    if rows and last != START and session.execute(_NEWEST.where(_UNTIL), asdict(last)).first() is None:
        return None
    return rows


def prune(session: WriteSession, keep: int) -> None:
    """Forget all but the newest ``keep`` settled changes, and those that would be read when their number comes up."""
    edge = newest(session, skip=keep)
    session.execute(delete(ChangeRow).where(_UNTIL), asdict(edge))
    session.execute(delete(ChangeRow).where(_FOREIGN))


def delay(session: AnySession, now: float) -> float:
    """For how many seconds the oldest change has waited for an open transaction; 0 without one."""
    oldest = session.scalar(select(func.min(ChangeRow.created_at)).where(~SETTLED))
    return 0.0 if oldest is None else max(0.0, now - oldest)
