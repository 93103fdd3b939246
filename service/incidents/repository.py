"""Queries over incidents, findings, plans and actions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Select, func, or_, select, union, update

from mainstay.detectors.finding import ADVICE, Cause, Finding, FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.rows import equal_to
from mainstay.service.fleet.models import DeviceRow
from mainstay.service.incidents import findings as wire
from mainstay.service.incidents.lifecycle import LIVE, IncidentState
from mainstay.service.incidents.models import ActionRow, FindingRow, IncidentRow, PlanRow, TimelineRow
from mainstay.service.jobs.models import RecoveryRow

_LIVE = tuple(state.value for state in LIVE)
_HANGS = tuple(
    kind.value for kind in (FindingKind.COMM_HANG, FindingKind.NONCOMM_HANG, FindingKind.COLLECTIVE_MISMATCH)
)


def lock_incidents(session: WriteSession) -> None:
    """Let the shards of detection store findings one after another: two of one cause never open two incidents.

    Call it first in a transaction, before any row is locked.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(func.hashtext("incidents"))))


def incidents(
    *, state: IncidentState | None, job: str | None, node: str | None, cause: Cause | None = None
) -> Select[IncidentRow]:
    statement = select(IncidentRow).where(*equal_to({IncidentRow.cause: cause, IncidentRow.state: state}))
    if job is not None:
        statement = statement.where(of_job(job))
    return statement if node is None else statement.where(IncidentRow.id.in_(_touching(FindingRow.node == node)))


def of_job(job: str) -> ColumnElement[bool]:
    """Its own incidents, and those with a finding about it: one trouble may stop several jobs."""
    return or_(IncidentRow.job == job, IncidentRow.id.in_(_touching(FindingRow.job == job)))


def _touching(condition: ColumnElement[bool]) -> Select[str | None]:
    return select(FindingRow.incident_id).where(condition, FindingRow.incident_id.is_not(None))


def findings(
    *,
    node: str | None,
    job: str | None,
    kind: FindingKind | None,
    detector: str | None = None,
    active: bool | None = None,
) -> Select[FindingRow]:
    wanted = {FindingRow.node: node, FindingRow.job: job, FindingRow.kind: kind, FindingRow.detector: detector}
    statement = select(FindingRow).where(*equal_to(wanted))
    if active is not None:  # as the partial index has it
        statement = statement.where(FindingRow.active if active else ~FindingRow.active)
    return statement


def live(session: AnySession) -> list[IncidentRow]:
    """Every incident that is not closed, oldest first."""
    statement = select(IncidentRow).where(IncidentRow.state.in_(_LIVE)).order_by(IncidentRow.opened_at, IncidentRow.id)
    return list(session.scalars(statement))


def due(session: AnySession, now: float, limit: int = 100) -> list[IncidentRow]:
    """Incidents whose deadline has passed, the most overdue first."""
    statement = select(IncidentRow).where(IncidentRow.due_at <= now).order_by(IncidentRow.due_at).limit(limit)
    return list(session.scalars(statement))


def live_of_job(session: AnySession, job: str, *, rank: int | None = None) -> IncidentRow | None:
    """The newest incident of a job that is not closed; one that names ``rank`` before one that does not."""
    statement = (
        select(IncidentRow)
        .where(of_job(job), IncidentRow.state.in_(_LIVE))
        .order_by(IncidentRow.opened_at.desc(), IncidentRow.id.desc())
    )
    if rank is None:
        return session.scalars(statement.limit(1)).one_or_none()
    rows = list(session.scalars(statement.limit(20)))
    return next((row for row in rows if rank in row.ranks), rows[0] if rows else None)


def live_of_node(session: AnySession, node: str) -> list[IncidentRow]:
    """Incidents with a finding about the node that are not closed, oldest first."""
    of_node = select(FindingRow.incident_id).where(FindingRow.node == node)
    statement = select(IncidentRow).where(IncidentRow.id.in_(of_node), IncidentRow.state.in_(_LIVE))
    return list(session.scalars(statement.order_by(IncidentRow.opened_at, IncidentRow.id)))


