"""What happens to an incident when nothing happens: it asks for a human, is verified, or closes."""

from __future__ import annotations

from service.incidents import repository, service
from service.incidents.life_cycle import IncidentState, Trigger
from service.incidents.models import IncidentRow
from service.incidents.progress import Context


def pass_time(context: Context) -> int:
    """Move every incident whose deadline has passed; how many there were."""
    due = repository.due(context.session, context.now)
    for incident in due:
        _move(context, incident)
    return len(due)


def _move(context: Context, incident: IncidentRow) -> None:
    held = repository.active_findings(context.session, incident.id)
    planned = repository.has_recovery(context.session, incident.id)
    match IncidentState(incident.state):
        case IncidentState.VERIFIED if held:
            _propose(context, incident, Trigger.RELAPSED, f"Still there: {held[0].evidence['summary']}")
        case IncidentState.VERIFIED:
            _propose(context, incident, Trigger.QUIET, f"Quiet for {context.settings.quiet_seconds:g} s: closed.")
            service.settle(context.session, incident, context.now)
        case IncidentState.RECOVERED if not planned and not held:
            text = f"What was found stayed away for {context.settings.clear_seconds:g} s."
            _propose(context, incident, Trigger.STAYED_CLEAR, text)
        case state:
            _propose(context, incident, Trigger.OVERDUE, f"{_late(context, incident, state)}: a human is needed.")


def _late(context: Context, incident: IncidentRow, state: IncidentState) -> str:
    settings = context.settings
    if state is IncidentState.ACTING:
        return f"The recovery did not end within {settings.act_seconds:g} s"
    if state is IncidentState.RECOVERED:
        return f"The recovery was not verified within {settings.verify_seconds:g} s"
    if service.needs_plan(incident):
        return f"No plan came within {settings.plan_seconds:g} s"
    return f"It did not clear by itself within {settings.attention_seconds:g} s"


def _propose(context: Context, incident: IncidentRow, trigger: Trigger, text: str) -> None:
    service.propose(context.session, incident, trigger, settings=context.settings, now=context.now, text=text)
