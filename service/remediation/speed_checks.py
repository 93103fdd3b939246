"""Findings that are not certain enough to act on, and what makes them so: the job compares the speed of the rank.

Of two replicas each is the other's only measure, so that a slow rank stays a suspicion however long it is watched. A
check costs the job a second, moves nothing, and is therefore asked for without a person; what it finds is a finding
of its own (``mainstay.detectors.job.speed_check``), or the suspicion stays what it is.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import select

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import Severity
from mainstay.recovery.job_request import OPEN, RequestKind, RequestState
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.detector_policies.in_force import is_acted_on, policies_in_force
from mainstay.service.fleet.models import MACHINE
from mainstay.service.incidents.models import FindingRow
from mainstay.service.jobs import job_requests
from mainstay.service.jobs.models import JobRequestRow, JobRow
from mainstay.service.jobs.schemas import JobRequestCreate, JobState
from mainstay.service.settings import RemediationSettings

RETRY_SECONDS: Final = 120.0
"""A check that failed or was refused is asked for again after so long."""
_CHECKED: Final = (*(state.value for state in OPEN), RequestState.COMPLETED.value)


def uncertain(session: AnySession, limits: RemediationSettings, now: float) -> list[FindingRow]:
    """Slow ranks of running jobs that are no certain finding, and that no check was made of."""
    if limits.migrate == "off":
        return []
    asked = select(JobRequestRow.id).where(
        JobRequestRow.finding == FindingRow.id,
        JobRequestRow.kind == RequestKind.CHECK.value,
        JobRequestRow.state.in_(_CHECKED) | (JobRequestRow.updated_at > now - RETRY_SECONDS),
    )
    statement = (
        select(FindingRow)
        .join(JobRow, JobRow.id == FindingRow.job)
        .where(
            FindingRow.active,
            FindingRow.kind == FindingKind.STRAGGLER.value,
            FindingRow.severity != Severity.INFO.value,
            is_acted_on(policies_in_force(session), limits.min_confidence, certain=False),
            FindingRow.rank.is_not(None),
            JobRow.state == JobState.RUNNING.value,
            JobRow.request_obstacles[RequestKind.CHECK.value].as_string() == "",
            ~asked.exists(),
        )
    )
    return list(session.scalars(statement.order_by(FindingRow.time, FindingRow.id)))


def request_checks(session: WriteSession, limits: RemediationSettings, now: float) -> None:
    """Ask the jobs of ``uncertain`` findings to compare their ranks."""
    for row in uncertain(session, limits, now):
        assert row.job is not None
        reason = str(row.evidence["summary"])[:200]
        about = JobRequestCreate(kind=RequestKind.CHECK, rank=row.rank, reason=reason)
        job_requests.create(session, row.job, about, actor=MACHINE, now=now, finding=row.id)
