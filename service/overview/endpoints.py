"""``/v1/overview``: active incidents, automated actions, and what needs an operator.

One fixed set of small queries for a fleet of any size: each reads an index and stops at a limit.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from sqlalchemy import select

from mainstay.probes.core_types import HealthState
from mainstay.service.auth.guard import Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import AnySession, Reading
from mainstay.service.incidents import repository
from mainstay.service.incidents import serializers as incidents_serializers
from mainstay.service.incidents.lifecycle import IncidentTrigger
from mainstay.service.incidents.models import IncidentRow, TimelineRow
from mainstay.service.jobs import repository as jobs
from mainstay.service.jobs import service as job_service
from mainstay.service.overview.schemas import AutomatedAction, OverviewRead
from mainstay.service.remediation.service import ENTRY as REMEDIATION
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["overview"])
MAX_ACTIVE_INCIDENTS: Final = 50
MAX_DECIDED: Final = 20
MAX_JOBS: Final = 20
DECISIONS: Final = (
    IncidentTrigger.RECOVERY_PLANNED.value,
    IncidentTrigger.RECOVERED.value,
    IncidentTrigger.VERIFIED.value,
    IncidentTrigger.STAYED_CLEAR.value,
    IncidentTrigger.QUIET.value,
    IncidentTrigger.RECOVERY_FAILED.value,
    REMEDIATION,
)


@router.get("/overview", operation_id="get_overview")
def get_overview(_: Reader, session: Reading, services: ServicesDep, now: Now) -> OverviewRead:
    """The data of the page Overview."""
    incidents = repository.active_incidents(session, MAX_ACTIVE_INCIDENTS)
    running = jobs.current(session, MAX_JOBS) or jobs.latest(session, 3)
    heard = services.seen.latest()
    fleet = services.fleet.current(session)
    return OverviewRead(
        active_incidents=[incidents_serializers.read(row) for row in incidents if row.state in {"open", "recovering"}],
        automated_actions=decided(session),
        needs_operator=[incidents_serializers.read(row) for row in incidents if row.needs_operator],
        nodes={state.value: fleet.states.get(state.value, 0) for state in HealthState},
        devices=fleet.devices,
        jobs=job_service.serialize_jobs(session, running, now=now),
        data_age_seconds=None if heard is None else max(0.0, now - heard),
        now=now,
    )


def decided(session: AnySession) -> list[AutomatedAction]:
    """The latest decisions, newest first."""
    statement = (
        select(TimelineRow, IncidentRow.job)
        .join(IncidentRow, IncidentRow.id == TimelineRow.incident_id)
        .where(TimelineRow.kind.in_(DECISIONS))
        .order_by(TimelineRow.time.desc(), TimelineRow.id.desc())
        .limit(MAX_DECIDED)
    )
    return [
        AutomatedAction(time=entry.time, text=entry.text, incident=entry.incident_id, plan=_plan(entry.data), job=job)
        for entry, job in session.execute(statement)
    ]


def _plan(data: dict[str, Any]) -> str | None:
    plan = data.get("plan")
    return plan if isinstance(plan, str) else None
