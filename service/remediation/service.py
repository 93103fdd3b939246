"""How a remediation changes: proposed, judged by the rules, decided once, and kept with what was tried before.

Invariant: its state is written by compare-and-set, so of a person and the machine who decide at once one wins; and
nothing moves a node but ``accept``, which judges the rules anew and drains in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import func, select, update

from probes.words import HealthState, Remedy
from service.fleet.life_cycle import Facts, Owner, Trigger
from service.fleet.models import MACHINE, NodeRow
from service.fleet.moves import Mover, demand
from service.incidents.models import IncidentRow
from service.incidents.service import tell
from service.kit.db import AnySession, WriteSession
from service.kit.ids import new_id
from service.kit.problem import ConflictError, NotFoundError
from service.remediation import moving, repository
from service.remediation.models import RemediationRow
from service.remediation.repository import Candidate
from service.remediation.rules import MOVES, Judged, judge, next_remedy
from service.remediation.schemas import UNDECIDED, RemediationState, Ruling
from service.remediation.survey import Survey
from service.settings import RemediationSettings
from service.stream.changes import Topic, record_change

ENTRY: Final = "remediation"
"""Kind of its entries on an incident's timeline."""
_LOCK: Final = 7_233_004
_DAY: Final = 86_400.0


class UnknownRemediationError(NotFoundError):
    slug, title = "unknown-remediation", "Unknown remediation"


class AlreadyDecidedError(ConflictError):
    slug, title = "already-decided", "Already decided"


class DeniedError(ConflictError):
    slug, title = "remediation-denied", "The rules deny it"


def require(session: AnySession, remediation_id: str) -> RemediationRow:
    """The remediation.

    Raises:
        UnknownRemediationError: there is none with this id.
    """
    row = session.get(RemediationRow, remediation_id)
    if row is None:
        raise UnknownRemediationError(f"no remediation has the id {remediation_id!r}")
    return row


