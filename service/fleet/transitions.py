"""How a node's state changes. Nothing else in the project writes it.

Invariant: each move is judged by the table and its rules, written by compare-and-set on (state, state_version), kept as
a row of ``node_transitions`` and told to watchers, all in one transaction. Of two who move a node at once one loses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm.attributes import set_committed_value

from mainstay.probes.core_types import HealthState
from mainstay.probes.ids import uuid7
from mainstay.service.common.db import WriteSession
from mainstay.service.common.problem import ConflictError
from mainstay.service.fleet import models
from mainstay.service.fleet.lifecycle import (
    GOES_ON,
    IN_SERVICE,
    OUT_OF_SERVICE,
    NodeDecision,
    NodeFacts,
    NodeTrigger,
    Owner,
    decide,
)
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.stream.changes import Topic, record_change

MAX_REASON: Final = 500
_PATIENCE: Final = 5
"""How often a person's move is proposed again when a measurement came between."""
_MOVED: Final = (
    "state", "state_reason", "state_version", "state_since", "owner", "actor", "drain_deadline_at", "validation_id",
)  # fmt: skip


class NodeStateChangedError(ConflictError):
    slug, title = "node-state-changed", "Node moved meanwhile"


class IllegalMoveError(ConflictError):
    slug, title = "illegal-transition", "Illegal transition"


class NotOurDrainError(ConflictError):
    slug, title = "external-drain", "Drained by another system"


@dataclass(frozen=True, slots=True)
class TransitionActor:
    """Who moves a node: in whose name, and what the history calls them."""

    owner: Owner
    actor: str


THE_MACHINE: Final = TransitionActor(Owner.SYSTEM, models.MACHINE)


def propose(
    session: WriteSession,
    row: NodeRow,
    trigger: NodeTrigger,
    *,
    reason: str,
    now: float,
    known: NodeFacts,
    mover: TransitionActor = THE_MACHINE,
    incident: str | None = None,
    deadline_at: float | None = None,
    validation_id: str | None = None,
) -> NodeDecision:
    """Propose a move; a refusal changes nothing and is no error.

    Args:
        session: the transaction of the move.
        row: the node as read in it.
        trigger: why.
        reason: one line for people.
        now: the service's clock.
        known: what the rules may look at; its state, owner, mover and reason are filled in here.
        mover: who moves it.
        incident: what it is for; what the node was taken out of service for, by default.
        deadline_at: of a drain.
        validation_id: of a validation that it will wait for.
    """
    decision = evaluate(row, trigger, known=known, by=mover.owner, reason=reason)
    if not decision.accepted:
        return decision
    if decision.to.value == row.state and decision.to in IN_SERVICE:
        written = row.state_reason == reason[:MAX_REASON] or _write(session, row, state_reason=reason[:MAX_REASON])
    else:
        end = {"drain_deadline_at": deadline_at, "validation_id": validation_id}
        written = _move(
            session, row, decision.to, trigger, mover=mover, reason=reason, now=now, incident=incident, end=end
        )
    if written:
        return decision
    to = HealthState(row.state)
    return replace(decision, accepted=False, lost=True, to=to, reason="another process changed the state meanwhile")


def evaluate(row: NodeRow, trigger: NodeTrigger, *, known: NodeFacts, by: Owner, reason: str) -> NodeDecision:
    """What ``propose`` would decide; changes nothing."""
    facts = replace(known, state=HealthState(row.state), owner=Owner(row.owner), by=by, reason=reason)
    return decide(facts, trigger)


def require_transition(
    session: WriteSession, row: NodeRow, trigger: NodeTrigger, *, expected_version: int | None = None, **said: Any
) -> NodeRow:
    """The same for one who wants to hear of a refusal; ``said`` as for ``propose``.

    Raises:
        NodeStateChangedError: the node is not at ``expected_version``, or another process changed its state first.
        NotOurDrainError, IllegalMoveError: the life cycle does not allow it.
    """
    if expected_version is not None and expected_version != row.state_version:
        raise NodeStateChangedError(f"{describe(row)}, at version {row.state_version} and not {expected_version}")
    decision = propose(session, row, trigger, **said)
    for _ in range(_PATIENCE):
        if not decision.lost or expected_version is not None or row.state in OUT_OF_SERVICE:
            break
        # What came between was a measurement and no decision: the person's word still stands.
        decision = propose(session, row, trigger, **said)
    if decision.accepted:
        return row
    if decision.lost:
        raise NodeStateChangedError(
            f"{describe(row)}: another process changed its state first. Read the node again and retry."
        )
    error = NotOurDrainError if decision.rules[-1] == "drained_by_system" else IllegalMoveError
    raise error(f"{describe(row)}: {decision.reason}")


def describe(row: NodeRow) -> str:
    """Where a node stands, for a message: state, who decided it, why."""
    return f"node {row.name!r} is {row.state} ({row.actor}: {row.state_reason})"


@dataclass(frozen=True, slots=True)
class Measured:
    """A move of a node in service that a measurement asks for; arguments as of ``propose``."""

    row: NodeRow
    trigger: NodeTrigger
    reason: str
    known: NodeFacts


