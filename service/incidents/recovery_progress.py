"""What a job's coordinator reports about its recovery, attached to the incident. The service follows; it never leads.

Events match by recovery id, else by job. Invariant: each event is applied once, in the transaction that claims it, and
an event that fits nothing changes no incident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from sqlalchemy import select

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import Event, EventKind, Severity
from mainstay.probes.ids import uuid7
from mainstay.recovery.recovery_plan import RecoveryPlan
from mainstay.service.common.db import WriteSession
from mainstay.service.incidents import node_reboots, repository, stacks
from mainstay.service.incidents.lifecycle import IncidentState, IncidentTrigger
from mainstay.service.incidents.models import ActionRow, IncidentRow, PlanRow
from mainstay.service.incidents.opening import open_incident
from mainstay.service.incidents.plans import PlanError, read_plan
from mainstay.service.incidents.service import Context, add_timeline_entry, propose
from mainstay.service.jobs import strategy_decisions
from mainstay.service.jobs.models import RecoveryRow


def follow(context: Context, event: Event) -> None:
    """Apply one event of a recovery, or a reboot of a node; other kinds are not for us."""
    if event.kind is EventKind.NODE_REBOOTED:
        node_reboots.follow(context.session, event)
    handler = _HANDLERS.get(event.kind)
    if handler is not None and event.job is not None:
        handler(context, event, event.job)


def is_followed(event: Event) -> bool:
    """Whether ``follow`` may change an incident for the event."""
    return (event.kind in _HANDLERS and event.job is not None) or event.kind is EventKind.NODE_REBOOTED


def _recovery_id(event: Event) -> str | None:
    value = event.data.get("recovery")
    return value[:128] if isinstance(value, str) and value else None


def _recovery(context: Context, event: Event, job: str) -> RecoveryRow | None:
    """The recovery that the event names, else the job's newest that is not over."""
    name = _recovery_id(event)
    if name is not None:
        row = context.session.get(RecoveryRow, name)
        return row if row is not None and row.job == job else None
    statement = select(RecoveryRow).where(RecoveryRow.job == job, RecoveryRow.outcome.in_(("recovering", "recovered")))
    return context.session.scalars(statement.order_by(RecoveryRow.failed_at.desc()).limit(1)).one_or_none()


def _incident(context: Context, recovery: RecoveryRow | None, job: str) -> IncidentRow | None:
    if recovery is not None and recovery.incident_id is not None:
        return context.session.get(IncidentRow, recovery.incident_id)
    return repository.live_of_job(context.session, job)


def _recovery_planned(context: Context, event: Event, job: str) -> None:
    try:
        plan = read_plan(event.data)
    except PlanError as error:
        _note(context, event, job, f"A plan arrived that cannot be read: {error}.")
        return
    name = _recovery_id(event) or plan.id
    known = context.session.get(RecoveryRow, name)
    incident = _incident(context, known, job)
    if incident is None or (known is None and incident.state in {IncidentState.VERIFIED, IncidentState.CLOSED}):
        if event.data.get("requested") is True:  # nothing has failed
            _store_plan(context, event, plan, None, name)
            return
        # The plan overtook the news of the failure: the coordinator and the launcher have spools of their own.
        incident = _open_for(context, event, job, plan)
    _store_plan(context, event, plan, incident, name)
    chosen = next((a for a in plan.alternatives if a.strategy is plan.chosen and a.feasible), None)
    data = {"plan": plan.id, "recovery": name, "chosen": plan.chosen, "failed_ranks": list(plan.failed_ranks)}
    if chosen is None:
        text, trigger = f"No recovery strategy is feasible: {plan.explanation}", IncidentTrigger.RECOVERY_FAILED
    else:
        text, trigger = f"Plan chosen: {plan.explanation}", IncidentTrigger.RECOVERY_PLANNED
    _propose(context, incident, trigger, event, text=text, data=data)


def _open_for(context: Context, event: Event, job: str, plan: RecoveryPlan) -> IncidentRow:
    ranks = list(plan.failed_ranks)
    who = ", ".join(str(rank) for rank in ranks) or "unknown"
    return open_incident(
        context,
        kinds=[FindingKind.PROCESS_EXIT.value],
        severity=Severity.CRITICAL.value,
        job=job,
        node=event.node,
        device=None,
        ranks=ranks,
        title=f"Rank(s) {who} of job {job} failed.",
        summary=f"The coordinator of job {job} chose a plan for failed rank(s) {who}.",
    )


