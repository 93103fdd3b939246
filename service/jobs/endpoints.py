"""``/v1/jobs``: training jobs, their steps and their recoveries."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import select

from service.auth.guard import Reader, Reporter
from service.jobs import service, steps
from service.jobs.models import JobRow, RecoveryRow
from service.jobs.schemas import JobRead, JobReport, JobState, RecoveryRead, StepsRead
from service.kit.clock import Now
from service.kit.db import Reading, Writing
from service.kit.openapi import problems
from service.kit.pagination import Page, Paging, paginate
from service.kit.schemas import Name
from service.services import ServicesDep

router = APIRouter(tags=["jobs"])
JobId = Annotated[Name, Path(alias="id")]
StepNumber = Annotated[int | None, Query(ge=0, lt=2**53)]


class JobPage(Page[JobRead]):
    """Jobs, the one that started last first."""


class RecoveryPage(Page[RecoveryRead]):
    """Recoveries of a job, newest first."""


@router.put("/jobs/{id}", operation_id="put_job", responses=problems(409))  # noqa: FAST003 - JobId is its alias
def put_job(job_id: JobId, body: JobReport, principal: Reporter, session: Writing, now: Now) -> JobRead:
    """Report a job: its coordinator sends this when something changes, and every few seconds."""
    principal.require_job(job_id)
    row = service.report(session, job_id, body, now=now)
    session.flush()
    return service.read_many(session, [row], now=now)[0]


@router.get("/jobs", operation_id="list_jobs")
def list_jobs(_: Reader, session: Reading, page: Paging, now: Now, state: JobState | None = None) -> JobPage:
    """Jobs, the one that started last first."""
    statement = select(JobRow) if state is None else select(JobRow).where(JobRow.state == state)
    rows, cursor = paginate(session, statement, keys=(JobRow.started_at, JobRow.id), page=page)
    return JobPage(items=service.read_many(session, rows, now=now), next_cursor=cursor)


@router.get("/jobs/{id}", operation_id="get_job")  # noqa: FAST003 - JobId is its alias
def get_job(job_id: JobId, _: Reader, session: Reading, now: Now) -> JobRead:
    """One job."""
    return service.read_many(session, [service.require_job(session, job_id)], now=now)[0]


@router.get("/jobs/{id}/steps", operation_id="get_job_steps")  # noqa: FAST003 - JobId is its alias
def get_job_steps(
    job_id: JobId,
    _: Reader,
    session: Reading,
    services: ServicesDep,
    *,
    from_step: StepNumber = None,
    to_step: StepNumber = None,
    points: Annotated[int, Query(ge=1, le=5000)] = 600,
) -> StepsRead:
    """Step times of every rank, ``from_step`` up to but not including ``to_step``, thinned by a stride."""
    service.require_job(session, job_id)
    return steps.read(services.steps, job_id, start=from_step or 0, stop=to_step, points=points)


@router.get("/jobs/{id}/recoveries", operation_id="list_job_recoveries")  # noqa: FAST003 - JobId is its alias
def list_job_recoveries(job_id: JobId, _: Reader, session: Reading, page: Paging) -> RecoveryPage:
    """Every way back that the job took, newest first: predicted and actual seconds side by side."""
    service.require_job(session, job_id)
    statement = select(RecoveryRow).where(RecoveryRow.job == job_id)
    rows, cursor = paginate(session, statement, keys=(RecoveryRow.failed_at, RecoveryRow.id), page=page)
    return RecoveryPage(items=[service.read_recovery(row) for row in rows], next_cursor=cursor)
