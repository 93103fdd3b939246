"""Builds messages from what is stored: where, what it costs, and what Mainstay does about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select

from mainstay.probes.core_types import Severity
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.incidents import repository
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.incidents.service import needs_plan
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.repository import is_over, world_size
from mainstay.service.notifications.message import MAX_INCIDENTS, IncidentSummary, Message, NotificationEvent
from mainstay.service.notifications.routes import RoutedIncident
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import RemediationState

_NODES: Final = 2000
"""Nodes of one incident that routes look at."""
_PROPOSALS: Final = {
    RemediationState.PROPOSED.value: "Proposed",
    RemediationState.HELD.value: "Held back",
    RemediationState.ACCEPTED.value: "In progress",
}


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
        where=_where(session, row),
        impact=_impact(session, row),
        action=_action(session, row),
        url=_incident_url(base_url, row),
        node=row.node,
        job=row.job,
        kinds=list(row.kinds),
    )


def _where(session: AnySession, row: IncidentRow) -> str:
    """Such as ``node n17 · GPU 3 (serial 1652, PCI 0000:5d:00.0) · rack r4``."""
    if row.node is None:
        return ""
    parts = [f"node {row.node}"]
    if row.device:
        parts.append(_device(session, row.node, row.device))
    node = session.get(NodeRow, row.node)
    if node is not None and node.rack:
        parts.append(f"rack {node.rack}")
    return " · ".join(parts)


def _device(session: AnySession, node: str, name: str) -> str:
    statement = select(DeviceRow).where(DeviceRow.node == node, (DeviceRow.id == name) | (DeviceRow.uuid == name))
    device = session.scalars(statement.limit(1)).one_or_none()
    if device is None:
        return f"device {name}"
    marks = {"serial": device.serial, "PCI": device.facts.get("pci")}
    known = ", ".join(f"{label} {mark}" for label, mark in marks.items() if mark)
    label = f"GPU {device.index}" if device.kind == "gpu" else f"{device.kind} {device.index}"
    return f"{label} ({known})" if known else label


def _impact(session: AnySession, row: IncidentRow) -> str:
    """What stands still. Empty where the incident names no job: that is not known to be nothing."""
    if row.job is None:
        return ""
    job = session.get(JobRow, row.job)
    name = row.job if job is None else job.name
    ranks = world_size(session, row.job)
    size = f" ({ranks} ranks)" if ranks else ""
    if job is not None and is_over(job):
        return f"job {name}{size} has ended: {job.state}"
    stands = needs_plan(row) and row.state in {IncidentState.OPEN, IncidentState.RECOVERING}
    recovery = repository.newest_recovery(session, row.id)
    if recovery is not None and recovery.seconds is not None:
        lost = f", {recovery.steps_lost} steps lost" if recovery.steps_lost is not None else ""
        return f"job {name}{size} stood still for {recovery.seconds:.1f} s{lost}"
    if stands:
        return f"job {name}{size} stands still"
    return f"job {name}{size} runs on" if row.state == IncidentState.OPEN else f"job {name}{size}"


def _action(session: AnySession, row: IncidentRow) -> str:
    """What was done, or is proposed, and whether an operator must act."""
    parts = []
    recovery = repository.newest_recovery(session, row.id)
    if recovery is not None:
        strategy = (recovery.restore_strategy or "").replace("_", " ")
        parts.append(f"Recovery {recovery.outcome}" + (f" by {strategy}" if strategy else ""))
    statement = select(RemediationRow).where(RemediationRow.incident_id == row.id).order_by(RemediationRow.created_at)
    for proposal in session.scalars(statement.where(RemediationRow.state.in_(_PROPOSALS)).limit(3)):
        what = proposal.recommended_action.replace("_", " ")
        parts.append(f"{_PROPOSALS[proposal.state]}: {what} ({proposal.node})")
    if row.needs_operator:
        parts.append("An operator must act")
    return ". ".join(parts)