def live_of_job_in(session: AnySession, job: str, state: IncidentState) -> list[IncidentRow]:
    """A job's incidents in one state, oldest first."""
    statement = select(IncidentRow).where(of_job(job), IncidentRow.state == state)
    return list(session.scalars(statement.order_by(IncidentRow.opened_at, IncidentRow.id)))


def active_findings(session: AnySession, incident_id: str | None = None) -> list[FindingRow]:
    statement = select(FindingRow).where(FindingRow.active, *equal_to({FindingRow.incident_id: incident_id}))
    return list(session.scalars(statement.order_by(FindingRow.time, FindingRow.id)))


def active_keys(session: AnySession, detector: str) -> set[str]:
    """Keys of the detector's active findings."""
    return set(session.scalars(select(FindingRow.key).where(FindingRow.active, FindingRow.detector == detector)))


def hangs(session: AnySession, job: str) -> bool:
    """Whether a hang of the job is found and holds."""
    statement = select(FindingRow.id).where(FindingRow.active, FindingRow.job == job, FindingRow.kind.in_(_HANGS))
    return session.scalar(statement.limit(1)) is not None


def unplaced(
    session: AnySession, recommended_action: RecommendedAction, *, since: float, limit: int = 200
) -> list[FindingRow]:
    """Active information of no incident that asks for ``recommended_action``, the newest."""
    statement = select(FindingRow).where(
        FindingRow.active,
        FindingRow.incident_id.is_(None),
        FindingRow.severity == Severity.INFO.value,
        FindingRow.recommended_action == recommended_action.value,
        FindingRow.time >= since,
    )
    return list(session.scalars(statement.order_by(FindingRow.time.desc()).limit(limit)))


def holds(session: AnySession, incident_id: str) -> bool:
    """Whether anything of the incident is still active; cheap when there is much."""
    statement = select(FindingRow.id).where(FindingRow.active, FindingRow.incident_id == incident_id).limit(1)
    return session.scalar(statement) is not None


def unopened(session: AnySession, detectors: Collection[str]) -> list[FindingRow]:
    """Active faults that these detectors found and that are in no incident, oldest first."""
    statement = select(FindingRow).where(
        FindingRow.active,
        FindingRow.incident_id.is_(None),
        FindingRow.detector.in_(detectors),
        FindingRow.severity != Severity.INFO.value,
        FindingRow.kind.not_in([kind.value for kind in ADVICE]),
    )
    return list(session.scalars(statement.order_by(FindingRow.time, FindingRow.id)))


def active_by_key(session: AnySession, keys: Collection[str]) -> list[FindingRow]:
    """The active rows with one of these keys, oldest first."""
    statement = select(FindingRow).where(FindingRow.key.in_(keys), FindingRow.active)
    return list(session.scalars(statement.order_by(FindingRow.time)))


def found_by_key(session: AnySession, keys: Collection[str], states: Collection[str]) -> list[FindingRow]:
    """Rows with one of these keys in incidents of these states, oldest first."""
    statement = (
        select(FindingRow)
        .join(IncidentRow, IncidentRow.id == FindingRow.incident_id)
        .where(FindingRow.key.in_(keys), IncidentRow.state.in_(states))
    )
    return list(session.scalars(statement.order_by(FindingRow.time)))


def wide_incidents(session: AnySession, more_than: int) -> set[str]:
    """Incidents with more than so many active findings."""
    held = select(FindingRow.incident_id).where(FindingRow.active, FindingRow.incident_id.is_not(None))
    statement = held.group_by(FindingRow.incident_id).having(func.count() > more_than)
    return {incident for incident in session.scalars(statement) if incident is not None}


def nodes_by_kind(session: AnySession, incident_id: str) -> dict[FindingKind, frozenset[str]]:
    """Kind → the nodes about which the incident holds an active finding of it."""
    statement = select(FindingRow.kind, FindingRow.node).where(
        FindingRow.active, FindingRow.incident_id == incident_id, FindingRow.node.is_not(None)
    )
    found: dict[FindingKind, set[str]] = defaultdict(set)
    for kind, node in session.execute(statement.distinct()):
        found[FindingKind(kind)].add(str(node))
    return {kind: frozenset(nodes) for kind, nodes in found.items()}