def _store_plan(context: Context, event: Event, plan: RecoveryPlan, incident: IncidentRow | None, name: str) -> None:
    session = context.session
    session.merge(
        PlanRow(
            id=plan.id,
            job=plan.job,
            generation=plan.generation,
            created_at=event.time,
            body=msgspec.to_builtins(plan),
            incident_id=None if incident is None else incident.id,
        )
    )
    chosen = next((a for a in plan.alternatives if a.strategy is plan.chosen), None)
    row = session.get(RecoveryRow, name) or _new_recovery(context, event, incident, name)
    row.plan_id, row.planned_at = plan.id, event.time
    row.incident_id = None if incident is None else incident.id
    row.generation, row.failed_ranks, row.outcome = plan.generation, list(plan.failed_ranks), "recovering"
    row.restore_strategy = None if plan.chosen is None else plan.chosen.value
    row.planned_seconds = None if chosen is None else chosen.seconds
    row.decision = strategy_decisions.weighed(event.data)
    session.flush()


def _new_recovery(context: Context, event: Event, incident: IncidentRow | None, name: str) -> RecoveryRow:
    findings = [] if incident is None else repository.active_findings(context.session, incident.id)
    failures = [row.time for row in findings if row.job == event.job]
    row = RecoveryRow(
        id=name,
        job=event.job,
        failed_at=min([event.time, *failures]),
        failed_ranks=[],
        parts={},
        outcome="recovering",
        incident_id=None if incident is None else incident.id,
    )
    context.session.add(row)
    return row


def _action_started(context: Context, event: Event, job: str) -> None:
    _action(context, event, job, state="running")


def _action_finished(context: Context, event: Event, job: str) -> None:
    _action(context, event, job, state="done" if event.data.get("ok") is True else "failed")


def _action(context: Context, event: Event, job: str, *, state: str) -> None:
    recovery = _recovery(context, event, job)
    incident = _incident(context, recovery, job)
    if incident is None:
        return
    session, name = context.session, _text(event.data.get("action"), "unnamed")[:128]
    recovery_id = recovery.id if recovery is not None else (_recovery_id(event) or "")
    row = _running(session, incident.id, recovery_id, name) if state != "running" else None
    if row is None:
        row = ActionRow(id=uuid7(), incident_id=incident.id, recovery=recovery_id, name=name, detail="")
        row.started_at = event.time
        session.add(row)
    row.state = state
    row.detail = _text(event.data.get("detail"), row.detail)
    if state != "running":
        row.finished_at = event.time
        row.seconds = _number(event.data.get("seconds")) or max(0.0, event.time - row.started_at)
    took = "" if row.seconds is None else f" in {row.seconds:.3f} s"
    verb = {"running": "began", "done": "done", "failed": "failed"}[state]
    text = f"{name} {verb}{took}" + (f": {row.detail}" if row.detail else "") + "."
    data = {"action": row.id, "name": name, "state": state, "seconds": row.seconds, "recovery": recovery_id}
    add_timeline_entry(session, incident, time=event.time, kind=event.kind.value, text=text, data=data)


def _running(session: WriteSession, incident_id: str, recovery: str, name: str) -> ActionRow | None:
    statement = select(ActionRow).where(
        ActionRow.incident_id == incident_id,
        ActionRow.recovery == recovery,
        ActionRow.name == name,
        ActionRow.state == "running",
    )
    return session.scalars(statement.order_by(ActionRow.started_at.desc()).limit(1)).one_or_none()


def _recovered(context: Context, event: Event, job: str) -> None:
    recovery = _recovery(context, event, job)
    incident = _incident(context, recovery, job)
    if recovery is None:
        recovery = _new_recovery(context, event, incident, _recovery_id(event) or event.id)
    _note_actuals(recovery, event)
    context.session.flush()
    if incident is None:
        return
    took = "" if recovery.seconds is None else f" in {recovery.seconds:.2f} s"
    lost = "" if recovery.steps_lost is None else f", {_steps(recovery.steps_lost)} lost"
    _propose(
        context, incident, IncidentTrigger.RECOVERED, event, text=f"Training continues{took}{lost}.", data=_small(event)
    )


