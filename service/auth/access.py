"""What someone may ask whose scopes hold for some jobs only: the routes below, about these jobs, and no other route.

A route that is not on the list refuses them, so a new one shows nothing of other teams.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Final

import anyio
from fastapi import Request
from sqlalchemy import ColumnElement, and_, false, func, not_, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.service import services as running
from mainstay.service.auth.tokens import Principal, Scope
from mainstay.service.common.db import ReadSession
from mainstay.service.common.problem import ForbiddenError
from mainstay.service.incidents.models import FindingRow, IncidentRow, PlanRow


class NotYoursError(ForbiddenError):
    slug, title = "not-yours", "Not one of your jobs"


class Rule(Enum):
    """How a route is bound to the jobs of the caller."""

    JOB = auto()
    """``id`` in its path is a job."""
    INCIDENT = auto()
    """``id`` in its path is an incident, all of whose jobs are the caller's."""
    PLAN = auto()
    """``id`` in its path is a recovery plan."""
    FILTERED = auto()
    """Its handler checks or filters by ``Principal.seen_jobs``."""
    OPEN = auto()
    """It shows nothing of a fleet, or only what is the caller's own."""


ROUTES: Final = {
    "acknowledge_incident": Rule.INCIDENT,
    "admit": Rule.FILTERED,
    "assign_incident": Rule.INCIDENT,
    "change_password": Rule.OPEN,
    "close_incident": Rule.INCIDENT,
    "comment_on_incident": Rule.INCIDENT,
    "create_job_request": Rule.JOB,
    "create_sign_in_code": Rule.OPEN,
    "create_token": Rule.OPEN,
    "end_session": Rule.OPEN,
    "get_incident": Rule.INCIDENT,
    "get_job": Rule.JOB,
    "get_job_checkpoints": Rule.JOB,
    "get_job_progress": Rule.JOB,
    "get_job_signals": Rule.JOB,
    "get_job_steps": Rule.JOB,
    "get_job_transfers": Rule.JOB,
    "get_me": Rule.OPEN,
    "get_post_mortem": Rule.INCIDENT,
    "get_post_mortem_markdown": Rule.INCIDENT,
    "get_recovery_plan": Rule.PLAN,
    "list_events": Rule.FILTERED,
    "list_findings": Rule.FILTERED,
    "list_incidents": Rule.FILTERED,
    "list_job_detectors": Rule.JOB,
    "list_job_recoveries": Rule.JOB,
    "list_job_requests": Rule.JOB,
    "list_jobs": Rule.FILTERED,
    "list_recovery_plans": Rule.FILTERED,
    "list_sessions": Rule.OPEN,
    "list_signals": Rule.OPEN,
    "list_suites": Rule.OPEN,
    "list_tokens": Rule.OPEN,
    "revoke_token": Rule.OPEN,
    "share_incident": Rule.INCIDENT,
    "watch": Rule.FILTERED,
}
"""Operation → its rule."""


async def require_own(request: Request, principal: Principal, scope: Scope) -> None:
    """Check that a request is one that the caller may make with the scopes for its own jobs.

    Raises:
        ScopeMissingError: it has not this scope, or the route is one for the whole fleet.
        NotYoursError: the job, incident or plan is not the caller's, or does not exist.
    """
    rule = ROUTES.get(request.scope["route"].operation_id)
    if rule is None or not principal.may_somewhere(scope):
        raise principal.missing(scope)
    subject = request.path_params.get("id", "")
    if rule is Rule.JOB and not principal.may_for_job(subject, scope):
        raise NotYoursError(f"job {subject!r} is not one of yours")
    if rule not in {Rule.INCIDENT, Rule.PLAN}:
        return
    database = running.services_of(request).database

    def is_own() -> bool:
        with database.reading() as session:
            return _is_own(session, rule, subject, principal.jobs)

    if not await anyio.to_thread.run_sync(is_own):
        raise NotYoursError(f"{rule.name.lower()} {subject!r} is not one of your jobs' alone")


def _is_own(session: ReadSession, rule: Rule, subject: str, jobs: tuple[str, ...]) -> bool:
    if rule is Rule.PLAN:
        found = select(PlanRow.id).where(PlanRow.id == subject, *of_jobs(PlanRow.job, jobs))
    else:
        found = select(IncidentRow.id).where(IncidentRow.id == subject, *incidents_of_jobs(jobs))
    return session.scalar(found) is not None


def of_jobs(job: InstrumentedAttribute[Any], jobs: tuple[str, ...] | None) -> list[ColumnElement[bool]]:
    """The condition that the id of a job is one of ``jobs`` (``Principal.seen_jobs``); none for None."""
    return [] if jobs is None else [_is_one(job, jobs)]


def incidents_of_jobs(jobs: tuple[str, ...] | None) -> list[ColumnElement[bool]]:
    """The condition that an incident stops jobs of ``jobs`` and no others; none for None."""
    if jobs is None:
        return []

    def touches(condition: ColumnElement[bool], finding: ColumnElement[bool]) -> ColumnElement[bool]:
        of_findings = select(FindingRow.incident_id).where(finding, FindingRow.incident_id.is_not(None))
        return or_(condition, IncidentRow.id.in_(of_findings))

    own = touches(_is_one(IncidentRow.job, jobs), _is_one(FindingRow.job, jobs))
    others = touches(_is_other(IncidentRow.job, jobs), _is_other(FindingRow.job, jobs))
    return [own, not_(others)]


def _is_one(job: InstrumentedAttribute[Any], jobs: tuple[str, ...]) -> ColumnElement[bool]:
    # substr and not LIKE, which knows no case in SQLite and makes a wildcard of "_".
    starts = [func.substr(job, 1, len(one) - 1) == one[:-1] for one in jobs if one.endswith("*")]
    names = [one for one in jobs if not one.endswith("*")]
    return and_(job.is_not(None), or_(false(), job.in_(names), *starts))


def _is_other(job: InstrumentedAttribute[Any], jobs: tuple[str, ...]) -> ColumnElement[bool]:
    return and_(job.is_not(None), not_(_is_one(job, jobs)))
