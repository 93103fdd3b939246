"""Queries over jobs and their recoveries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final

from sqlalchemy import and_, select
from sqlalchemy.orm import defer

from mainstay.service.common.db import AnySession
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.jobs.schemas import JobState

PAST_NODES: Final = "past_nodes"
"""Key of a stored topology: nodes that the job had, so that it may still report what it saw of them."""
CHECKPOINTS: Final = "checkpoints"
"""Key of a stored protection: checkpoints as last reported, and when."""
MAX_PAST_NODES: Final = 20_000
OVER: Final = (JobState.FINISHED.value, JobState.FAILED.value)
LIVE: Final = and_(JobRow.state.not_in(OVER), JobRow.finished_at.is_(None))
"""Jobs that run or recover, and those of an unknown state that have no end: they may still hold their nodes."""
_KEYS: Final = select(JobRow.id, JobRow.generation, JobRow.started_at).where(LIVE).order_by(JobRow.id)


def recoveries_of(session: AnySession, jobs: Collection[str]) -> dict[str, list[RecoveryRow]]:
    """Job → its recoveries, oldest first."""
    found: dict[str, list[RecoveryRow]] = defaultdict(list)
    statement = select(RecoveryRow).where(RecoveryRow.job.in_(jobs)).order_by(RecoveryRow.failed_at, RecoveryRow.id)
    for row in session.scalars(statement):
        found[row.job].append(row)
    return found


def current(session: AnySession, limit: int = 100, *, places: bool = True) -> list[JobRow]:
    """Live jobs, newest first; without ``places``, their topology is read only where it is asked for."""
    statement = select(JobRow).where(LIVE).order_by(JobRow.started_at.desc(), JobRow.id.desc())
    return list(session.scalars(statement.limit(limit).options(*() if places else (defer(JobRow.topology),))))


def current_keys(session: AnySession) -> tuple[tuple[str, int, float], ...]:
    """Id, generation, and start of the live jobs: a job's places change with generation and start only."""
    rows = session.connection().execute(_KEYS)
    return tuple((job, generation, start) for job, generation, start in rows)


def latest(session: AnySession, limit: int) -> list[JobRow]:
    """The jobs that started last, running or ended."""
    return list(session.scalars(select(JobRow).order_by(JobRow.started_at.desc(), JobRow.id.desc()).limit(limit)))


def by_node(session: AnySession) -> dict[str, list[str]]:
    """Node → ids of the running jobs that have a rank there."""
    found: dict[str, list[str]] = defaultdict(list)
    for job in current(session, limit=500):
        for node in sorted({place["node"] for place in job.topology["ranks"]}):
            found[node].append(job.id)
    return found


def nodes_of(session: AnySession, job: str) -> frozenset[str]:
    """Nodes that a job has or had, those of warm standbys included; empty when no coordinator announced it."""
    row = session.get(JobRow, job)
    return frozenset() if row is None else frozenset(row.topology.get(PAST_NODES, ())) | named_nodes(row.topology)


def named_nodes(topology: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({place["node"] for place in topology["ranks"]} | set(topology.get("standbys") or ()))


def is_over(row: JobRow) -> bool:
    """The reverse of ``LIVE``."""
    return row.state in OVER or row.finished_at is not None


def world_size(session: AnySession, job: str) -> int | None:
    """How many ranks a job has, or None when no coordinator announced it."""
    row = session.get(JobRow, job)
    return None if row is None else int(row.topology["world_size"])
