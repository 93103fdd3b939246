"""Deadlines of incidents: an incident without progress escalates to an operator, is verified, or closes."""

from __future__ import annotations

from mainstay.service.incidents import repository, service
from mainstay.service.incidents.lifecycle import IncidentState, IncidentTrigger
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.service import Context
from mainstay.service.settings import IncidentSettings


def apply_deadlines(context: Context) -> int:
    """Move every incident whose deadline has passed; how many there were."""
    due = repository.due(context.session, context.now)
    for incident in due:
        _move(context, incident)
    return len(due)


def _move(context: Context, incident: IncidentRow) -> None:
    held = repository.oldest_active(context.session, incident.id)
    planned = repository.has_recovery(context.session, incident.id)
    settings = context.settings.incidents
    match IncidentState(incident.state):
        case IncidentState.VERIFIED if held is not None:
            trigger, text = IncidentTrigger.RELAPSED, f"Still there: {held.evidence['summary']}"
        case IncidentState.VERIFIED:
            trigger, text = IncidentTrigger.QUIET, f"Quiet for {settings.close_after_seconds:g} s: closed."
        case IncidentState.RECOVERED if not planned and held is None:
            stayed = f"What was found stayed away for {settings.clear_after_seconds:g} s."
            trigger, text = IncidentTrigger.STAYED_CLEAR, stayed
        case state:
            trigger, text = IncidentTrigger.OVERDUE, f"{_late(settings, incident, state)}: an operator is needed."
    service.propose(context, incident, trigger, text=text)
    if trigger is IncidentTrigger.QUIET:
        repository.deactivate(context.session, incident.id, context.now)


def _late(settings: IncidentSettings, incident: IncidentRow, state: IncidentState) -> str:
    if state is IncidentState.RECOVERING:
        return f"The recovery did not end within {settings.recovery_timeout_seconds:g} s"
    if state is IncidentState.RECOVERED:
        return f"The recovery was not verified within {settings.verify_timeout_seconds:g} s"
    if service.needs_plan(incident):
        return f"No plan came within {settings.plan_timeout_seconds:g} s"
    return f"It did not clear without action within {settings.escalation_timeout_seconds:g} s"