def lock(session: WriteSession) -> None:
    """One decides at a time, whatever the number of processes: the breaker counts what the others did."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def propose(
    session: WriteSession, survey: Survey[WriteSession], found: Candidate, *, first: str | None
) -> RemediationRow:
    """Keep a new proposal, with what was tried before and what the rules say."""
    limits = survey.limits
    hardware = repository.hardware_of(session, found.node, found.device)
    tried = _tried(session, found, hardware, survey.now - limits.comeback_days * _DAY)
    row = RemediationRow(
        id=new_id(),
        incident_id=found.incident,
        node=found.node,
        device=found.device,
        hardware=hardware,
        remedy=_next(found, tried).value,
        state=RemediationState.PROPOSED.value,
        dry_run=not acts(limits, found.remedy),
        reason="",
        rules=[],
        tried=tried,
        created_at=survey.now,
    )
    row.reason = _reason(repository.summary(session, found), row, survey.now)
    spoken = _judge(survey, row.node, row.device, Remedy(row.remedy), first)
    row.rules, row.state = _as_json(spoken), _waits(spoken).value
    session.add(row)
    session.flush()
    _tell(session, row, f"Proposed: {_plan(row)}.{_held(spoken)}", survey.now)
    return row


def acts(limits: RemediationSettings, remedy: Remedy) -> bool:
    """Whether the site lets the machine do it by itself."""
    return limits.migrate == "automatic" if remedy is Remedy.MIGRATE else limits.mode == "automatic"


def _plan(row: RemediationRow) -> str:
    if row.remedy == Remedy.MIGRATE:
        return f"move the ranks off {row.node}"
    return f"take {row.node} out of service, then {_words(row.remedy)}"


def _judge(
    survey: Survey[WriteSession], node: str, device: str | None, remedy: Remedy, first: str | None
) -> tuple[Judged, ...]:
    if remedy is Remedy.MIGRATE:
        return judge(moving.facts(survey, node, device, first), MOVES)
    return judge(survey.facts(node, first=first))


def _next(found: Candidate, tried: Sequence[dict[str, Any]]) -> Remedy:
    if found.remedy is Remedy.MIGRATE:
        return found.remedy
    return next_remedy(found.remedy, tuple(Remedy(entry["remedy"]) for entry in tried))


def _tried(session: AnySession, found: Candidate, hardware: str | None, since: float) -> list[dict[str, Any]]:
    """What did not last. To leave a node mends nothing, so nothing was tried in vain for it."""
    if found.remedy is Remedy.MIGRATE:
        return []
    before = repository.done_before(session, node=found.node, device=found.device, hardware=hardware, since=since)
    return [*(entry for row in before for entry in row.tried), *(_done(row) for row in before)]


def _done(row: RemediationRow) -> dict[str, Any]:
    return {"remedy": row.remedy, "at": row.ended_at, "outcome": "came back"}


def _reason(summary: str, row: RemediationRow, now: float) -> str:
    if not row.tried:
        return summary
    past = ", ".join(f"{_words(e['remedy'])} {max(0.0, now - e['at']) / _DAY:.1f} days ago" for e in row.tried)
    return f"{summary} Tried before: {past}."


def _words(remedy: str) -> str:
    return remedy.replace("_", " ")


def _held(spoken: tuple[Judged, ...]) -> str:
    against = [said.why for said in spoken if said.verdict is not Ruling.ALLOW]
    return f" Held: {'; '.join(against)}." if against else ""


def _as_json(spoken: tuple[Judged, ...]) -> list[Any]:
    return [{**asdict(said), "verdict": said.verdict.value} for said in spoken]


def _waits(spoken: tuple[Judged, ...]) -> RemediationState:
    free = all(said.verdict is Ruling.ALLOW for said in spoken)
    return RemediationState.PROPOSED if free else RemediationState.HELD


def reconsider(
    session: WriteSession, survey: Survey[WriteSession], row: RemediationRow, found: Candidate, *, first: str | None
) -> None:
    """Judge a proposal anew that waits, or whose trouble is back; a stronger finding makes it a stronger one."""
    remedy = _next(found, row.tried)
    if remedy is not Remedy.MIGRATE:  # else what wanted the node empty is gone
        remedy = max(Remedy(row.remedy), remedy, key=lambda r: r.rung)
    spoken = _judge(survey, row.node, row.device, remedy, first)
    values: dict[str, Any] = {"state": _waits(spoken).value, "remedy": remedy.value, "ended_at": None}
    # The numbers in a why change all the time; what matters is which rule says what.
    verdicts = [(rule["name"], rule["verdict"]) for rule in row.rules]
    same = values == {"state": row.state, "remedy": row.remedy, "ended_at": None}
    if same and verdicts == [(s.name, s.verdict) for s in spoken]:
        return
    if remedy.value != row.remedy:
        values["reason"] = _reason(repository.summary(session, found), row, survey.now)
        values["dry_run"] = not acts(survey.limits, remedy)
    _write(session, row, rules=_as_json(spoken), **values)


def accept(
    session: WriteSession, survey: Survey[WriteSession], row: RemediationRow, *, actor: str, reason: str
) -> None:
    """Drain the node for it, or have its ranks moved. What the rules hold a person may let pass, no denial.

    Raises:
        AlreadyDecidedError: somebody was faster.
        DeniedError: a rule denies it.
        NodeMovedError, IllegalMoveError: the node was moved meanwhile.
    """
    _require_undecided(row)
    remedy = Remedy(row.remedy)
    spoken = _judge(survey, row.node, row.device, remedy, None)
    denied = [said for said in spoken if said.verdict is Ruling.DENY]
    if denied:
        raise DeniedError(f"node {row.node!r}: {denied[0].why}")
    _decide(session, row, RemediationState.ACCEPTED, actor=actor, now=survey.now, reason=reason, rules=spoken)
    text = f"{actor} accepts to {_plan(row)}: {reason}"
    if remedy is not Remedy.MIGRATE:
        _drain(session, survey, row, actor=actor)
        text = f"{actor} takes {row.node} out of service for it: {reason}"
    # Whoever accepts a drain wants work to leave: where people are to be asked about moves, that was the question.
    asked = survey.limits.migrate == "ask" and actor != MACHINE
    if remedy is Remedy.MIGRATE or asked or acts(survey.limits, Remedy.MIGRATE):
        told = moving.advise(survey, row, actor=actor)
        text = f"{text} ({told})" if told else text
    _tell(session, row, text, survey.now)


def _drain(session: WriteSession, survey: Survey[WriteSession], row: RemediationRow, *, actor: str) -> None:
    node = session.get(NodeRow, row.node)
    assert node is not None  # a rule has denied it otherwise
    drain_seconds = survey.limits.drain_seconds
    known = Facts(state=HealthState(node.state))  # the rules looked at everything; a drain asks for no more
    demand(
        session, node, Trigger.DRAIN, reason=f"{_words(row.remedy)}: {row.reason}", now=survey.now, known=known,
        mover=Mover(Owner.MACHINE, actor), incident=row.incident_id,
        deadline_at=None if drain_seconds is None else survey.now + drain_seconds,
    )  # fmt: skip
    survey.note_drain(row.node)
    row.version_seen = node.state_version


def dismiss(session: WriteSession, row: RemediationRow, *, actor: str, reason: str, now: float) -> None:
    """Leave the node where it is: nothing is proposed for this incident any more.

    Raises:
        AlreadyDecidedError: somebody was faster.
    """
    _require_undecided(row)
    _decide(session, row, RemediationState.DISMISSED, actor=actor, now=now, reason=reason)
    _tell(session, row, f"{actor} dismissed the proposal for {row.node}: {reason}", now)


def end(session: WriteSession, row: RemediationRow, state: RemediationState, why: str, *, now: float) -> None:
    """It is done, or what it was for is gone."""
    if _write(session, row, state=state.value, ended_at=now, reason=_and(row.reason, why)):
        _tell(session, row, f"{row.node}: {why}", now)


def failed(session: WriteSession, row: RemediationRow, *, now: float) -> None:
    """The remedy did not help: what was tried is kept, and the next rung takes its place."""
    tried = [*row.tried, {"remedy": row.remedy, "at": now, "outcome": "validation failed"}]
    remedy = next_remedy(Remedy(row.remedy), (Remedy(row.remedy),))
    why = f"{_words(row.remedy)} did not help: the validation after it failed. Next: {_words(remedy.value)}."
    if _write(session, row, tried=tried, remedy=remedy.value, reason=_and(row.reason, why)):
        _tell(session, row, f"{row.node}: {why}", now)


def strengthen(session: WriteSession, row: RemediationRow, found: Candidate, *, now: float) -> None:
    """Something worse was found while the node was out of service already."""
    if found.remedy.rung <= Remedy(row.remedy).rung:
        return
    why = repository.summary(session, found)
    if _write(session, row, remedy=found.remedy.value, reason=_and(row.reason, why)):
        _tell(session, row, f"{row.node}: now {_words(row.remedy)}. {why}", now)


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
    rules: tuple[Judged, ...] | None = None,
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
    """Compare-and-set on the state; false, with the row read again, when somebody changed it."""
    session.flush()
    statement = (
        update(RemediationRow)
        .where(RemediationRow.id == row.id, RemediationRow.state == row.state)
        .values(**values)
        .returning(RemediationRow.id)
        .execution_options(synchronize_session=False)
    )
    written = session.scalar(statement) is not None
    session.refresh(row)
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
        data = {"remediation": row.id, "state": row.state, "remedy": row.remedy, "node": row.node}
        tell(session, incident, time=now, kind=ENTRY, text=text[:2000], data=data)
