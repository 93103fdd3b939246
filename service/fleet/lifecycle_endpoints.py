"""Routes that move a node through its life: drain, undrain, quarantine, validate; and what was done before."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from mainstay.probes.core_types import NAME_PATTERN
from mainstay.service.auth.guard import Actor, Reader
from mainstay.service.auth.tokens import Principal
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, WriteSession, Writing, after_commit
from mainstay.service.common.idempotency import Idempotency, IdempotencyGuard
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.fleet import lifecycle_facts, repository, return_to_service
from mainstay.service.fleet import serializers as fleet_serializers
from mainstay.service.fleet.directory import read_nodes
from mainstay.service.fleet.lifecycle import NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.fleet.schemas import DrainBody, DrainRead, MoveBody, NodeRead, TransitionRead, ValidateBody
from mainstay.service.fleet.service import require_node
from mainstay.service.fleet.transitions import TransitionActor, require_transition
from mainstay.service.jobs import migration_requests
from mainstay.service.jobs.repository import by_node
from mainstay.service.jobs.schemas import MigrationRequestRead
from mainstay.service.services import Services, ServicesDep
from mainstay.service.validation import service as validations
from mainstay.service.validation.models import NodeVerdictRow

router = APIRouter(tags=["fleet"])
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
def drain_node(
    name: NodeName,
    body: DrainBody,
    idempotency: Idempotency,
    principal: Actor,
    session: Writing,
    *,
    services: ServicesDep,
    now: Now,
) -> DrainRead:
    """Drain a node: it leaves service when its work has left. You can take over a drain of another system.

    With ``mode: migrate``, Mainstay asks running jobs to move their ranks; the response has one migration request
    per job.
    """
    row = require_node(session, name)
    mover = TransitionActor(Owner.EXTERNAL if body.external else Owner.OPERATOR, principal.name)
    deadline_at = None if body.deadline_seconds is None else now + body.deadline_seconds
    _move(session, services, row, NodeTrigger.DRAIN, body=body, mover=mover, now=now, deadline_at=deadline_at)
    jobs = by_node(session).get(name, ()) if body.mode == "migrate" else ()
    given = [
        migration_requests.create(session, job, node=name, reason=body.reason, actor=principal.name, now=now)
        for job in sorted(jobs)
    ]
    session.flush()
    after_commit(session, lambda: services.wakers.wake("remediation"))
    read = _read(session, services, row, now)
    told = DrainRead(**dict(read), migration_requests=[MigrationRequestRead.model_validate(one) for one in given])
    return idempotency.remember(session, told)


@router.post("/nodes/{name}:undrain", operation_id="undrain_node")
def undrain_node(
    name: NodeName,
    body: MoveBody,
    idempotency: Idempotency,
    principal: Actor,
    session: Writing,
    *,
    services: ServicesDep,
    now: Now,
) -> NodeRead:
    """End a drain, unless a worse state followed or another system drained the node."""
    row = require_node(session, name)
    _move(session, services, row, NodeTrigger.UNDRAIN, body=body, mover=_person(principal), now=now)
    migration_requests.withdraw(session, name, f"{principal.name} took the drain of {name} back", now=now)
    return _answer(session, services, row, idempotency, now)


@router.post("/nodes/{name}:quarantine", operation_id="quarantine_node")
def quarantine_node(
    name: NodeName,
    body: MoveBody,
    idempotency: Idempotency,
    principal: Actor,
    session: Writing,
    *,
    services: ServicesDep,
    now: Now,
) -> NodeRead:
    """Quarantine a node immediately, even if jobs run on it. Only a passed validation returns it to service."""
    row = require_node(session, name)
    _move(session, services, row, NodeTrigger.QUARANTINE, body=body, mover=_person(principal), now=now)
    return _answer(session, services, row, idempotency, now)


@router.post("/nodes/{name}:validate", operation_id="validate_node")
def validate_node(
    name: NodeName,
    body: ValidateBody,
    idempotency: Idempotency,
    principal: Actor,
    session: Writing,
    *,
    services: ServicesDep,
    now: Now,
) -> NodeRead:
    """Request the validation that ends a quarantine. Only a pass returns the node to service."""
    row = require_node(session, name)
    settings = services.settings
    suite = body.suite or return_to_service.suite_for(session.get(NodeVerdictRow, name), settings)
    ordered = validations.order(session, settings, node=name, suite=suite, now=now)
    return_to_service.start_validation(
        session, row, ordered, mover=_person(principal), reason=body.reason, now=now, settings=settings,
        expected_version=body.expected_version,
    )  # fmt: skip
    after_commit(session, lambda: services.wakers.wake("orders"))
    return _answer(session, services, row, idempotency, now)


def _person(principal: Principal) -> TransitionActor:
    return TransitionActor(Owner.OPERATOR, principal.name)


def _move(
    session: WriteSession,
    services: Services,
    row: NodeRow,
    trigger: NodeTrigger,
    *,
    body: MoveBody,
    mover: TransitionActor,
    now: float,
    **said: Any,
) -> None:
    known = lifecycle_facts.gather_facts(
        session, row, now=now, heartbeat_timeout_seconds=services.settings.fleet.heartbeat_timeout_seconds
    )
    require_transition(
        session, row, trigger, expected_version=body.expected_version, reason=body.reason, now=now, known=known,
        mover=mover, **said,
    )  # fmt: skip


def _answer(
    session: WriteSession, services: Services, row: NodeRow, idempotency: IdempotencyGuard, now: float
) -> NodeRead:
    session.flush()
    after_commit(session, lambda: services.wakers.wake("remediation"))
    return idempotency.remember(session, _read(session, services, row, now))


def _read(session: WriteSession, services: Services, row: NodeRow, now: float) -> NodeRead:
    jobs = services.occupancy.by_node(session)
    nodes = read_nodes(session, [row.name])
    return fleet_serializers.serialize_nodes(session, nodes, services.seen, jobs, now)[0]
