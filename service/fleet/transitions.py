"""How a node's state changes. Nothing else in the project writes it.

Invariant: each move is judged by the table and its rules, written by compare-and-set on (state, state_version), kept as
a row of ``node_transitions`` and told to watchers, all in one transaction. Of two who move a node at once one loses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm.attributes import set_committed_value

from mainstay.probes.core_types import HealthState
from mainstay.service.common.db import WriteSession
from mainstay.service.common.ids import new_id
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
    facts = replace(known, state=HealthState(row.state), owner=Owner(row.owner), by=mover.owner, reason=reason)
    decision = decide(facts, trigger)
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
    owner = row.owner if trigger in GOES_ON else mover.owner.value
    said = {"owner": owner, "actor": mover.actor[:200]}
    if incident is None and row.state not in IN_SERVICE:
        incident = _incident_of(session, row)
    before, version, why = row.state, row.state_version + 1, reason[:MAX_REASON]
    # Whoever waited for a lock read the clock before the move that it waited for: the history stays in order.
    at = now if row.state_since is None else max(now, row.state_since)
    moved = {"state": to.value, "state_reason": why, "state_version": version, "state_since": at}
    if not _write(session, row, **moved, **said, **end):
        return False
    session.add(
        TransitionRow(
            id=new_id(), node=row.name, version=version, time=at, trigger=trigger.value, from_state=before,
            to_state=to.value, reason=why, incident=incident, **said,
        )
    )  # fmt: skip
    return True


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
    for name, value in values.items():  # what the database holds now: nothing to read again, nothing to write
        set_committed_value(row, name, value)
    told = {"id": row.name, "state": row.state, "reason": row.state_reason, "owner": row.owner}
    record_change(session, Topic.NODE, told | {"version": row.state_version})
    return True
