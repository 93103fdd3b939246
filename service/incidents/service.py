"""How an incident changes. Nothing else in the project writes an incident's state.

Invariant: each change is a compare-and-set on (state, version), leaves an entry on the timeline that names the rules
that applied, and is published to watchers, all in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import Severity
from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, NotFoundError
from mainstay.service.common.rows import compare_and_set, require_row
from mainstay.service.incidents import repository
from mainstay.service.incidents.lifecycle import IncidentDecision, IncidentFacts, IncidentState, IncidentTrigger, decide
from mainstay.service.incidents.models import IncidentRow, TimelineRow
from mainstay.service.settings import Settings
from mainstay.service.stream.changes import Topic, record_change

_STAMP: Final = {
    IncidentState.RECOVERING: "recovering_at",
    IncidentState.RECOVERED: "recovered_at",
    IncidentState.VERIFIED: "verified_at",
    IncidentState.CLOSED: "closed_at",
}
_NEEDS_PLAN: Final = frozenset(
    {
        FindingKind.PROCESS_EXIT,
        FindingKind.NODE_LOST,
        FindingKind.GPU_LOST,
        FindingKind.COMM_HANG,
        FindingKind.NONCOMM_HANG,
    }
)
"""Troubles that stop a job: its coordinator must answer them with a plan."""


class UnknownIncidentError(NotFoundError):
    slug, title = "unknown-incident", "Unknown incident"


class IncidentChangedError(ConflictError):
    slug, title = "incident-changed", "Incident changed meanwhile"


class IllegalTransitionError(ConflictError):
    slug, title = "illegal-transition", "Illegal transition"


@dataclass(frozen=True, slots=True)
class Context:
    """The transaction of a change, the settings of the service, and its clock."""

    session: WriteSession
    settings: Settings
    now: float


def require(session: AnySession, incident_id: str) -> IncidentRow:
    """The incident.

    Raises:
        UnknownIncidentError: there is none with this id.
    """
    missing = UnknownIncidentError(f"no incident has the id {incident_id!r}")
    return require_row(session, IncidentRow, incident_id, missing)


def add_timeline_entry(
    session: WriteSession,
    incident: IncidentRow,
    *,
    time: float,
    kind: str,
    text: str,
    data: dict[str, Any] | None = None,
) -> None:
    """Add one entry to the story and tell watchers."""
    entry = TimelineRow(id=uuid7(), incident_id=incident.id, time=time, kind=kind, text=text, data=data or {})
    session.add(entry)
    told = {"id": incident.id, "state": incident.state, "kind": kind, "job": incident.job, "node": incident.node}
    record_change(session, Topic.INCIDENT, told | {"needs_operator": incident.needs_operator})


def amend(session: WriteSession, incident: IncidentRow, **values: Any) -> None:
    """Compare-and-set: write ``values`` if no other process changed the incident since it was read.

    Raises:
        IncidentChangedError: another process changed it.
    """
    unchanged = (IncidentRow.state == incident.state, IncidentRow.version == incident.version)
    if not compare_and_set(session, incident, *unchanged, reread=False, version=incident.version + 1, **values):
        raise IncidentChangedError(f"incident {incident.id} was changed by someone else; read it again")


def propose(
    context: Context,
    incident: IncidentRow,
    trigger: IncidentTrigger,
    *,
    text: str,
    at: float | None = None,
    reason: str = "",
    job: str | None = None,
    data: dict[str, Any] | None = None,
) -> IncidentDecision:
    """Propose a transition and record the decision, accepted or refused, on the timeline.

    Args:
        context: deadlines count from its clock.
        incident: as read in this transaction.
        trigger: why.
        text: one line for the timeline.
        at: when it happened by the reporter's clock; the service's clock if it happened here.
        reason: the reason that an operator gave.
        job: the job whose coordinator reports it; others that the incident stopped may still stand.
        data: for the timeline entry.
    """
    session = context.session
    facts = _facts(session, incident, reason, job)
    decision = decide(facts, trigger)
    happened = context.now if at is None else at
    entry = (data or {}) | {"trigger": trigger.value, "rules": list(decision.rules), "from": facts.state.value}
    if not decision.accepted:
        refusal = f"{text} Refused: {decision.reason}."
        add_timeline_entry(
            session, incident, time=happened, kind="refused", text=refusal, data=entry | {"reason": decision.reason}
        )
        return decision
    amend(session, incident, **_values(context, incident, decision, at=happened))
    entry |= {"to": decision.to.value} | ({"reason": reason} if reason else {})
    add_timeline_entry(session, incident, time=happened, kind=_kind(decision, trigger), text=text, data=entry)
    return decision


def _facts(session: WriteSession, incident: IncidentRow, reason: str, job: str | None = None) -> IncidentFacts:
    others = set() if job is None else repository.stopped_jobs(session, incident.id, _NEEDS_PLAN) - {job}
    return IncidentFacts(
        state=IncidentState(incident.state),
        active_findings=repository.count_active(session, incident.id),
        has_plan=repository.has_recovery(session, incident.id),
        others_stopped=len(others),
        reason=reason,
    )


def _kind(decision: IncidentDecision, trigger: IncidentTrigger) -> str:
    return "needs_operator" if trigger is IncidentTrigger.OVERDUE and decision.needs_operator else trigger.value


def _values(context: Context, incident: IncidentRow, decision: IncidentDecision, *, at: float) -> dict[str, Any]:
    needs_operator = incident.needs_operator if decision.needs_operator is None else decision.needs_operator
    values: dict[str, Any] = {"state": decision.to.value, "needs_operator": needs_operator, "updated_at": context.now}
    if decision.to.value != incident.state and decision.to in _STAMP:
        # A reporter's clock may lag ours; a state never begins before the incident did.
        values[_STAMP[decision.to]] = max(at, incident.opened_at)
    if decision.to is IncidentState.OPEN and incident.state != IncidentState.OPEN:
        values |= {"acknowledged_at": None, "acknowledged_by": None}  # who took it over saw it end
    planned = repository.has_recovery(context.session, incident.id)
    values["due_at"] = due_after(context, incident, decision.to, needs_operator=needs_operator, planned=planned)
    return values


def due_after(
    context: Context, incident: IncidentRow, state: IncidentState, *, needs_operator: bool, planned: bool
) -> float | None:
    """When the detection loop must check the incident again; None: only an event or an operator changes it."""
    if state is IncidentState.CLOSED or (needs_operator and state is not IncidentState.VERIFIED):
        return None
    settings, now = context.settings.incidents, context.now
    if state is IncidentState.OPEN:
        return now + (settings.plan_timeout_seconds if needs_plan(incident) else settings.escalation_timeout_seconds)
    if state is IncidentState.RECOVERED:
        return now + (settings.verify_timeout_seconds if planned else settings.clear_after_seconds)
    return (
        now
        + {
            IncidentState.RECOVERING: settings.recovery_timeout_seconds,
            IncidentState.VERIFIED: settings.close_after_seconds,
        }[state]
    )


def needs_plan(incident: IncidentRow) -> bool:
    """Whether a job stands still because of it."""
    return incident.job is not None and not _NEEDS_PLAN.isdisjoint(incident.kinds)


def worse(one: str, other: str) -> str:
    """The more severe of two severities."""
    return max(Severity(one), Severity(other), key=lambda severity: severity.level).value


def decide_by_hand(
    context: Context, incident: IncidentRow, trigger: IncidentTrigger, *, text: str, reason: str, actor: str
) -> None:
    """A transition by an operator; its findings are settled with it when the incident closes.

    Raises:
        IllegalTransitionError: the life cycle does not allow it; nothing is written.
    """
    decision = decide(_facts(context.session, incident, reason), trigger)
    if not decision.accepted:
        raise IllegalTransitionError(f"incident {incident.id} is {incident.state}: {decision.reason}")
    if trigger is IncidentTrigger.ACKNOWLEDGED and incident.acknowledged_at is None:
        amend(context.session, incident, acknowledged_at=context.now, acknowledged_by=actor)
    propose(context, incident, trigger, text=text, reason=reason)
    if decision.to is IncidentState.CLOSED:
        # If the fault starts again, it opens a new incident.
        repository.deactivate(context.session, incident.id, context.now)


def assign(context: Context, incident: IncidentRow, assignee: str | None, *, actor: str, comment: str) -> None:
    """Name who works on the incident from now on, or None."""
    before = incident.assignee
    amend(context.session, incident, assignee=assignee)
    whom = f"assigned it to {assignee}" if assignee else "assigned it to no one"
    text = f"{actor} {whom}{f' (before: {before})' if before and before != assignee else ''}."
    data = {"actor": actor, "assignee": assignee}
    said = f"{text} {comment}".strip()
    add_timeline_entry(context.session, incident, time=context.now, kind="assigned", text=said, data=data)


def comment(context: Context, incident: IncidentRow, text: str, *, actor: str) -> None:
    """Add a note to the timeline."""
    data = {"actor": actor}
    add_timeline_entry(context.session, incident, time=context.now, kind="comment", text=f"{actor}: {text}", data=data)
