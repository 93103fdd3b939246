"""Builds messages from what is stored: where, what it costs, and what Mainstay does about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select

from mainstay.probes.core_types import Severity
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.impact import action_of, impact_of, where_of
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.notifications.message import MAX_INCIDENTS, IncidentSummary, Message, NotificationEvent
from mainstay.service.notifications.routes import RoutedIncident

_NODES: Final = 2000
"""Nodes of one incident that routes look at."""


def routed(session: AnySession, row: IncidentRow) -> RoutedIncident:
    """What routes may look at."""
    found = session.execute(
        select(FindingRow.node, FindingRow.job).where(FindingRow.incident_id == row.id).distinct().limit(_NODES)
    ).all()
    nodes = {name for name in (row.node, *(node for node, _ in found)) if name}
    jobs = {name for name in (row.job, *(job for _, job in found)) if name}
    places = session.execute(select(NodeRow.rack, NodeRow.cohort).where(NodeRow.name.in_(nodes)).distinct()).all()
    return RoutedIncident(
        id=row.id,
        severity=Severity(row.severity),
        needs_operator=row.needs_operator,
        kinds=frozenset(row.kinds),
        cause=row.cause,
        nodes=frozenset(nodes),
        racks=frozenset(rack for rack, _ in places if rack),
        cohorts=frozenset(cohort for _, cohort in places if cohort),
        jobs=frozenset(jobs),
    )


def compose(
    session: AnySession,
    rows: Sequence[IncidentRow],
    *,
    group: str,
    event: NotificationEvent,
    base_url: str,
    acknowledge_url: str | None,
    now: float,
) -> Message:
    """The message about these incidents, newest first; at least one."""
    newest = rows[0]
    severity = max((Severity(row.severity) for row in rows), key=lambda severity: severity.level)
    return Message(
        group=group,
        event=event,
        severity=severity,
        title=newest.title,
        incidents=[summarize(session, row, base_url) for row in rows[:MAX_INCIDENTS]],
        incidents_total=len(rows),
        url=_incident_url(base_url, newest) if len(rows) == 1 else f"{base_url}/incidents",
        acknowledge_url=acknowledge_url,
        created_at=now,
    )


def trial_message(name: str, base_url: str, *, actor: str, now: float) -> Message:
    """What the test of a receiver sends."""
    return Message(
        group=f"test-{name}",
        event=NotificationEvent.TEST,
        severity=Severity.INFO,
        title=f"{actor} tests the receiver {name}. No incident is open because of this.",
        incidents=[],
        incidents_total=0,
        url=f"{base_url}/notifications",
        acknowledge_url=None,
        created_at=now,
    )


def _incident_url(base_url: str, row: IncidentRow) -> str:
    return f"{base_url}/incidents/{row.id}"


def summarize(session: AnySession, row: IncidentRow, base_url: str) -> IncidentSummary:
    """One incident of a message."""
    return IncidentSummary(
        id=row.id,
        title=row.title,
        severity=Severity(row.severity),
        state=row.state,
        opened_at=row.opened_at,
        where=where_of(session, row),
        impact=impact_of(session, row),
        action=action_of(session, row),
        url=_incident_url(base_url, row),
        node=row.node,
        job=row.job,
        kinds=list(row.kinds),
    )