def _note_actuals(recovery: RecoveryRow, event: Event) -> None:
    seconds = event.data.get("seconds")
    parts = {k: v for k, v in seconds.items() if _number(v) is not None} if isinstance(seconds, dict) else {}
    total = _number(parts.pop("total", None)) if parts else _number(seconds)
    since = recovery.failed_at if recovery.planned_at is None else recovery.planned_at
    recovery.parts = parts
    recovery.seconds = total if total is not None else max(0.0, event.time - since)
    if recovery.planned_at is None and parts:
        recovery.failed_at = min(recovery.failed_at, event.time - sum(parts.values()))
    recovery.recovered_at, recovery.outcome = event.time, "recovered"
    recovery.steps_lost, recovery.epoch = _integer(event.data.get("steps_lost")), _integer(event.data.get("epoch"))
    absent = event.data.get("absent_ranks")
    recovery.absent_ranks = len(absent) if isinstance(absent, list) else 0
    accuracy = strategy_decisions.accuracy(event.data)
    if accuracy is not None:
        recovery.strategy, recovery.predicted_seconds, recovery.excess_cost_seconds = (
            accuracy.strategy,
            accuracy.predicted_s,
            accuracy.excess_cost_s,
        )
        recovery.seconds = accuracy.measured_s
    recovery.decision = recovery.decision or strategy_decisions.weighed(event.data)


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _recovery_failed(context: Context, event: Event, job: str) -> None:
    recovery = _recovery(context, event, job)
    incident = _incident(context, recovery, job)
    why = _text(event.data.get("reason"), "no reason given")
    if recovery is not None:
        recovery.outcome, recovery.reason = "failed", why
        context.session.flush()
    if incident is not None:
        _propose(
            context,
            incident,
            IncidentTrigger.RECOVERY_FAILED,
            event,
            text=f"Recovery failed: {why}.",
            data=_small(event),
        )


def _verified(context: Context, event: Event, job: str) -> None:
    if event.data.get("digest_match") is False:
        # The coordinator compared digests and they differ: what runs now is not what was saved.
        why = "the restored parameters differ from the saved ones"
        _recovery_failed(context, _with_reason(event, why), job)
        return
    recovery = _recovery(context, event, job)
    incident = _incident(context, recovery, job)
    if recovery is not None:
        recovery.verified_at, recovery.outcome = event.time, "verified"
        context.session.flush()
    if incident is not None:
        steps = _integer(event.data.get("steps_committed"))
        text = "Verified: digests match" if event.data.get("digest_match") is True else "Verified"
        text += "." if steps is None else f", {_steps(steps)} committed since."
        _propose(context, incident, IncidentTrigger.VERIFIED, event, text=text, data=_small(event))
        _verify_earlier(context, incident, event, job)


def _verify_earlier(context: Context, incident: IncidentRow, event: Event, job: str) -> None:
    """A recovery that another failure cut short before it was verified is verified by the one that came after."""
    for earlier in repository.live_of_job_in(context.session, job, IncidentState.RECOVERED):
        if earlier.id != incident.id and repository.has_recovery(context.session, earlier.id):
            text = f"Verified by the later recovery of incident {incident.id}."
            _propose(context, earlier, IncidentTrigger.VERIFIED, event, text=text, data={"incident": incident.id})


def _job_finished(context: Context, event: Event, job: str) -> None:
    incident = repository.live_of_job(context.session, job)
    if incident is None:
        return
    state = _text(event.data.get("state"), "finished")
    if state == "failed" and incident.state in {IncidentState.OPEN, IncidentState.RECOVERING, IncidentState.RECOVERED}:
        _propose(
            context, incident, IncidentTrigger.RECOVERY_FAILED, event, text=f"Job {job} failed.", data=_small(event)
        )
    else:
        add_timeline_entry(
            context.session, incident, time=event.time, kind=event.kind.value, text=f"Job {job} {state}.",
            data=_small(event),
        )  # fmt: skip


def _note(context: Context, event: Event, job: str, text: str) -> None:
    incident = repository.live_of_job(context.session, job)
    if incident is not None:
        add_timeline_entry(
            context.session, incident, time=event.time, kind="unreadable", text=text, data={"event": event.id}
        )


def _propose(
    context: Context, incident: IncidentRow, trigger: IncidentTrigger, event: Event, *, text: str, data: dict[str, Any]
) -> None:
    told = data | {"event": event.id}
    propose(context, incident, trigger, at=event.time, text=text[:2000], job=event.job, data=told)


def _with_reason(event: Event, reason: str) -> Event:
    return Event(id=event.id, time=event.time, kind=event.kind, job=event.job, data=event.data | {"reason": reason})


def _small(event: Event) -> dict[str, Any]:
    """The event's data without the parts stored in other tables."""
    return {key: value for key, value in event.data.items() if key not in {"plan", "decision"}}


def _text(value: Any, otherwise: str) -> str:
    return value if isinstance(value, str) and value else otherwise


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


_HANDLERS: Final[dict[EventKind, Callable[[Context, Event, str], None]]] = {
    EventKind.RECOVERY_PLANNED: _recovery_planned,
    EventKind.ACTION_STARTED: _action_started,
    EventKind.ACTION_FINISHED: _action_finished,
    EventKind.RECOVERY_COMPLETED: _recovered,
    EventKind.RECOVERY_FAILED: _recovery_failed,
    EventKind.RECOVERY_VERIFIED: _verified,
    EventKind.JOB_FINISHED: _job_finished,
    **dict.fromkeys(stacks.KINDS, lambda context, event, _: stacks.follow(context.session, event)),
}
