"""Advice to jobs: given here, carried out by their coordinators, which fetch it with the answers to their reports."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from mainstay.probes.ids import uuid7
from mainstay.recovery.migration_request import OPEN, MigrationKind, MigrationState
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.jobs.models import MigrationRequestRow
from mainstay.service.jobs.schemas import MigrationRequestResult
from mainstay.service.stream.changes import Topic, record_change

_OPEN = tuple(state.value for state in OPEN)
MAX_OPEN = 32
"""Handed out at a time; a job follows one after the other."""


def create(
    session: WriteSession,
    job: str,
    *,
    node: str | None = None,
    rank: int | None = None,
    target: str | None = None,
    reason: str,
    actor: str,
    now: float,
    finding: str | None = None,
    remediation: str | None = None,
) -> MigrationRequestRow:
    """Advise a job to move a rank, or the ranks of a node. The same advice that is open already is not given again."""
    same = (
        MigrationRequestRow.job == job,
        MigrationRequestRow.node == node,
        MigrationRequestRow.rank == rank,
        MigrationRequestRow.target == target,
    )
    row = session.scalar(select(MigrationRequestRow).where(*same, MigrationRequestRow.state.in_(_OPEN)).limit(1))
    if row is None:
        row = MigrationRequestRow(
            id=uuid7(), job=job, kind=MigrationKind.MIGRATE.value, node=node, rank=rank, target=target,
            reason=reason[:500], actor=actor[:200], state=MigrationState.PENDING.value, detail="",
            seconds=None, steps_lost=None, created_at=now, updated_at=now, finding=finding, remediation=remediation,
        )  # fmt: skip
        session.add(row)
        record_change(session, Topic.JOB, {"id": job, "migration_request": row.id})
    elif row.remediation is None:
        row.finding, row.remediation = finding, remediation
    return row


def of_remediation(session: AnySession, remediation: str) -> list[MigrationRequestRow]:
    """What was advised for it, one a job or rank."""
    statement = select(MigrationRequestRow).where(MigrationRequestRow.remediation == remediation)
    return list(session.scalars(statement.order_by(MigrationRequestRow.job, MigrationRequestRow.id)))


def is_open(row: MigrationRequestRow) -> bool:
    """Whether its job has still to say what became of it."""
    return row.state in _OPEN


def open_ones(session: AnySession, job: str) -> list[MigrationRequestRow]:
    """What a job has still to answer, oldest first."""
    statement = select(MigrationRequestRow).where(MigrationRequestRow.job == job, MigrationRequestRow.state.in_(_OPEN))
    return list(
        session.scalars(statement.order_by(MigrationRequestRow.created_at, MigrationRequestRow.id).limit(MAX_OPEN))
    )


def record_results(
    session: WriteSession, job: str, answers: Iterable[MigrationRequestResult], *, is_over: bool, now: float
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
            row.seconds, row.steps_lost = answer.seconds, answer.steps_lost
        if is_over and row.state in _OPEN:
            _end(row, "the job ended first", now)


def withdraw(session: WriteSession, node: str, why: str, *, now: float) -> None:
    """Withdraw the requests about a node that no job has started to carry out."""
    given = select(MigrationRequestRow).where(
        MigrationRequestRow.node == node, MigrationRequestRow.state == MigrationState.PENDING.value
    )
    for row in session.scalars(given):
        _end(row, why, now)
        record_change(session, Topic.JOB, {"id": row.job, "migration_request": row.id})


def _end(row: MigrationRequestRow, why: str, now: float) -> None:
    row.state, row.detail, row.updated_at = MigrationState.REJECTED.value, why[:500], now
