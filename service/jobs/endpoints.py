"""``/v1/jobs``: training jobs, their steps and their recoveries."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import select

from mainstay.service.auth.access import of_jobs
from mainstay.service.auth.guard import Reader, Reporter
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Reporting
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import ConflictError
from mainstay.service.common.rows import equal_to
from mainstay.service.common.schemas import Name
from mainstay.service.jobs import job_requests, live_views, node_warnings, service
from mainstay.service.jobs.models import JobRequestRow, JobRow, RecoveryRow
from mainstay.service.jobs.repository import is_over
from mainstay.service.jobs.schemas import (
    JobAnswer,
    JobRead,
    JobReport,
    JobRequestCreate,
    JobRequestRead,
    JobState,
    RecoveryRead,
    StepsRead,
)
from mainstay.service.operation import Acting
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["jobs"])
JobId = Annotated[Name, Path(alias="id")]
StepNumber = Annotated[int | None, Query(ge=0, lt=2**53)]


class JobOverError(ConflictError):
    slug, title = "job-ended", "The job is over"


class JobPage(Page[JobRead]):
    """Jobs, the most recently started first."""


class JobRequestPage(Page[JobRequestRead]):
    """Migration requests of a job, newest first."""


class RecoveryPage(Page[RecoveryRead]):
    """Recoveries of a job, newest first."""


@router.put("/jobs/{id}", operation_id="put_job", responses=problems(409))  # noqa: FAST003 - JobId is its alias
def put_job(
    job_id: JobId, body: JobReport, principal: Reporter, services: ServicesDep, session: Reporting, *, now: Now
) -> JobAnswer:
    """Report a job. Its coordinator sends this every few seconds and after each change."""
    principal.require_job(job_id)
    if principal.job is None and session.get(JobRow, job_id) is None:
        services.quotas.charge_entity(principal)
    row = service.report(session, job_id, body, now=now)
    session.flush()
    read = service.serialize_jobs(session, [row], now=now)[0]
    nodes = {place.node for place in body.topology.ranks} | set(body.topology.standbys or ())
    found = node_warnings.of_nodes(session, job_id, services.fleet.current(session).nodes, nodes)
    given = [JobRequestRead.model_validate(one) for one in job_requests.open_ones(session, job_id)]
    return JobAnswer(**read.model_dump(), node_warnings=found, requests=given)


@router.get("/jobs", operation_id="list_jobs")
def list_jobs(reader: Reader, session: Reading, page: Paging, now: Now, state: JobState | None = None) -> JobPage:
    """Jobs, the most recently started first."""
    statement = select(JobRow).where(*equal_to({JobRow.state: state}), *of_jobs(JobRow.id, reader.seen_jobs))
    rows, cursor = paginate(session, statement, keys=(JobRow.started_at, JobRow.id), page=page)
    return JobPage(items=service.serialize_jobs(session, rows, now=now), next_cursor=cursor)


@router.get("/jobs/{id}", operation_id="get_job")  # noqa: FAST003 - JobId is its alias
def get_job(job_id: JobId, _: Reader, session: Reading, now: Now) -> JobRead:
    """One job."""
    return service.serialize_jobs(session, [service.require_job(session, job_id)], now=now)[0]


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
    """Step times of every rank, from ``from_step`` up to but not including ``to_step``, downsampled by a stride."""
    service.require_job(session, job_id)
    return live_views.step_times(services.steps, job_id, start=from_step or 0, stop=to_step, points=points)


@router.get("/jobs/{id}/recoveries", operation_id="list_job_recoveries")  # noqa: FAST003 - JobId is its alias
def list_job_recoveries(job_id: JobId, _: Reader, session: Reading, page: Paging) -> RecoveryPage:
    """List the recoveries of the job, newest first, with predicted and actual seconds side by side."""
    service.require_job(session, job_id)
    statement = select(RecoveryRow).where(RecoveryRow.job == job_id)
    rows, cursor = paginate(session, statement, keys=(RecoveryRow.failed_at, RecoveryRow.id), page=page)
    return RecoveryPage(items=[RecoveryRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.get("/jobs/{id}/requests", operation_id="list_job_requests")  # noqa: FAST003 - JobId is its alias
def list_job_requests(job_id: JobId, _: Reader, session: Reading, page: Paging) -> JobRequestPage:
    """The requests to the job and their results, newest first."""
    service.require_job(session, job_id)
    statement = select(JobRequestRow).where(JobRequestRow.job == job_id)
    rows, cursor = paginate(session, statement, keys=(JobRequestRow.created_at, JobRequestRow.id), page=page)
    return JobRequestPage(items=[JobRequestRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.post("/jobs/{id}/requests", operation_id="create_job_request")  # noqa: FAST003 - JobId is its alias
def create_job_request(job_id: JobId, body: JobRequestCreate, acting: Acting) -> JobRequestRead:
    """Ask a running job to migrate or restore ranks, to continue without a node, to change its shape, or to save.

    Its coordinator answers within a second or so; the result follows in ``state`` and ``detail``.
    """
    row = service.require_job(acting.session, job_id)
    if is_over(row):
        raise JobOverError(f"job {job_id!r} is {row.state}: it takes no request")
    given = job_requests.create(acting.session, job_id, body, actor=acting.principal.name, now=acting.now)
    acting.session.flush()
    return acting.remember(JobRequestRead.model_validate(given))