def held_of(session: AnySession, incident_id: str, *, newest: int, nodes: Collection[str]) -> list[Finding]:
    """The newest that an incident holds, and all that it holds about ``nodes``; oldest first, without series."""
    active = FindingRow.active, FindingRow.incident_id == incident_id
    latest = select(FindingRow.id).where(*active).order_by(FindingRow.time.desc(), FindingRow.id.desc()).limit(newest)
    statement = select(*wire.SHORT).where(*active, or_(FindingRow.id.in_(latest), FindingRow.node.in_(nodes)))
    rows = session.execute(statement.order_by(FindingRow.time, FindingRow.id))
    return [wire.from_columns(row, row.summary) for row in rows]


def held_findings(session: AnySession, *, without: Collection[str] = ()) -> dict[str, list[Finding]]:
    """Incident → what holds of it, oldest first, without series; incidents ``without`` are left out."""
    statement = select(FindingRow.incident_id, *wire.SHORT).where(
        FindingRow.active, FindingRow.incident_id.is_not(None), FindingRow.incident_id.not_in(without)
    )
    found: dict[str, list[Finding]] = defaultdict(list)
    for row in session.execute(statement.order_by(FindingRow.time, FindingRow.id)):
        found[row.incident_id].append(wire.from_columns(row, row.summary))
    return found


def count_active(session: AnySession, incident_id: str) -> int:
    statement = select(func.count()).where(FindingRow.active, FindingRow.incident_id == incident_id)
    return session.scalar(statement) or 0


def oldest_active(session: AnySession, incident_id: str) -> FindingRow | None:
    statement = select(FindingRow).where(FindingRow.active, FindingRow.incident_id == incident_id)
    return session.scalars(statement.order_by(FindingRow.time, FindingRow.id).limit(1)).one_or_none()


def stopped_jobs(session: AnySession, incident_id: str, kinds: Collection[str]) -> set[str]:
    """Jobs about which the incident holds a finding of these kinds."""
    statement = (
        select(FindingRow.job)
        .distinct()
        .where(
            FindingRow.active,
            FindingRow.incident_id == incident_id,
            FindingRow.job.is_not(None),
            FindingRow.kind.in_(kinds),
        )
    )
    return {job for job in session.scalars(statement) if job is not None}


def deactivate(session: WriteSession, incident_id: str, now: float) -> None:
    """End all findings of an incident."""
    session.flush()
    statement = update(FindingRow).where(FindingRow.active, FindingRow.incident_id == incident_id)
    session.execute(statement.values(active=False, cleared_at=now))


def findings_of(session: AnySession, incident_id: str, limit: int | None = None) -> list[FindingRow]:
    """The findings of an incident, oldest first; where there are more than ``limit``, those that hold before others."""
    statement = select(FindingRow).where(FindingRow.incident_id == incident_id)
    rows = session.scalars(statement.order_by(FindingRow.active.desc(), FindingRow.time, FindingRow.id).limit(limit))
    return sorted(rows, key=lambda row: (row.time, row.id))


def count_findings(session: AnySession, incident_id: str) -> int:
    return session.scalar(select(func.count()).where(FindingRow.incident_id == incident_id)) or 0


def timeline_of(session: AnySession, incident_id: str) -> list[TimelineRow]:
    statement = select(TimelineRow).where(TimelineRow.incident_id == incident_id)
    return list(session.scalars(statement.order_by(TimelineRow.time, TimelineRow.id)))


def actions_of(session: AnySession, incident_id: str) -> list[ActionRow]:
    statement = select(ActionRow).where(ActionRow.incident_id == incident_id)
    return list(session.scalars(statement.order_by(ActionRow.started_at, ActionRow.id)))


