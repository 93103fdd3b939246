"""Advice to jobs: given here, carried out by their coordinators, which fetch it with the answers to their reports."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from recovery.advice import OPEN, AdviceKind, AdviceState
from service.jobs.models import AdviceRow
from service.jobs.schemas import AdviceAnswer, JobState
from service.kit.db import AnySession, WriteSession
from service.kit.ids import new_id
from service.stream.changes import Topic, record_change

_OPEN = tuple(state.value for state in OPEN)
_OVER = frozenset({JobState.FINISHED.value, JobState.FAILED.value})
MAX_OPEN = 32
"""Handed out at a time; a job follows one after the other."""


def give(
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
) -> AdviceRow:
    """Advise a job to move a rank, or the ranks of a node. The same advice that is open already is not given again."""
    same = (AdviceRow.job == job, AdviceRow.node == node, AdviceRow.rank == rank, AdviceRow.target == target)
    row = session.scalar(select(AdviceRow).where(*same, AdviceRow.state.in_(_OPEN)).limit(1))
    if row is None:
        row = AdviceRow(
            id=new_id(), job=job, kind=AdviceKind.MIGRATE.value, node=node, rank=rank, target=target,
            reason=reason[:500], actor=actor[:200], state=AdviceState.GIVEN.value, detail="",
            seconds=None, steps_lost=None, created_at=now, updated_at=now, finding=finding, remediation=remediation,
        )  # fmt: skip
        session.add(row)
        record_change(session, Topic.JOB, {"id": job, "advice": row.id})
    elif row.remediation is None:
        row.finding, row.remediation = finding, remediation
    return row


def of_remediation(session: AnySession, remediation: str) -> list[AdviceRow]:
    """What was advised for it, one a job or rank."""
    statement = select(AdviceRow).where(AdviceRow.remediation == remediation)
    return list(session.scalars(statement.order_by(AdviceRow.job, AdviceRow.id)))


def is_open(row: AdviceRow) -> bool:
    """Whether its job has still to say what became of it."""
    return row.state in _OPEN


def open_ones(session: AnySession, job: str) -> list[AdviceRow]:
    """What a job has still to answer, oldest first."""
    statement = select(AdviceRow).where(AdviceRow.job == job, AdviceRow.state.in_(_OPEN))
    return list(session.scalars(statement.order_by(AdviceRow.created_at, AdviceRow.id).limit(MAX_OPEN)))


def heard(session: WriteSession, job: str, state: str, answers: Iterable[AdviceAnswer], *, now: float) -> None:
    """Take a coordinator's answers; what a job that is over has not answered is refused.

    Answers about advice that is no more open, or that somebody gave to the job itself, change nothing.
    """
    rows = open_ones(session, job)
    said = {answer.id: answer for answer in answers} if rows else {}
    for row in rows:
        answer = said.get(row.id)
        if answer is not None and (answer.state.value, answer.detail) != (row.state, row.detail):
            row.state, row.detail, row.updated_at = answer.state.value, answer.detail, now
            row.seconds, row.steps_lost = answer.seconds, answer.steps_lost
        if state in _OVER and row.state in _OPEN:
            _end(row, "the job ended first", now)


def withdraw(session: WriteSession, node: str, why: str, *, now: float) -> None:
    """Take back what was advised about a node and nobody has begun."""
    given = select(AdviceRow).where(AdviceRow.node == node, AdviceRow.state == AdviceState.GIVEN.value)
    for row in session.scalars(given):
        _end(row, why, now)
        record_change(session, Topic.JOB, {"id": row.job, "advice": row.id})


def _end(row: AdviceRow, why: str, now: float) -> None:
    row.state, row.detail, row.updated_at = AdviceState.REFUSED.value, why[:500], now
