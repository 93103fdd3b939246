"""``/v1/overview``: is anything burning, what did the machine decide by itself, what needs a human.

One fixed set of small queries, whatever the size of the fleet: each reads an index and stops at a limit.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from sqlalchemy import select

from probes.words import HealthState
from service.auth.guard import Reader
from service.fleet import repository as fleet
from service.incidents import reading, repository
from service.incidents.life_cycle import Trigger
from service.incidents.models import IncidentRow, TimelineRow
from service.jobs import repository as jobs
from service.jobs import service as job_service
from service.kit.clock import Now
from service.kit.db import AnySession, Reading
from service.overview.schemas import Decision, OverviewRead
from service.remediation.service import ENTRY as REMEDIATION
from service.services import ServicesDep

router = APIRouter(tags=["overview"])
MAX_BURNING: Final = 50
MAX_DECIDED: Final = 20
MAX_JOBS: Final = 20
DECISIONS: Final = (
    Trigger.PLAN_CHOSEN.value,
    Trigger.RECOVERED.value,
    Trigger.VERIFIED.value,
    Trigger.STAYED_CLEAR.value,
    Trigger.QUIET.value,
    Trigger.RECOVERY_FAILED.value,
    REMEDIATION,
)


@router.get("/overview", operation_id="get_overview")
def get_overview(_: Reader, session: Reading, services: ServicesDep, now: Now) -> OverviewRead:
    """Everything that the first screen shows."""
    incidents = repository.burning(session, MAX_BURNING)
    running = jobs.current(session, MAX_JOBS) or jobs.latest(session, 3)
    heard = services.seen.latest()
    counts = fleet.count_by_state(session)
    return OverviewRead(
        burning=[reading.read(row) for row in incidents if row.state in {"open", "acting"}],
        decided=decided(session),
        needs_human=[reading.read(row) for row in incidents if row.needs_human],
        nodes={state.value: counts.get(state.value, 0) for state in HealthState},
        devices=fleet.count_devices(session),
        jobs=job_service.read_many(session, running, now=now),
        data_age_seconds=None if heard is None else max(0.0, now - heard),
        now=now,
    )


def decided(session: AnySession) -> list[Decision]:
    """The latest decisions, newest first."""
    statement = (
        select(TimelineRow, IncidentRow.job)
        .join(IncidentRow, IncidentRow.id == TimelineRow.incident_id)
        .where(TimelineRow.kind.in_(DECISIONS))
        .order_by(TimelineRow.time.desc(), TimelineRow.id.desc())
        .limit(MAX_DECIDED)
    )
    return [
        Decision(time=entry.time, text=entry.text, incident=entry.incident_id, plan=_plan(entry.data), job=job)
        for entry, job in session.execute(statement)
    ]


def _plan(data: dict[str, Any]) -> str | None:
    plan = data.get("plan")
    return plan if isinstance(plan, str) else None
