"""What a post-mortem reads beside the detail of its incident."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.incidents.repository import device_of
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.remediation.models import RemediationRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Rows about one incident, oldest first."""

    node: NodeRow | None
    device: DeviceRow | None
    jobs: list[JobRow]
    job_ids: list[str]
    """Also those of jobs that no coordinator announced."""
    recoveries: list[RecoveryRow]
    remediations: list[RemediationRow]


def read_sources(session: AnySession, row: IncidentRow) -> Sources:
    recoveries = list(
        session.scalars(
            select(RecoveryRow).where(RecoveryRow.incident_id == row.id).order_by(RecoveryRow.failed_at, RecoveryRow.id)
        )
    )
    found = session.scalars(select(FindingRow.job).where(FindingRow.incident_id == row.id).distinct())
    jobs = sorted({job for job in (row.job, *found, *(one.job for one in recoveries)) if job})
    remediations = select(RemediationRow).where(RemediationRow.incident_id == row.id)
    return Sources(
        node=session.get(NodeRow, row.node) if row.node else None,
        device=device_of(session, row.node, row.device) if row.node and row.device else None,
        jobs=list(session.scalars(select(JobRow).where(JobRow.id.in_(jobs)))),
        job_ids=jobs,
        recoveries=recoveries,
        remediations=list(session.scalars(remediations.order_by(RemediationRow.created_at, RemediationRow.id))),
    )