def device_of(session: AnySession, node: str, name: str) -> DeviceRow | None:
    """The device that an incident names, by its name on the node or its UUID."""
    statement = select(DeviceRow).where(DeviceRow.node == node, (DeviceRow.id == name) | (DeviceRow.uuid == name))
    return session.scalars(statement.limit(1)).one_or_none()


def newest_plan(session: AnySession, incident_id: str) -> PlanRow | None:
    statement = select(PlanRow).where(PlanRow.incident_id == incident_id).order_by(PlanRow.created_at.desc()).limit(1)
    return session.scalars(statement).one_or_none()


def with_recovery(session: AnySession, incidents: Collection[str | None]) -> set[str | None]:
    """Which of the incidents have a recovery."""
    return set(session.scalars(select(RecoveryRow.incident_id).where(RecoveryRow.incident_id.in_(incidents))))


def has_recovery(session: AnySession, incident_id: str) -> bool:
    return session.scalar(select(RecoveryRow.id).where(RecoveryRow.incident_id == incident_id).limit(1)) is not None


def newest_recovery(session: AnySession, incident_id: str) -> RecoveryRow | None:
    statement = select(RecoveryRow).where(RecoveryRow.incident_id == incident_id)
    return session.scalars(statement.order_by(RecoveryRow.failed_at.desc()).limit(1)).one_or_none()


def recoveries_by_plan(session: AnySession, plans: Sequence[PlanRow]) -> dict[str, RecoveryRow]:
    """Plan id → what became of it."""
    ids = [plan.id for plan in plans]
    rows = session.scalars(select(RecoveryRow).where(RecoveryRow.plan_id.in_(ids)))
    return {row.plan_id: row for row in rows if row.plan_id is not None}


def open_by_job(session: AnySession, jobs: Collection[str]) -> dict[str, int]:
    """Job → how many of its incidents are not closed; jobs without are absent."""
    own = select(IncidentRow.job.label("job"), IncidentRow.id.label("id")).where(
        IncidentRow.job.in_(jobs), IncidentRow.state.in_(_LIVE)
    )
    found = (
        select(FindingRow.job, FindingRow.incident_id)
        .join(IncidentRow, IncidentRow.id == FindingRow.incident_id)
        .where(FindingRow.job.in_(jobs), IncidentRow.state.in_(_LIVE))
    )
    both = union(own, found).subquery()
    statement = select(both.c.job, func.count()).group_by(both.c.job)
    return {job: count for job, count in session.execute(statement)}  # noqa: C416 - rows are no tuples to mypy


def open_by_node(session: AnySession, nodes: Collection[str] | None = None) -> dict[str, int]:
    """Node → how many incidents that are not closed touch it; nodes without are absent. All nodes by default."""
    statement = (
        select(FindingRow.node, func.count(FindingRow.incident_id.distinct()))
        .join(IncidentRow, IncidentRow.id == FindingRow.incident_id)
        .where(IncidentRow.state.in_(_LIVE))
        .group_by(FindingRow.node)
    )
    if nodes is not None:
        statement = statement.where(FindingRow.node.in_(nodes))
    return {node: count for node, count in session.execute(statement) if node is not None}


def active_incidents(session: AnySession, limit: int) -> list[IncidentRow]:
    """Open and recovering incidents, and all that need an operator, newest first."""
    statement = select(IncidentRow).where(
        or_(IncidentRow.state.in_((IncidentState.OPEN, IncidentState.RECOVERING)), IncidentRow.needs_operator),
        IncidentRow.state != IncidentState.CLOSED,
    )
    return list(session.scalars(statement.order_by(IncidentRow.opened_at.desc(), IncidentRow.id.desc()).limit(limit)))


def move(session: WriteSession, *, from_id: str, to_id: str) -> None:
    """Give an incident's findings, plans, recoveries and actions to another one; its timeline stays its own."""
    session.flush()
    for table in (FindingRow, PlanRow, RecoveryRow, ActionRow):
        session.execute(update(table).where(table.incident_id == from_id).values(incident_id=to_id))
