"""Reports of jobs, and the data that the service adds to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, NotFoundError
from mainstay.service.common.rows import require_row
from mainstay.service.incidents import repository as incidents
from mainstay.service.jobs import job_requests, repository
from mainstay.service.jobs.accounting import Outage, ettr
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.jobs.schemas import JobRead, JobReport
from mainstay.service.stream.changes import Topic, record_change


class UnknownJobError(NotFoundError):
    slug, title = "unknown-job", "Unknown job"


class JobStaleGenerationError(ConflictError):
    slug, title = "stale-generation", "Stale generation"


def require_job(session: AnySession, job_id: str) -> JobRow:
    """The job's row.

    Raises:
        UnknownJobError: no coordinator reported a job with this id.
    """
    return require_row(session, JobRow, job_id, UnknownJobError(f"no job has the id {job_id!r}"))


def report(session: WriteSession, job_id: str, said: JobReport, *, now: float) -> JobRow:
    """Store what the coordinator says.

    Raises:
        JobStaleGenerationError: a later generation of the same run has reported already (the reporter is fenced), or
            this one has reported its end.
    """
    row = session.get(JobRow, job_id, with_for_update=True)  # the report that is compared is the one replaced
    if row is not None and row.started_at == said.started_at and _progress(said) < _progress(row):
        raise JobStaleGenerationError(
            f"job {job_id!r} is {row.state} at generation {row.generation}; a report of generation {said.generation}"
            f" that it is {said.state} is too late"
        )
    values = said.model_dump(mode="json", exclude={"requests", "checkpoints"})
    values["protection"] |= _checkpoints(row, said, now)
    if row is None:
        row = JobRow(id=job_id, last_seen_at=now, **values)
        session.add(row)
    else:
        past = repository.nodes_of(session, job_id) - repository.named_nodes(values["topology"])
        values["topology"][repository.PAST_NODES] = sorted(past)[: repository.MAX_PAST_NODES]
        for name, value in values.items():
            setattr(row, name, value)
        row.last_seen_at = now
    is_over = repository.is_over(row)
    job_requests.record_results(session, job_id, said.requests, is_over=is_over, now=now)
    told = {"id": job_id, "state": row.state, "generation": row.generation, "last_step": row.last_step}
    record_change(session, Topic.JOB, told)
    return row


def _checkpoints(row: JobRow | None, said: JobReport, now: float) -> dict[str, Any]:
    """What the report says of checkpoints, else what an earlier one of the same run has said."""
    if said.checkpoints is not None:
        told = {"reported_at": now, "checkpoints": said.checkpoints.model_dump(mode="json")}
        return {repository.CHECKPOINTS: told}
    same_run = row is not None and row.started_at == said.started_at
    kept = row.protection.get(repository.CHECKPOINTS) if row is not None and same_run else None
    return {} if kept is None else {repository.CHECKPOINTS: kept}


def _progress(job: JobRow | JobReport) -> tuple[int, bool]:
    """Grows within a run: its generation, and whether that has ended."""
    return job.generation, job.finished_at is not None


def serialize_jobs(session: AnySession, rows: Sequence[JobRow], *, now: float) -> list[JobRead]:
    """Jobs as answered; two queries in total."""
    ids = [row.id for row in rows]
    incidents_of, recoveries_of = incidents.open_by_job(session, ids), repository.recoveries_of(session, ids)
    return [_read(row, incidents_of.get(row.id, 0), recoveries_of.get(row.id, []), now) for row in rows]


_DERIVED: Final = frozenset({"open_incidents", "recoveries", "ettr"})
"""Fields of an answer that no row has."""


def _read(row: JobRow, open_incidents: int, recoveries: Sequence[RecoveryRow], now: float) -> JobRead:
    return JobRead(
        **{name: getattr(row, name) for name in JobRead.model_fields if name not in _DERIVED},
        open_incidents=open_incidents,
        recoveries=len([r for r in recoveries if r.failed_at >= row.started_at]),
        ettr=_ratio(row, recoveries, now),
    )


def _ratio(row: JobRow, recoveries: Sequence[RecoveryRow], now: float) -> float | None:
    """Until the job ended, else until its last report: nothing is known about the time after it."""
    outages = [
        Outage(failed_at=r.failed_at, recovered_at=r.recovered_at, steps_lost=r.steps_lost or 0)
        for r in recoveries
        if r.failed_at >= row.started_at
    ]
    until = row.finished_at if row.finished_at is not None else min(now, row.last_seen_at)
    return ettr(started_at=row.started_at, until=until, last_step=row.last_step, outages=outages)
