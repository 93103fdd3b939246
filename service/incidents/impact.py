"""What an incident costs, where it is, what is done about it, and what happens if no one acts: a sentence each."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select

from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents import repository
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.service import needs_plan
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.repository import is_over, world_size
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.schemas import RemediationState

_PROPOSALS: Final = {
    RemediationState.PROPOSED.value: "Proposed",
    RemediationState.HELD.value: "Held back",
    RemediationState.ACCEPTED.value: "In progress",
}
_NEXT: Final = {
    IncidentState.RECOVERING: "Mainstay is recovering the job. No one has to act.",
    IncidentState.RECOVERED: "Mainstay checks that the job stays healthy, and then closes the incident.",
    IncidentState.VERIFIED: "Mainstay closes the incident when its findings have ended.",
    IncidentState.CLOSED: "",
}


def next_step(session: AnySession, row: IncidentRow) -> str:
    """What happens next if no one acts; empty for a closed incident."""
    state = IncidentState(row.state)
    waiting = (RemediationState.PROPOSED.value, RemediationState.HELD.value)
    proposal = select(RemediationRow).where(RemediationRow.incident_id == row.id, RemediationRow.state.in_(waiting))
    proposed = session.scalars(proposal.order_by(RemediationRow.created_at).limit(1)).first()
    if proposed is not None and state is not IncidentState.CLOSED:
        what = proposed.recommended_action.replace("_", " ")
        return f"Node {proposed.node} stays as it is until an operator accepts or dismisses the proposal to {what}."
    if row.needs_operator and state is IncidentState.OPEN:
        return "It stays like this until an operator acts."
    return _NEXT.get(state, "Mainstay closes the incident when its findings have ended.")


def where_of(session: AnySession, row: IncidentRow) -> str:
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
    device = repository.device_of(session, node, name)
    if device is None:
        return f"device {name}"
    marks = {"serial": device.serial, "PCI": device.facts.get("pci")}
    known = ", ".join(f"{label} {mark}" for label, mark in marks.items() if mark)
    label = f"GPU {device.index}" if device.kind == "gpu" else f"{device.kind} {device.index}"
    return f"{label} ({known})" if known else label


def impact_of(session: AnySession, row: IncidentRow) -> str:
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


def action_of(session: AnySession, row: IncidentRow) -> str:
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
