"""What a report reads: jobs, recoveries, incidents, and nodes that overlap a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from sqlalchemy import ColumnElement, Double, case, cast, extract, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.probes.core_types import HealthState
from mainstay.service.auth.models import TeamRow
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.models import IncidentRow, TimelineRow
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.reports.components import component_of
from mainstay.service.reports.reliability import Failure, JobSpan, NodeSpan, Period, Stop

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
        RecoveryRow.outcome, IncidentRow.cause,
    ).outerjoin(IncidentRow, IncidentRow.id == RecoveryRow.incident_id)  # fmt: skip
    if spans:
        statement = statement.where(RecoveryRow.failed_at >= min(span.started_at for span in spans))
    found = defaultdict[str, list[Stop]](list)
    for job, failed_at, recovered_at, parts, steps_lost, outcome, cause in session.execute(statement):
        if job in ends:
            found[job].append(
                Stop(
                    job=job, started_at=failed_at, ended_at=recovered_at or max(failed_at, ends[job]),
                    detect_seconds=float(parts.get("detect", 0.0)), steps_lost=steps_lost or 0,
                    cause=cause or UNKNOWN, succeeded=outcome in {"recovered", "verified"},
                )
            )  # fmt: skip
    return found


def failures(session: AnySession, period: Period) -> list[Failure]:
    """Incidents that opened within the period, without those that turned out to be part of another one."""
    merged = select(TimelineRow.incident_id).where(
        TimelineRow.kind == "merged", TimelineRow.data["trigger"].as_string() == "merged"
    )
    statement = select(
        _seconds(session, IncidentRow.opened_at), _seconds(session, IncidentRow.recovered_at),
        _seconds(session, IncidentRow.closed_at),
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


def teams(session: AnySession) -> dict[str, list[str]]:
    """Team → the patterns of its jobs."""
    rows = session.execute(select(TeamRow.name, TeamRow.jobs).order_by(TeamRow.name))
    return {row.name: row.jobs for row in rows}


def _seconds(session: AnySession, time: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
    """A time as Unix seconds from the database: making a datetime of each first takes a fifth of the report."""
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return cast(extract("epoch", time), Double) if is_postgresql else time.expression


def nodes(session: AnySession, period: Period) -> list[NodeSpan]:
    """All nodes, with the times in which they were out of service."""
    left = defaultdict[str, list[tuple[float, float]]](list)
    since: dict[str, float] = {}
    moment = _seconds(session, TransitionRow.time)
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
    rows = session.execute(select(NodeRow.name, NodeRow.cohort, NodeRow.gpus, _seconds(session, NodeRow.first_seen_at)))
    return [
        NodeSpan(name=name, cohort=cohort, gpus=gpus, first_seen_at=first, out=tuple(left[name]))
        for name, cohort, gpus, first in rows
    ]