def propose_all(session: WriteSession, proposals: Sequence[Measured], *, now: float) -> None:
    """Propose moves in the machine's name: as many statements as for one.

    A node that another process moved after its row was read is left alone: the next measurement decides again. Only
    what was found counts in any state, since an event is evaluated once.
    """
    moves = [(each.row, each.trigger, values) for each in proposals if (values := _measured(each, now))]
    if not moves:
        return
    session.flush()
    # Locks instead of compare-and-set: one statement for many rows does not say which of them it missed.
    locked = lock(session, [row.name for row, _, _ in moves])
    lost = [row for row, _, _ in moves if locked.get(row.name) != row.state_version]
    moves = [move for move in moves if move[0] not in lost]
    for row in lost:
        session.expire(row, _MOVED)
    changed = [each for each in proposals if each.row in lost and each.row.name in locked]
    found = [each for each in changed if each.trigger is NodeTrigger.FINDING_OPENED]
    moves += [(each.row, each.trigger, values) for each in found if (values := _measured(each, now))]
    nodes = NodeRow.__table__
    moved = update(nodes).where(nodes.c.name == bindparam("node")).values({name: bindparam(name) for name in _MOVED})  # type: ignore[arg-type]
    if moves:
        session.connection().execute(moved, [{**values, "node": row.name} for row, _, values in moves])
    history = [_transition(row, trigger, values) for row, trigger, values in moves if _is_move(row, values)]
    if history:
        session.execute(insert(TransitionRow), history)
    for row, _, values in moves:
        _follow(session, row, values)


def lock(session: WriteSession, nodes: Collection[str]) -> dict[str, int]:
    """Lock nodes until the transaction ends; their ``state_version``.

    Locks are taken in the order of names, so that two processes wait for each other and do not lock up. Who moves nodes
    in several steps locks all of them first.
    """
    current = select(NodeRow.name, NodeRow.state_version).where(NodeRow.name.in_(nodes))
    rows = session.execute(current.order_by(NodeRow.name).with_for_update())
    return {name: version for name, version in rows}  # noqa: C416 - rows are no tuples to mypy


def _measured(proposal: Measured, now: float) -> dict[str, Any] | None:
    """The columns of ``_MOVED`` after the move; None when it is refused or changes nothing."""
    row, reason = proposal.row, proposal.reason
    facts = replace(proposal.known, state=HealthState(row.state), owner=Owner(row.owner), reason=reason)
    decision = decide(facts, proposal.trigger)
    if not decision.accepted:
        return None
    if decision.to.value != row.state:
        end = {"drain_deadline_at": None, "validation_id": None}
        return _after(row, decision.to, proposal.trigger, mover=THE_MACHINE, reason=reason, now=now) | end
    if reason[:MAX_REASON] == row.state_reason:
        return None
    return {name: getattr(row, name) for name in _MOVED} | {"state_reason": reason[:MAX_REASON]}


def _is_move(row: NodeRow, values: dict[str, Any]) -> bool:
    return bool(values["state_version"] != row.state_version)


def _move(
    session: WriteSession,
    row: NodeRow,
    to: HealthState,
    trigger: NodeTrigger,
    *,
    mover: TransitionActor,
    reason: str,
    now: float,
    incident: str | None,
    end: dict[str, Any],
) -> bool:
    if incident is None and row.state not in IN_SERVICE:
        incident = _incident_of(session, row)
    values = _after(row, to, trigger, mover=mover, reason=reason, now=now)
    transition = _transition(row, trigger, values, incident)
    if not _write(session, row, **values, **end):
        return False
    session.add(TransitionRow(**transition))
    return True


def _after(
    row: NodeRow, to: HealthState, trigger: NodeTrigger, *, mover: TransitionActor, reason: str, now: float
) -> dict[str, Any]:
    return {
        "state": to.value,
        "state_reason": reason[:MAX_REASON],
        "state_version": row.state_version + 1,
        # Whoever waited for a lock read the clock before the move that it waited for: the history stays in order.
        "state_since": now if row.state_since is None else max(now, row.state_since),
        "owner": row.owner if trigger in GOES_ON else mover.owner.value,
        "actor": mover.actor[:200],
    }


def _transition(
    row: NodeRow, trigger: NodeTrigger, values: dict[str, Any], incident: str | None = None
) -> dict[str, Any]:
    """The columns of ``TransitionRow`` for the move of ``row`` to ``values``."""
    return {
        "id": uuid7(), "node": row.name, "version": values["state_version"], "time": values["state_since"],
        "trigger": trigger.value, "from_state": row.state, "to_state": values["state"], "owner": values["owner"],
        "actor": values["actor"], "reason": values["state_reason"], "incident": incident,
    }  # fmt: skip


def _incident_of(session: WriteSession, row: NodeRow) -> str | None:
    """What the node was taken out of service for."""
    latest = (TransitionRow.node == row.name) & (TransitionRow.version == row.state_version)
    return session.scalar(select(TransitionRow.incident).where(latest))


def _write(session: WriteSession, row: NodeRow, **values: Any) -> bool:
    """Compare-and-set; false, with the row read again, when another process changed the node since it was read."""
    statement = (
        update(NodeRow)
        .where(NodeRow.name == row.name, NodeRow.state == row.state, NodeRow.state_version == row.state_version)
        .values(**values)
        .returning(NodeRow.name)
        .execution_options(synchronize_session=False)
    )
    if session.scalar(statement) is None:
        session.refresh(row, attribute_names=_MOVED)
        return False
    _follow(session, row, values)
    return True


def _follow(session: WriteSession, row: NodeRow, values: dict[str, Any]) -> None:
    """Give the row what the database holds now, with nothing to read again or to write, and tell watchers."""
    for name, value in values.items():
        set_committed_value(row, name, value)
    told = {"id": row.name, "state": row.state, "reason": row.state_reason, "owner": row.owner}
    record_change(session, Topic.NODE, told | {"version": row.state_version})
