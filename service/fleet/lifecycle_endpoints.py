"""Routes that move a node through its life: drain, undrain, quarantine, validate; and what was done before."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from mainstay.probes.core_types import NAME_PATTERN
from mainstay.service.auth.guard import Reader
from mainstay.service.common.db import Reading
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.fleet import lifecycle_actions, lifecycle_facts, repository
from mainstay.service.fleet import serializers as fleet_serializers
from mainstay.service.fleet.directory import read_nodes
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.fleet.schemas import DrainBody, DrainRead, MoveBody, NodeRead, TransitionRead, ValidateBody
from mainstay.service.fleet.service import require_node
from mainstay.service.fleet.transitions import TransitionActor, require_transition
from mainstay.service.jobs.schemas import JobRequestRead
from mainstay.service.operation import Acting, Operation

router = APIRouter(prefix="/v1", tags=["fleet"])
NodeName = Annotated[str, Path(pattern=NAME_PATTERN)]


class TransitionPage(Page[TransitionRead]):
    """Transitions of a node, newest first."""


@router.get("/nodes/{name}/transitions", operation_id="list_transitions")
def list_transitions(name: NodeName, _: Reader, session: Reading, page: Paging) -> TransitionPage:
    """Every transition of a node: when, from which state to which, by whom, and why."""
    require_node(session, name)
    rows, cursor = paginate(
        session, repository.transitions(name), keys=(TransitionRow.time, TransitionRow.id), page=page
    )
    return TransitionPage(items=[TransitionRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.post("/nodes/{name}:drain", operation_id="drain_node")
def drain_node(name: NodeName, body: DrainBody, acting: Acting) -> DrainRead:
    """Drain a node: it leaves service when its work has left. You can take over a drain of another system.

    With ``mode: migrate``, Mainstay asks running jobs to move their ranks; the response has one migration request
    per job.
    """
    row = require_node(acting.session, name)
    given = lifecycle_actions.drain(
        acting, row, body, reason=body.reason, known=_facts(acting, row), expected_version=body.expected_version
    )
    told = DrainRead(**dict(_read(acting, row)), requests=[JobRequestRead.model_validate(one) for one in given])
    return acting.remember(told)


@router.post("/nodes/{name}:undrain", operation_id="undrain_node")
def undrain_node(name: NodeName, body: MoveBody, acting: Acting) -> NodeRead:
    """End a drain, unless a worse state followed or another system drained the node."""
    row = require_node(acting.session, name)
    lifecycle_actions.undrain(
        acting, row, reason=body.reason, known=_facts(acting, row), expected_version=body.expected_version
    )
    return acting.remember(_read(acting, row))


@router.post("/nodes/{name}:quarantine", operation_id="quarantine_node")
def quarantine_node(name: NodeName, body: MoveBody, acting: Acting) -> NodeRead:
    """Quarantine a node immediately, even if jobs run on it. Only a passed validation returns it to service."""
    row = require_node(acting.session, name)
    require_transition(
        acting.session, row, NodeTrigger.QUARANTINE, expected_version=body.expected_version, reason=body.reason,
        now=acting.now, known=_facts(acting, row), mover=TransitionActor(Owner.OPERATOR, acting.principal.name),
    )  # fmt: skip
    return acting.remember(_read(acting, row))


@router.post("/nodes/{name}:validate", operation_id="validate_node")
def validate_node(name: NodeName, body: ValidateBody, acting: Acting) -> NodeRead:
    """Request the validation that ends a quarantine. Only a pass returns the node to service."""
    row = require_node(acting.session, name)
    lifecycle_actions.validate(acting, row, body.suite, reason=body.reason, expected_version=body.expected_version)
    acting.wake("orders")
    return acting.remember(_read(acting, row))


def _facts(acting: Operation, row: NodeRow) -> NodeFacts:
    return lifecycle_facts.gather_facts(acting.session, row, now=acting.now, settings=acting.services.settings)


def _read(acting: Operation, row: NodeRow) -> NodeRead:
    """The changed node as answered; its change wakes the remediation."""
    acting.session.flush()
    acting.wake("remediation")
    jobs = acting.services.occupancy.by_node(acting.session)
    nodes = read_nodes(acting.session, [row.name])
    return fleet_serializers.serialize_nodes(acting.session, nodes, acting.services.seen, jobs, acting.now)[0]
