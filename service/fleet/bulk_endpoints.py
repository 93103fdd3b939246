"""Routes that drain, undrain, and validate many nodes at once."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import APIRouter

from mainstay.service.fleet import lifecycle_actions, return_to_service
from mainstay.service.fleet.bulk_moves import NodesAction, move_nodes
from mainstay.service.fleet.bulk_schemas import NodesDrain, NodesMove, NodesMoveRead, NodesValidate
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger
from mainstay.service.fleet.models import NodeRow
from mainstay.service.jobs.models import JobRequestRow
from mainstay.service.operation import Acting, Operation
from mainstay.service.validation.models import NodeVerdictRow

router = APIRouter(prefix="/v1", tags=["fleet"])


@router.post("/nodes:drain", operation_id="drain_nodes")
def drain_nodes(body: NodesDrain, acting: Acting) -> NodesMoveRead:
    """Drain many nodes. Each is decided as by ``/v1/nodes/{name}:drain``; a refused node stops no other.

    More than 10% of the fleet needs ``confirm_count``, the number of nodes in the preview.
    """

    def apply(batch: Operation, row: NodeRow, known: NodeFacts) -> Collection[JobRequestRow]:
        return lifecycle_actions.drain(batch, row, body, reason=body.reason, known=known)

    owner = lifecycle_actions.drain_owner(body)
    return _answer(acting, body, NodesAction(trigger=NodeTrigger.DRAIN, apply=apply, owner=owner))


@router.post("/nodes:undrain", operation_id="undrain_nodes")
def undrain_nodes(body: NodesMove, acting: Acting) -> NodesMoveRead:
    """End the drains of many nodes; ``changed`` of a drain as ``nodes`` undoes it."""

    def apply(batch: Operation, row: NodeRow, known: NodeFacts) -> Collection[JobRequestRow]:
        lifecycle_actions.undrain(batch, row, reason=body.reason, known=known)
        return ()

    return _answer(acting, body, NodesAction(trigger=NodeTrigger.UNDRAIN, apply=apply))


@router.post("/nodes:validate", operation_id="validate_nodes")
def validate_nodes(body: NodesValidate, acting: Acting) -> NodesMoveRead:
    """Request the validations that end quarantines. Nodes in other states are refused."""

    def suite_for(verdict: NodeVerdictRow | None) -> str:
        return body.suite or return_to_service.suite_for(verdict, acting.services.settings)

    def apply(batch: Operation, row: NodeRow, known: NodeFacts) -> Collection[JobRequestRow]:
        lifecycle_actions.validate(batch, row, body.suite, reason=body.reason, known=known)
        return ()

    return _answer(acting, body, NodesAction(trigger=NodeTrigger.VALIDATE, apply=apply, suite_for=suite_for))


def _answer(acting: Operation, body: NodesMove, action: NodesAction) -> NodesMoveRead:
    moved = move_nodes(acting, body, action)
    if moved.changed and not body.preview:
        acting.wake("remediation")
        acting.wake("orders")
    return acting.remember(moved)
