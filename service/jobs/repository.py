"""Queries over jobs and their recoveries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import select

from mainstay.service.common.db import AnySession
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.jobs.schemas import JobState

RUNNING = (JobState.RUNNING.value, JobState.RECOVERING.value)


def recoveries_of(session: AnySession, jobs: Collection[str]) -> dict[str, list[RecoveryRow]]:
    """Job → its recoveries, oldest first."""
    found: dict[str, list[RecoveryRow]] = defaultdict(list)
    statement = select(RecoveryRow).where(RecoveryRow.job.in_(jobs)).order_by(RecoveryRow.failed_at, RecoveryRow.id)
    for row in session.scalars(statement):
        found[row.job].append(row)
    return found


def current(session: AnySession, limit: int = 100) -> list[JobRow]:
    """Jobs that run or recover, newest first."""
    statement = select(JobRow).where(JobRow.state.in_(RUNNING)).order_by(JobRow.started_at.desc(), JobRow.id.desc())
    return list(session.scalars(statement.limit(limit)))


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


def world_size(session: AnySession, job: str) -> int | None:
    """How many ranks a job has, or None when no coordinator announced it."""
    row = session.get(JobRow, job)
    return None if row is None else int(row.topology["world_size"])
