"""Changes of a remediation: proposed, evaluated by the rules, decided once, and stored with earlier attempts.

Invariant: its state is written by compare-and-set, so that one wins when an operator and Mainstay decide at once; and
only ``accept`` moves a node: it evaluates the rules again and drains in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from sqlalchemy import func, select

from mainstay.probes.core_types import HealthState, RecommendedAction
from mainstay.probes.ids import uuid7
from mainstay.service.audit.record import record_act
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, NotFoundError
from mainstay.service.common.rows import compare_and_set, require_row
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import MACHINE, NodeRow
from mainstay.service.fleet.transitions import TransitionActor, require_transition
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.service import add_timeline_entry
from mainstay.service.remediation import rank_migration, repository
from mainstay.service.remediation.fleet_view import FleetView
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.repository import Candidate
from mainstay.service.remediation.rules import BY_POLICY, MOVES, RuleResult, asks_jobs, judge, next_action
from mainstay.service.remediation.schemas import UNDECIDED, RemediationState, RuleOutcome
from mainstay.service.settings import RemediationSettings
from mainstay.service.stream.changes import Topic, record_change

ENTRY: Final = "remediation"
"""Kind of its entries on an incident's timeline."""
_LOCK: Final = 7_233_004
_DAY: Final = 86_400.0


class UnknownRemediationError(NotFoundError):
    slug, title = "unknown-remediation", "Unknown remediation"


class AlreadyDecidedError(ConflictError):
    slug, title = "already-decided", "Already decided"


class DeniedError(ConflictError):
    slug, title = "remediation-blocked", "The rules deny it"


def require(session: AnySession, remediation_id: str) -> RemediationRow:
    """The remediation.

    Raises:
        UnknownRemediationError: there is none with this id.
    """
    missing = UnknownRemediationError(f"no remediation has the id {remediation_id!r}")
    return require_row(session, RemediationRow, remediation_id, missing)


