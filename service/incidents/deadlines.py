"""Deadlines of incidents: an incident without progress escalates to an operator, is verified, or closes."""

from __future__ import annotations

from mainstay.service.incidents import repository, service
from mainstay.service.incidents.lifecycle import IncidentState, IncidentTrigger
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.recovery_progress import Context


def apply_deadlines(context: Context) -> int:
    """Move every incident whose deadline has passed; how many there were."""
    due = repository.due(context.session, context.now)
    for incident in due:
        _move(context, incident)
    return len(due)


def _move(context: Context, incident: IncidentRow) -> None:
    held = repository.oldest_active(context.session, incident.id)
    planned = repository.has_recovery(context.session, incident.id)
    match IncidentState(incident.state):
        case IncidentState.VERIFIED if held is not None:
            _propose(context, incident, IncidentTrigger.RELAPSED, f"Still there: {held.evidence['summary']}")
        case IncidentState.VERIFIED:
            _propose(
                context,
                incident,
                IncidentTrigger.QUIET,
                f"Quiet for {context.settings.close_after_seconds:g} s: closed.",
            )
            repository.deactivate(context.session, incident.id, context.now)
        case IncidentState.RECOVERED if not planned and held is None:
            text = f"What was found stayed away for {context.settings.clear_after_seconds:g} s."
            _propose(context, incident, IncidentTrigger.STAYED_CLEAR, text)
        case state:
            _propose(
                context, incident, IncidentTrigger.OVERDUE, f"{_late(context, incident, state)}: an operator is needed."
            )


def _late(context: Context, incident: IncidentRow, state: IncidentState) -> str:
    settings = context.settings
    if state is IncidentState.RECOVERING:
        return f"The recovery did not end within {settings.recovery_timeout_seconds:g} s"
    if state is IncidentState.RECOVERED:
        return f"The recovery was not verified within {settings.verify_timeout_seconds:g} s"
    if service.needs_plan(incident):
        return f"No plan came within {settings.plan_timeout_seconds:g} s"
    return f"It did not clear without action within {settings.escalation_timeout_seconds:g} s"


def _propose(context: Context, incident: IncidentRow, trigger: IncidentTrigger, text: str) -> None:
    service.propose(context.session, incident, trigger, settings=context.settings, now=context.now, text=text)
