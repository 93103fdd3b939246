"""``/v1/validation-plans``: which checks nodes need before a job, and why."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from service.auth.guard import Actor, Reader
from service.kit.clock import Now
from service.kit.db import Reading, after_commit
from service.kit.idempotency import Idempotency
from service.kit.openapi import problems
from service.kit.schemas import Name
from service.services import ServicesDep
from service.validation import selector
from service.validation.selection_schemas import ValidationPlanCreate, ValidationPlanRead

router = APIRouter(tags=["validation"])
Id = Annotated[Name, Path(alias="id")]


@router.post("/validation-plans", operation_id="create_validation_plan", status_code=201, responses=problems(404))
def create_validation_plan(
    body: ValidationPlanCreate, idempotency: Idempotency, _: Actor, services: ServicesDep, now: Now
) -> ValidationPlanRead:
    """Decide what to run before a job, on each node, from the nodes' past; with ``order``, order it too."""
    with services.database.reading() as session:  # learning takes seconds: no writer waits for it
        decision = services.selector.decide(session, body, now)
    with services.database.session() as session:
        row = selector.keep(session, body, decision, now)
        if body.order:
            selector.order(session, row, settings=services.settings, now=now)
            after_commit(session, lambda: services.wakers.wake("orders"))
        session.flush()
        return idempotency.remember(session, selector.read(row), 201)


@router.get("/validation-plans/{id}", operation_id="get_validation_plan")  # noqa: FAST003 - Id is its alias
def get_validation_plan(plan_id: Id, _: Reader, session: Reading) -> ValidationPlanRead:
    """One plan with its reasons, as it was made."""
    return selector.read(selector.require(session, plan_id))
