"""Incidents and plans as answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mainstay.service.common.db import AnySession
from mainstay.service.incidents import findings, impact, repository
from mainstay.service.incidents.models import IncidentRow, PlanRow
from mainstay.service.incidents.schemas import ActionRead, IncidentDetail, IncidentRead, RecoveryPlanRead, TimelineEntry
from mainstay.service.jobs.models import RecoveryRow


def read(row: IncidentRow) -> IncidentRead:
    return IncidentRead.model_validate(row)


def serialize_plans(session: AnySession, rows: Sequence[PlanRow]) -> list[RecoveryPlanRead]:
    """Plans with their outcomes; one further query in total."""
    recoveries = repository.recoveries_by_plan(session, rows)
    return [_plan(row, recoveries.get(row.id)) for row in rows]


def _plan(row: PlanRow, recovery: RecoveryRow | None) -> RecoveryPlanRead:
    """The price counts from the moment of the decision on; so does the actual, without what detection took."""
    done = recovery is not None and recovery.recovered_at is not None
    return RecoveryPlanRead(
        id=row.id,
        job=row.job,
        generation=row.generation,
        failed_ranks=row.body["failed_ranks"],
        alternatives=[{"left_out": 0} | way for way in row.body["alternatives"]],  # older plans list all
        chosen=row.body["chosen"],
        explanation=row.body["explanation"],
        created_at=row.created_at,
        incident=row.incident_id,
        actual_seconds=acted_seconds(recovery) if recovery is not None and done else None,
        actual_steps_lost=recovery.steps_lost if recovery is not None and done else None,
        actual_parts=recovery.parts if recovery is not None and done else {},
    )


def acted_seconds(recovery: RecoveryRow) -> float | None:
    """Seconds of a recovery from the decision on; None where it has not ended."""
    if recovery.seconds is None:
        return None
    return max(0.0, recovery.seconds - float(recovery.parts.get("detect", 0.0)))


MAX_FINDINGS: Final = 200
"""Findings in one answer: an incident of a whole fleet has thousands. ``GET /v1/findings`` lists all."""


def serialize_detail(session: AnySession, row: IncidentRow) -> IncidentDetail:
    """The incident with its whole story."""
    plan = repository.newest_plan(session, row.id)
    return IncidentDetail(
        **read(row).model_dump(),
        where=impact.where_of(session, row),
        impact=impact.impact_of(session, row),
        next_step=impact.next_step(session, row),
        timeline=[TimelineEntry.model_validate(entry) for entry in repository.timeline_of(session, row.id)],
        findings=[findings.read(finding) for finding in repository.findings_of(session, row.id, MAX_FINDINGS)],
        findings_total=repository.count_findings(session, row.id),
        plan=serialize_plans(session, [plan])[0] if plan is not None else None,
        actions=[ActionRead.model_validate(action) for action in repository.actions_of(session, row.id)],
    )
