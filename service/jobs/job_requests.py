"""Requests to jobs: made here, carried out by their coordinators, which fetch them with the answers to reports."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from mainstay.probes.ids import uuid7
from mainstay.recovery.job_request import OPEN, RequestKind, RequestState
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.jobs.models import JobRequestRow
from mainstay.service.jobs.schemas import JobRequestCreate, JobRequestReport
from mainstay.service.stream.changes import Topic, record_change

_OPEN = tuple(state.value for state in OPEN)
MAX_OPEN = 32
"""Handed out at a time; a job follows one after the other."""


def create(
    session: WriteSession,
    job: str,
    about: JobRequestCreate,
    *,
    actor: str,
    now: float,
    finding: str | None = None,
    remediation: str | None = None,
) -> JobRequestRow:
    """Ask a job. The same request that is open already is not made again."""
    same = (
        JobRequestRow.job == job,
        JobRequestRow.kind == about.kind.value,
        JobRequestRow.node == about.node,
        JobRequestRow.rank == about.rank,
        JobRequestRow.target == about.target,
        JobRequestRow.dp == about.dp,
        JobRequestRow.pp == about.pp,
        JobRequestRow.tp == about.tp,
    )
    rows = session.scalars(select(JobRequestRow).where(*same, JobRequestRow.state.in_(_OPEN)))
    row = next((row for row in rows if tuple(row.stages) == about.stages), None)
    if row is None:
        row = JobRequestRow(
            id=uuid7(), job=job, kind=about.kind.value, node=about.node, rank=about.rank, target=about.target,
            dp=about.dp, pp=about.pp, tp=about.tp, stages=list(about.stages), reason=about.reason[:500],
            actor=actor[:200], state=RequestState.PENDING.value, detail="", seconds=None, steps_lost=None, step=None,
            created_at=now, updated_at=now, finding=finding, remediation=remediation,
        )  # fmt: skip
        session.add(row)
        record_change(session, Topic.JOB, {"id": job, "request": row.id})
    elif row.remediation is None:
        row.finding, row.remediation = finding, remediation
    return row


def migration(node: str, reason: str) -> JobRequestCreate:
    """The request to move all ranks off a node."""
    return JobRequestCreate(kind=RequestKind.MIGRATE, node=node, reason=reason[:200])


def of_remediation(session: AnySession, remediation: str) -> list[JobRequestRow]:
    """What was requested for it, one a job or rank."""
    statement = select(JobRequestRow).where(JobRequestRow.remediation == remediation)
    return list(session.scalars(statement.order_by(JobRequestRow.job, JobRequestRow.id)))


def is_open(row: JobRequestRow) -> bool:
    """Whether its job has still to say what became of it."""
    return row.state in _OPEN


def open_ones(session: AnySession, job: str) -> list[JobRequestRow]:
    """What a job has still to answer, oldest first."""
    statement = select(JobRequestRow).where(JobRequestRow.job == job, JobRequestRow.state.in_(_OPEN))
    return list(session.scalars(statement.order_by(JobRequestRow.created_at, JobRequestRow.id).limit(MAX_OPEN)))


def record_results(
    session: WriteSession, job: str, answers: Iterable[JobRequestReport], *, is_over: bool, now: float
) -> None:
    """Take a coordinator's answers; what a job that is over has not answered is refused.

    Answers about a request that is closed, or that came from the job itself, change nothing.
    """
    rows = open_ones(session, job)
    said = {answer.id: answer for answer in answers} if rows else {}
    for row in rows:
        answer = said.get(row.id)
        if answer is not None and (answer.state.value, answer.detail) != (row.state, row.detail):
            row.state, row.detail, row.updated_at = answer.state.value, answer.detail, now
            row.seconds, row.steps_lost, row.step = answer.seconds, answer.steps_lost, answer.step
        if is_over and row.state in _OPEN:
            _end(row, "the job ended first", now)


def withdraw(session: WriteSession, node: str, why: str, *, now: float) -> None:
    """Withdraw the requests about a node that no job has started to carry out."""
    given = select(JobRequestRow).where(JobRequestRow.node == node, JobRequestRow.state == RequestState.PENDING.value)
    for row in session.scalars(given):
        _end(row, why, now)
        record_change(session, Topic.JOB, {"id": row.job, "request": row.id})


def _end(row: JobRequestRow, why: str, now: float) -> None:
    row.state, row.detail, row.updated_at = RequestState.REJECTED.value, why[:500], now
