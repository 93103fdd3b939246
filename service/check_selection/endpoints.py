"""``/v1/validation-plans``: which checks nodes need before a job, and why."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from mainstay.service.audit import record as audit
from mainstay.service.auth.guard import Actor, Reader
from mainstay.service.check_selection import service as check_selection_service
from mainstay.service.check_selection.schemas import ValidationPlanCreate, ValidationPlanRead
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, after_commit
from mainstay.service.common.idempotency import Idempotency
from mainstay.service.common.openapi import problems
from mainstay.service.common.schemas import Name
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["validation"])
Id = Annotated[Name, Path(alias="id")]


@router.post("/validation-plans", operation_id="create_validation_plan", status_code=201, responses=problems(404))
def create_validation_plan(
    body: ValidationPlanCreate, idempotency: Idempotency, _: Actor, request: Request, services: ServicesDep, now: Now
) -> ValidationPlanRead:
    """Choose benchmarks for each node of a job from the history of the nodes; with ``order``, request them too."""
    with services.database.reading() as session:  # learning takes seconds: no writer waits for it
        decision = services.selector.decide(session, body, now)
    with services.database.session() as session:
        audit.attach(request, session)
        row = check_selection_service.keep(session, body, decision, now)
        if body.order:
            check_selection_service.order(session, row, settings=services.settings, now=now)
            after_commit(session, lambda: services.wakers.wake("orders"))
        session.flush()
        return idempotency.remember(session, check_selection_service.read(row), 201)


@router.get("/validation-plans/{id}", operation_id="get_validation_plan")  # noqa: FAST003 - Id is its alias
def get_validation_plan(plan_id: Id, _: Reader, session: Reading) -> ValidationPlanRead:
    """One plan with its reasons."""
    return check_selection_service.read(check_selection_service.require(session, plan_id))