def lock(session: WriteSession) -> None:
    """One process decides at a time: the breaker counts the decisions of the others."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def propose(survey: FleetView[WriteSession], found: Candidate, *, first: str | None) -> RemediationRow:
    """Keep a new proposal, with what was tried before and what the rules say."""
    session, limits = survey.session, survey.limits
    hardware = repository.hardware_of(session, found.node, found.device)
    tried = _tried(session, found, hardware, survey.now - limits.recurrence_days * _DAY)
    action, spoken, stays = _choose(survey, found, _next(found, tried), first)
    row = RemediationRow(
        id=uuid7(),
        incident_id=found.incident,
        node=found.node,
        device=found.device,
        hardware=hardware,
        recommended_action=action.value,
        state=_waits(spoken).value,
        dry_run=not is_automatic(limits, action),
        reason="",
        rules=_as_json(spoken),
        tried=tried,
        created_at=survey.now,
    )
    row.reason = _reason(repository.summary(session, found), row, survey.now) + stays
    session.add(row)
    session.flush()
    _tell(session, row, f"Proposed: {_plan(row)}.{_held(spoken)}{stays}", survey.now)
    return row


def is_automatic(limits: RemediationSettings, recommended_action: RecommendedAction) -> bool:
    """Whether the site lets Mainstay carry out the action automatically."""
    migrates = recommended_action is RecommendedAction.MIGRATE_RANKS
    return (limits.migrate if migrates else limits.mode) == "automatic"


def _plan(row: RemediationRow) -> str:
    if row.recommended_action == RecommendedAction.MIGRATE_RANKS:
        return f"move the ranks off {row.node}"
    return f"take {row.node} out of service, then {_words(row.recommended_action)}"


def _choose(
    survey: FleetView[WriteSession], found: Candidate, wanted: RecommendedAction, first: str | None
) -> tuple[RecommendedAction, tuple[RuleResult, ...], str]:
    """The action, what the rules say of it, and why the drain is held where ranks move first.

    Ranks that can leave do not wait for a drain that is held: once an incident they move, as for a milder finding.
    """
    policy = survey.held_by_policy(found.detector)
    planned = wanted, _judge(survey, found.node, found.device, wanted, first=first, policy=policy), ""
    migrate = RecommendedAction.MIGRATE_RANKS
    if wanted is migrate or _waits(planned[1]) is RemediationState.PROPOSED or survey.limits.migrate == "off":
        return planned
    moving = survey.moves(found.node, found.device)
    obstructed = not moving or any(move.obstacle for move in moving)
    if obstructed or repository.has_migrated(survey.session, found.incident, found.node):
        return planned
    moves = _judge(survey, found.node, found.device, migrate, first=first, policy=policy)
    if _waits(moves) is RemediationState.HELD:
        return planned
    return migrate, moves, f" Its ranks move first; the drain is held: {_against(planned[1])}."


def _judge(
    survey: FleetView[WriteSession],
    node: str,
    device: str | None,
    action: RecommendedAction,
    *,
    first: str | None,
    policy: str,
) -> tuple[RuleResult, ...]:
    if action is RecommendedAction.MIGRATE_RANKS:
        return judge(replace(rank_migration.facts(survey, node, device, first), policy=policy), MOVES)
    return judge(replace(survey.facts(node, first=first), policy=policy))


def _next(found: Candidate, tried: Sequence[dict[str, Any]]) -> RecommendedAction:
    if found.recommended_action is RecommendedAction.MIGRATE_RANKS:
        return found.recommended_action
    return next_action(
        found.recommended_action, tuple(RecommendedAction(entry["recommended_action"]) for entry in tried)
    )


def _tried(session: AnySession, found: Candidate, hardware: str | None, since: float) -> list[dict[str, Any]]:
    """Actions that did not last. Moving ranks off a node repairs nothing, so it never counts as a failed action."""
    if found.recommended_action is RecommendedAction.MIGRATE_RANKS:
        return []
    before = repository.done_before(session, node=found.node, device=found.device, hardware=hardware, since=since)
    return [*(entry for row in before for entry in row.tried), *(_done(row) for row in before)]


def _done(row: RemediationRow) -> dict[str, Any]:
    return {"recommended_action": row.recommended_action, "at": row.ended_at, "outcome": "came back"}


def _reason(summary: str, row: RemediationRow, now: float) -> str:
    if not row.tried:
        return summary
    past = ", ".join(
        f"{_words(e['recommended_action'])} {max(0.0, now - e['at']) / _DAY:.1f} days ago" for e in row.tried
    )
    return f"{summary} Tried before: {past}."


def _words(recommended_action: str) -> str:
    return recommended_action.replace("_", " ")


def _held(spoken: tuple[RuleResult, ...]) -> str:
    against = _against(spoken)
    return f" Held: {against}." if against else ""


def _against(spoken: tuple[RuleResult, ...]) -> str:
    return "; ".join(said.reason for said in spoken if said.verdict is not RuleOutcome.ALLOW)


def _as_json(spoken: tuple[RuleResult, ...]) -> list[Any]:
    return [{**asdict(said), "verdict": said.verdict.value} for said in spoken]


def _waits(spoken: tuple[RuleResult, ...]) -> RemediationState:
    free = all(said.verdict is RuleOutcome.ALLOW for said in spoken)
    return RemediationState.PROPOSED if free else RemediationState.HELD


def reconsider(survey: FleetView[WriteSession], row: RemediationRow, found: Candidate, *, first: str | None) -> None:
    """Evaluate again a proposal that waits or whose fault is back; a stronger finding makes it a stronger one."""
    recommended_action = _next(found, row.tried)
    if recommended_action is not RecommendedAction.MIGRATE_RANKS:  # else what wanted the node empty is gone
        recommended_action = max(RecommendedAction(row.recommended_action), recommended_action, key=lambda r: r.level)
    recommended_action, spoken, stays = _choose(survey, found, recommended_action, first)
    values: dict[str, Any] = {
        "state": _waits(spoken).value,
        "recommended_action": recommended_action.value,
        "ended_at": None,
    }
    if recommended_action is RecommendedAction.MIGRATE_RANKS:
        values["device"] = found.device  # whose ranks move
    # The numbers in a why change all the time; what matters is which rule says what.
    verdicts = [(rule["name"], rule["verdict"]) for rule in row.rules]
    same = all(getattr(row, name) == value for name, value in values.items())
    if same and verdicts == [(s.name, s.verdict) for s in spoken]:
        return
    if recommended_action.value != row.recommended_action:
        values["reason"] = _reason(repository.summary(survey.session, found), row, survey.now) + stays
        values["dry_run"] = not is_automatic(survey.limits, recommended_action)
        values |= {"device": found.device, "hardware": repository.hardware_of(survey.session, found.node, found.device)}
    _write(survey.session, row, rules=_as_json(spoken), **values)


def accept(survey: FleetView[WriteSession], row: RemediationRow, *, actor: str, reason: str) -> None:
    """Drain the node for it, or have its ranks moved. What the rules hold a person may let pass, no denial.

    Raises:
        AlreadyDecidedError: another decision came first.
        DeniedError: a rule denies it.
        NodeStateChangedError, IllegalMoveError: the node was moved meanwhile.
    """
    _require_undecided(row)
    recommended_action = RecommendedAction(row.recommended_action)
    held = (str(rule["reason"]) for rule in row.rules if rule["name"] == BY_POLICY and rule["verdict"] == "hold")
    spoken = _judge(survey, row.node, row.device, recommended_action, first=None, policy=next(held, ""))
    denied = [said for said in spoken if said.verdict is RuleOutcome.DENY]
    if denied:
        raise DeniedError(f"node {row.node!r}: {denied[0].reason}")
    session = survey.session
    _decide(session, row, RemediationState.ACCEPTED, actor=actor, now=survey.now, reason=reason, rules=spoken)
    if actor == MACHINE:
        record_act(
            session, at=survey.now, actor=actor, actor_kind="rule", action="accept_remediation",
            target=f"/v1/remediations/{row.id}", detail={"node": row.node, "plan": _plan(row), "reason": reason},
        )  # fmt: skip
    text = f"{actor} accepts to {_plan(row)}: {reason}"
    if recommended_action is not RecommendedAction.MIGRATE_RANKS:
        _drain(survey, row, actor=actor)
        text = f"{actor} takes {row.node} out of service for it: {reason}"
    # Whoever accepts a drain wants work to leave: where people are to be asked about moves, that was the question.
    migrates = recommended_action is RecommendedAction.MIGRATE_RANKS
    if migrates or asks_jobs(survey.limits, is_automatic=actor == MACHINE):
        told = rank_migration.advise(survey, row, actor=actor)
        text = f"{text} ({told})" if told else text
    _tell(session, row, text, survey.now)


def _drain(survey: FleetView[WriteSession], row: RemediationRow, *, actor: str) -> None:
    session = survey.session
    node = session.get(NodeRow, row.node)
    assert node is not None  # a rule has denied it otherwise
    drain_timeout_seconds = survey.limits.drain_timeout_seconds
    known = NodeFacts(state=HealthState(node.state))  # the rules looked at everything; a drain asks for no more
    require_transition(
        session, node, NodeTrigger.DRAIN, reason=f"{_words(row.recommended_action)}: {row.reason}", now=survey.now,
        known=known,
        mover=TransitionActor(Owner.SYSTEM, actor), incident=row.incident_id,
        deadline_at=None if drain_timeout_seconds is None else survey.now + drain_timeout_seconds,
    )  # fmt: skip
    survey.note_drain(row.node)
    row.version_seen = node.state_version


def advise_again(survey: FleetView[WriteSession], row: RemediationRow) -> None:
    """Ask jobs whose ranks are still on the drained node once more, when they can follow."""
    asks = asks_jobs(survey.limits, is_automatic=row.decided_by == MACHINE)
    if asks and (told := rank_migration.advise_again(survey, row)):
        _tell(survey.session, row, f"{row.node}: {told}", survey.now)


def dismiss(session: WriteSession, row: RemediationRow, *, actor: str, reason: str, now: float) -> None:
    """Leave the node where it is: nothing is proposed for this incident any more.

    Raises:
        AlreadyDecidedError: another decision came first.
    """
    _require_undecided(row)
    _decide(session, row, RemediationState.DISMISSED, actor=actor, now=now, reason=reason)
    _tell(session, row, f"{actor} dismissed the proposal for {row.node}: {reason}", now)


def end(session: WriteSession, row: RemediationRow, state: RemediationState, why: str, *, now: float) -> None:
    """It is done, or what it was for is gone."""
    if _write(session, row, state=state.value, ended_at=now, reason=_and(row.reason, why)):
        _tell(session, row, f"{row.node}: {why}", now)


def failed(session: WriteSession, row: RemediationRow, *, now: float) -> None:
    """The action did not help: what was tried is kept, and the next action takes its place."""
    tried = [*row.tried, {"recommended_action": row.recommended_action, "at": now, "outcome": "validation failed"}]
    recommended_action = next_action(
        RecommendedAction(row.recommended_action), (RecommendedAction(row.recommended_action),)
    )
    failed, following = _words(row.recommended_action), _words(recommended_action.value)
    why = f"{failed} did not help: the validation after it failed. Next: {following}."
    if _write(session, row, tried=tried, recommended_action=recommended_action.value, reason=_and(row.reason, why)):
        _tell(session, row, f"{row.node}: {why}", now)


def strengthen(session: WriteSession, row: RemediationRow, found: Candidate, *, now: float) -> None:
    """Something worse was found while the node was out of service already."""
    if found.recommended_action.level <= RecommendedAction(row.recommended_action).level:
        return
    why = repository.summary(session, found)
    if _write(session, row, recommended_action=found.recommended_action.value, reason=_and(row.reason, why)):
        _tell(session, row, f"{row.node}: now {_words(row.recommended_action)}. {why}", now)


def _require_undecided(row: RemediationRow) -> None:
    if RemediationState(row.state) not in UNDECIDED:
        by = "" if row.decided_by is None else f" by {row.decided_by}"
        raise AlreadyDecidedError(f"remediation {row.id} is {row.state}{by}")


def _decide(
    session: WriteSession,
    row: RemediationRow,
    state: RemediationState,
    *,
    actor: str,
    now: float,
    reason: str,
    rules: tuple[RuleResult, ...] | None = None,
) -> None:
    values: dict[str, Any] = {"state": state.value, "decided_at": now, "decided_by": actor[:200]}
    if state is RemediationState.DISMISSED:
        values["ended_at"] = now
    if rules is not None:
        values["rules"] = _as_json(rules)
    said = f"{state.value.capitalize()} by {actor}: {reason}"
    if not _write(session, row, reason=_and(row.reason, said), **values):
        _require_undecided(row)
        raise AlreadyDecidedError(f"remediation {row.id} changed meanwhile; read it again")


def _and(reason: str, more: str) -> str:
    return f"{reason} {more}"[-4000:]


def _write(session: WriteSession, row: RemediationRow, **values: Any) -> bool:
    """Compare-and-set on the state; false, with the row read again, when another process changed it."""
    session.flush()
    written = compare_and_set(session, row, RemediationRow.state == row.state, **values)
    if written:
        told = {"id": row.id, "state": row.state, "node": row.node, "incident": row.incident_id}
        record_change(session, Topic.REMEDIATION, told)
    return written


def _tell(session: WriteSession, row: RemediationRow, text: str, now: float) -> None:
    """On the incident's timeline, and to watchers."""
    told = {"id": row.id, "state": row.state, "node": row.node, "incident": row.incident_id}
    record_change(session, Topic.REMEDIATION, told)
    incident = session.get(IncidentRow, row.incident_id)
    if incident is not None:
        data = {
            "remediation": row.id,
            "state": row.state,
            "recommended_action": row.recommended_action,
            "node": row.node,
        }
        add_timeline_entry(session, incident, time=now, kind=ENTRY, text=text[:2000], data=data)
