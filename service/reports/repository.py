"""What a report reads: jobs, recoveries, incidents, and nodes that overlap a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from sqlalchemy import Select, case, exists, or_, select
from sqlalchemy.orm import aliased

from mainstay.probes.core_types import HealthState, RecommendedAction, Verdict
from mainstay.service.auth.models import TeamRow
from mainstay.service.common.db import AnySession
from mainstay.service.common.rows import unix_seconds
from mainstay.service.fleet.models import DeviceLocationRow, NodeRow, TransitionRow
from mainstay.service.incidents.models import FindingRow, IncidentRow, TimelineRow
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import RemediationState
from mainstay.service.reports.components import component_of
from mainstay.service.reports.reliability import RECURRENCE, Drain, Failure, JobSpan, NodeSpan, Period, Stop
from mainstay.service.validation.models import ValidationRow, ValidationState

UNKNOWN: Final = "unknown"
_OUT: Final = frozenset({HealthState.DRAINING.value, HealthState.QUARANTINED.value, HealthState.VALIDATING.value})


def jobs(session: AnySession, period: Period) -> list[JobSpan]:
    """Jobs that ran within the period. One that does not report any more ended with its last report."""
    end = JobRow.last_seen_at
    statement = select(
        JobRow.id, JobRow.name, JobRow.topology["world_size"].as_integer(), JobRow.started_at, JobRow.finished_at,
        end, JobRow.last_step,
    ).where(JobRow.started_at < period.until, or_(JobRow.finished_at > period.since, end > period.since))  # fmt: skip
    return [
        JobSpan(id=job, name=name, ranks=ranks or 0, started_at=start, ended_at=finished or seen, steps=steps)
        for job, name, ranks, start, finished, seen, steps in session.execute(statement)
    ]


def stops(session: AnySession, spans: list[JobSpan]) -> dict[str, list[Stop]]:
    """Job → its recoveries. One without an end lasts until the job ended."""
    ends = {span.id: span.ended_at for span in spans}
    statement = select(
        RecoveryRow.job, RecoveryRow.failed_at, RecoveryRow.recovered_at, RecoveryRow.parts, RecoveryRow.steps_lost,
        RecoveryRow.outcome, RecoveryRow.absent_ranks, IncidentRow.cause,
    ).outerjoin(IncidentRow, IncidentRow.id == RecoveryRow.incident_id)  # fmt: skip
    if spans:
        statement = statement.where(RecoveryRow.failed_at >= min(span.started_at for span in spans))
    found = defaultdict[str, list[Stop]](list)
    for job, failed_at, recovered_at, parts, steps_lost, outcome, absent, cause in session.execute(statement):
        if job in ends:
            found[job].append(
                Stop(
                    job=job, started_at=failed_at, ended_at=recovered_at or max(failed_at, ends[job]),
                    detect_seconds=float(parts.get("detect", 0.0)), steps_lost=steps_lost or 0,
                    cause=cause or UNKNOWN, succeeded=outcome in {"recovered", "verified"}, absent_ranks=absent,
                )
            )  # fmt: skip
    return found


def failures(session: AnySession, period: Period) -> list[Failure]:
    """Incidents that opened within the period, without those that turned out to be part of another one."""
    merged = select(TimelineRow.incident_id).where(
        TimelineRow.kind == "merged", TimelineRow.data["trigger"].as_string() == "merged"
    )
    statement = select(
        unix_seconds(session, IncidentRow.opened_at), unix_seconds(session, IncidentRow.recovered_at),
        unix_seconds(session, IncidentRow.closed_at),
        IncidentRow.cause, IncidentRow.node, IncidentRow.device, case((IncidentRow.cause.is_(None), IncidentRow.kinds)),
    ).where(
        IncidentRow.opened_at >= period.since, IncidentRow.opened_at < period.until, IncidentRow.id.not_in(merged)
    )  # fmt: skip
    return [
        Failure(
            opened_at=opened, recovered_at=recovered or closed, cause=cause or UNKNOWN, node=node, device=device,
            component=component_of(cause, kinds or ()),
        )
        for opened, recovered, closed, cause, node, device, kinds in session.execute(statement)
    ]  # fmt: skip


def drains(session: AnySession, period: Period) -> list[Drain]:
    """Drains of the period that Mainstay proposed or made for findings."""
    row, later = RemediationRow, aliased(ValidationRow)
    chosen = (
        row.decided_at >= period.since, row.decided_at < period.until, row.state != RemediationState.DISMISSED,
        row.recommended_action != RecommendedAction.MIGRATE_RANKS,
    )  # fmt: skip
    first = (
        select(later.id)
        .where(
            later.node == row.node, later.created_at >= row.decided_at, later.state == ValidationState.DONE,
            later.verdict != Verdict.UNKNOWN,
        ).order_by(later.created_at).limit(1).scalar_subquery()
    )  # fmt: skip
    end, place = ValidationRow.finished_at, DeviceLocationRow
    moved = ((at > row.decided_at) & (at <= end) for at in (place.first_seen_at, place.left_at))
    exchanged = exists().where(place.node == row.node, or_(*moved))
    statement = (
        select(row.node, row.incident_id, row.decided_at, end, ValidationRow.verdict, exchanged, NodeRow.booted_at)
        .join(NodeRow, NodeRow.name == row.node)
        .outerjoin(ValidationRow, ValidationRow.id == first)
    )
    found = session.execute(statement.where(*chosen).order_by(row.node, row.decided_at.desc())).all()
    causes, repeats = _findings(session, select(row.node).where(*chosen))
    made: list[Drain] = []
    again: tuple[str, float] | None = None
    for node, incident, drained, ended, verdict, replaced, booted in found:
        assert drained is not None
        valid = None if again and again[0] == node and ended is not None and ended > again[1] else ended
        again = node, drained
        if not (causes_of := causes.get((incident, node))):
            continue
        until = (valid or 0.0) + RECURRENCE
        made.append(
            Drain(
                drained_at=drained, detectors=frozenset(detector for _, detector in causes_of), validated_at=valid,
                passed=verdict != Verdict.FAIL, repaired=_is_repaired(drained, ended, booted, replaced=replaced),
                recurred=valid is not None and any(
                    time > valid and min(time, opened) <= until
                    for kind, _ in causes_of for time, opened in repeats[node, kind]
                ),
            )
        )  # fmt: skip
    return made


def _is_repaired(drained: float, validated: float | None, booted: float | None, *, replaced: bool) -> bool | None:
    """Only the last boot is stored: one after the validation hides those before it."""
    if validated is None or booted is None or booted > validated:
        return replaced or None
    return replaced or booted > drained


def _findings(
    session: AnySession, drained: Select[str]
) -> tuple[dict[tuple[str, str], set[tuple[str, str]]], dict[tuple[str, str], list[tuple[float, float]]]]:
    """Of drained nodes: (incident, node) → kinds and detectors; (node, kind) → last statement, opening of incident."""
    causes, repeats = defaultdict[Any, set[tuple[str, str]]](set), defaultdict[Any, list[tuple[float, float]]](list)
    statement = select(
        FindingRow.incident_id, FindingRow.node, FindingRow.kind, FindingRow.detector, FindingRow.time,
        IncidentRow.opened_at,
    ).join(IncidentRow).where(FindingRow.node.in_(drained))  # fmt: skip
    for incident, node, kind, detector, time, opened in session.execute(statement):
        causes[incident, node].add((kind, detector))
        repeats[node, kind].append((time, opened))
    return causes, repeats


def teams(session: AnySession) -> dict[str, list[str]]:
    """Team → the patterns of its jobs."""
    rows = session.execute(select(TeamRow.name, TeamRow.jobs).order_by(TeamRow.name))
    return {row.name: row.jobs for row in rows}


def nodes(session: AnySession, period: Period) -> list[NodeSpan]:
    """All nodes, with the times in which they were out of service."""
    left = defaultdict[str, list[tuple[float, float]]](list)
    since: dict[str, float] = {}
    moment = unix_seconds(session, TransitionRow.time)
    statement = select(TransitionRow.node, moment, TransitionRow.from_state, TransitionRow.to_state)
    statement = statement.where(TransitionRow.time < period.until).order_by(TransitionRow.node, TransitionRow.version)
    states = [*_OUT]
    statement = statement.where(or_(TransitionRow.from_state.in_(states), TransitionRow.to_state.in_(states)))
    for node, time, before, after in session.execute(statement):
        if after in _OUT:
            since.setdefault(node, time)
        elif before in _OUT and node in since:
            left[node].append((since.pop(node), time))
    for node, start in since.items():
        left[node].append((start, period.until))
    rows = session.execute(
        select(NodeRow.name, NodeRow.cohort, NodeRow.gpus, unix_seconds(session, NodeRow.first_seen_at))
    )
    return [
        NodeSpan(name=name, cohort=cohort, gpus=gpus, first_seen_at=first, out=tuple(left[name]))
        for name, cohort, gpus, first in rows
    ]
