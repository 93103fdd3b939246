"""The same transition for many nodes: which ones, what would happen, and what happened to each.

Invariant: each ``BATCH`` nodes have a transaction of their own. It locks them, decides each as the route of one node
does, and moves the accepted ones. A refused node stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import select

from mainstay.probes.core_types import HealthState
from mainstay.service.common.problem import ConflictError, UnprocessableError
from mainstay.service.fleet import lifecycle_facts, transitions
from mainstay.service.fleet.bulk_schemas import MAX_NODES, NodeMoveRead, NodesMove, NodesMoveRead
from mainstay.service.fleet.directory import Fleet
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.node_selection import select_nodes
from mainstay.service.jobs.models import JobRequestRow
from mainstay.service.jobs.schemas import JobRequestRead
from mainstay.service.operation import Operation
from mainstay.service.validation.models import NodeVerdictRow

BATCH: Final = 256
"""Nodes that are moved in one transaction: some tenths of a second."""
CONFIRM_ABOVE: Final = 0.1
"""Ratio of the fleet above which a request needs ``confirm_count``."""


class ConfirmationError(ConflictError):
    slug, title = "confirmation-required", "Confirmation required"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAction:
    """What is done to each node."""

    trigger: NodeTrigger
    apply: Callable[[Operation, NodeRow, NodeFacts], Collection[JobRequestRow]]
    """Move an accepted node in the transaction of its batch."""
    owner: Owner = Owner.OPERATOR
    suite_for: Callable[[NodeVerdictRow | None], str | None] = lambda _: None


def _select(fleet: Fleet, wanted: NodesMove) -> list[str]:
    """Names of the nodes that meet all criteria, in order.

    Raises:
        UnprocessableError: no node has a rack or cohort that is named.
    """
    for criterion, values in (("rack", wanted.racks), ("cohort", wanted.cohorts)):
        unknown = set(values) - {getattr(node, criterion) for node in fleet.nodes.values()}
        if unknown:
            raise UnprocessableError(f"body.{criterion}s: no node has the {criterion} {min(unknown)!r}")
    found = select_nodes(fleet.nodes.values(), wanted, names=wanted.nodes or None)
    return [node.name for node in found]


def move_nodes(acting: Operation, wanted: NodesMove, action: NodesAction) -> NodesMoveRead:
    """Move each node that matches, or tell what would happen.

    Raises:
        UnprocessableError: too many nodes match, or a criterion names an unknown rack or cohort.
        ConfirmationError: ``confirm_count`` is missing, or is not the number of nodes that match.
    """
    with acting.services.database.reading() as session:
        fleet = acting.services.fleet.current(session)
    names = _select(fleet, wanted)
    if len(names) > MAX_NODES:
        raise UnprocessableError(
            f"{len(names)} nodes match, and a request takes at most {MAX_NODES}: narrow the criteria"
        )
    confirmation_required = len(names) > CONFIRM_ABOVE * len(fleet.nodes)
    if not wanted.preview:
        _check_count(wanted, len(names), len(fleet.nodes), required=confirmation_required)
    items = [_unknown(name) for name in sorted(set(wanted.nodes) - fleet.nodes.keys())]
    for start in range(0, len(names), BATCH):
        # The session of the request has not begun its transaction: it only remembers the answer.
        with acting.services.database.session(first=True) as batch:
            items += _move_each(replace(acting, session=batch), names[start : start + BATCH], wanted, action)
    items.sort(key=lambda item: item.node)
    return NodesMoveRead(
        preview=wanted.preview,
        matched=len(names),
        fleet=len(fleet.nodes),
        confirmation_required=confirmation_required,
        changed=[item.node for item in items if item.accepted],
        items=items,
    )


def _check_count(wanted: NodesMove, matched: int, fleet: int, *, required: bool) -> None:
    if wanted.confirm_count is None and required:
        share = f"{matched} of {fleet} nodes match, more than {CONFIRM_ABOVE:.0%} of the fleet"
        raise ConfirmationError(f"{share}: read the preview, then send its count as confirm_count")
    if wanted.confirm_count not in {None, matched}:
        raise ConfirmationError(f"{matched} nodes match now, and not {wanted.confirm_count}: read the preview again")


def _move_each(acting: Operation, names: Collection[str], wanted: NodesMove, action: NodesAction) -> list[NodeMoveRead]:
    if not wanted.preview:
        transitions.lock(acting.session, names)
    statement = select(NodeRow).where(NodeRow.name.in_(names)).execution_options(populate_existing=True)
    rows = list(acting.session.scalars(statement))
    facts = lifecycle_facts.gather_facts_of_nodes(
        acting.session, rows, now=acting.now, settings=acting.services.settings, suite_for=action.suite_for
    )
    with acting.session.no_autoflush:  # all rows of the history are inserted by one statement at the end
        return [_move(acting, row, facts[row.name], wanted, action) for row in rows]


def _move(acting: Operation, row: NodeRow, known: NodeFacts, wanted: NodesMove, action: NodesAction) -> NodeMoveRead:
    reason = wanted.reason or "preview"
    decision = transitions.evaluate(row, action.trigger, known=known, by=action.owner, reason=reason)
    given = action.apply(acting, row, known) if decision.accepted and not wanted.preview else ()
    return NodeMoveRead(
        node=row.name,
        accepted=decision.accepted,
        state=HealthState(row.state),
        detail="" if decision.accepted else decision.reason,
        jobs=list(known.jobs),
        requests=[JobRequestRead.model_validate(one) for one in given],
    )


def _unknown(name: str) -> NodeMoveRead:
    detail = f"no node is called {name!r}"
    return NodeMoveRead(node=name, accepted=False, state=None, detail=detail, jobs=[], requests=[])
