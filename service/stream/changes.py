"""Changes are written in the transaction of what changed, so a watcher hears of exactly what was committed.

Ids follow the order of commits: on PostgreSQL a lock, taken as the transaction's last act, keeps a lower id from
appearing after a higher one was read.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import delete, func, insert, select

from mainstay.service.common.db import AnySession, WriteSession, before_commit
from mainstay.service.stream.models import ChangeRow

_LOCK: Final = 7_233_002
_PENDING: Final = "stream_changes"


class Topic(StrEnum):
    INCIDENT = "incident"
    NODE = "node"
    JOB = "job"
    VALIDATION = "validation"
    EVENT = "event"
    REMEDIATION = "remediation"
    TELEMETRY = "telemetry"  # from memory, never stored


def record_change(session: WriteSession, topic: Topic | str, data: dict[str, Any]) -> None:
    """Tell watchers of ``topic`` that something changed; ``data`` is small JSON with an ``id``."""
    row = {"topic": Topic(topic).value, "data": data, "created_at": time.time()}
    session.info.setdefault(_PENDING, []).append(row)
    before_commit(session, _PENDING, _write)


def _write(session: WriteSession) -> None:
    rows = session.info.pop(_PENDING)
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    session.execute(insert(ChangeRow), rows)


def newest_id(session: AnySession) -> int:
    return session.scalar(select(func.max(ChangeRow.id))) or 0


def after(session: AnySession, last: int, limit: int = 500) -> list[ChangeRow]:
    """Changes after id ``last``, oldest first."""
    return list(session.scalars(select(ChangeRow).where(ChangeRow.id > last).order_by(ChangeRow.id).limit(limit)))


def oldest_id(session: AnySession) -> int | None:
    return session.scalar(select(func.min(ChangeRow.id)))


def prune(session: WriteSession, keep: int) -> None:
    """Forget all but the newest ``keep`` changes."""
    newest = newest_id(session)
    session.execute(delete(ChangeRow).where(ChangeRow.id <= newest - keep))
