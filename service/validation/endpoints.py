"""``/v1/suites``, ``/v1/validations`` and ``/v1/nodes/{name}/tasks``: from an order to a verdict."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy import select

from mainstay.probes.core_types import NAME_PATTERN
from mainstay.service.auth.guard import Actor, Reader, Reporter
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Reporting, Writing, after_commit
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.rows import equal_to
from mainstay.service.common.schemas import Name
from mainstay.service.fleet.service import require_node
from mainstay.service.jobs.occupancy import require_idle
from mainstay.service.localization import service as localization_service
from mainstay.service.operation import Acting
from mainstay.service.services import Services, ServicesDep
from mainstay.service.validation import limits, node_comparison, node_tasks, service
from mainstay.service.validation import serializers as validation_serializers
from mainstay.service.validation.models import ValidationRow
from mainstay.service.validation.node_comparison import ComparisonRead
from mainstay.service.validation.schemas import (
    NodesPreemption,
    NodeTaskList,
    PairTaskRead,
    Preemption,
    ResultsIn,
    SuiteRead,
    ValidationCreate,
    ValidationProgressCreate,
    ValidationRead,
    ValidationTaskRead,
)
from mainstay.service.validation.suites import suites

router = APIRouter(prefix="/v1", tags=["validation"])
Id = Annotated[Name, Path(alias="id")]
MAX_WAIT = 25.0
"""Longest wait for orders: less than the half minute after which proxies give up."""


class SuitePage(Page[SuiteRead]):
    """Suites, the fastest first."""


class ValidationPage(Page[ValidationRead]):
    """Validations, newest first."""


@router.get("/suites", operation_id="list_suites")
async def list_suites(_: Reader) -> SuitePage:
    """The suites, their benchmarks, and the metrics of each."""
    return SuitePage(items=[SuiteRead.model_validate(suite) for suite in suites().values()], next_cursor=None)


@router.post("/validations", operation_id="create_validation", status_code=202, responses=problems(404, 409))
def create_validation(body: ValidationCreate, acting: Acting) -> ValidationRead:
    """Request a suite, or a part of one, on a node, which polls for it. Read the validation again for the verdict.

    Rejected (``node-occupied``) if a job runs on the node, which exclusive benchmarks would disturb; ``allow_occupied``
    runs them nevertheless.
    """
    options = service.ValidationOptions(**body.model_dump(exclude={"node", "suite"}))
    session, settings = acting.session, acting.services.settings
    row = service.order(session, settings, node=body.node, suite=body.suite, now=acting.now, options=options)
    jobs = acting.services.occupancy.by_node(session)
    if limits.occupied_reason(row, jobs):
        require_idle(jobs, [body.node])
    session.flush()
    acting.wake("orders")
    return acting.remember(validation_serializers.serialize_validations(session, [row])[0], 202)


@router.get("/validations", operation_id="list_validations")
def list_validations(
    _: Reader,
    session: Reading,
    page: Paging,
    *,
    node: Annotated[Name | None, Query()] = None,
    sweep: Annotated[Name | None, Query()] = None,
    run: Annotated[Name | None, Query(description="A run of a sweep.")] = None,
    results: Annotated[bool, Query(description="False omits the results, for a run over many nodes.")] = True,
) -> ValidationPage:
    """Validations, newest first."""
    wanted = equal_to({ValidationRow.node: node, ValidationRow.sweep_id: sweep, ValidationRow.run_id: run})
    statement = select(ValidationRow).where(*wanted)
    rows, cursor = paginate(session, statement, keys=(ValidationRow.created_at, ValidationRow.id), page=page)
    return ValidationPage(
        items=validation_serializers.serialize_validations(session, rows, with_results=results), next_cursor=cursor
    )


@router.get("/validations/{id}", operation_id="get_validation")  # noqa: FAST003 - Id is its alias
def get_validation(validation_id: Id, _: Reader, session: Reading) -> ValidationRead:
    """One validation with its results."""
    return validation_serializers.serialize_validations(session, [service.require(session, validation_id)])[0]


@router.get("/validations/{id}/comparison", operation_id="compare_validation")  # noqa: FAST003 - Id is its alias
def compare_validation(
    validation_id: Id,
    _: Reader,
    session: Reading,
    before: Annotated[
        Name | None, Query(description="An earlier validation; the default is the last one with measurements.")
    ] = None,
) -> ComparisonRead:
    """A node before and after a repair or an update.

    Each metric is compared with the past of the node and with the drift of its cohort.
    """
    return node_comparison.read(session, validation_id, before)


@router.post("/validations/{id}/results", operation_id="post_results")  # noqa: FAST003 - Id is its alias
def post_results(
    validation_id: Id, body: ResultsIn, principal: Reporter, session: Reporting, services: ServicesDep, *, now: Now
) -> ValidationRead:
    """Report the results of a validation, from the node that ran it.

    The first results count; a repetition changes nothing.
    """
    row = service.require(session, validation_id)
    principal.require_node(row.node)
    service.store_results(session, row, body, now=now, settings=services.settings)
    session.flush()
    after_commit(session, lambda: services.wakers.wake("tasks"))
    return validation_serializers.serialize_validations(session, [row])[0]


@router.post("/validations/{id}/progress", operation_id="post_progress", status_code=204)  # noqa: FAST003 - alias
def post_progress(
    validation_id: Id, body: ValidationProgressCreate, principal: Reporter, session: Reporting, *, now: Now
) -> Response:
    """Report the progress of a validation, from the node that runs it.

    This does not change a validation that has ended.
    """
    row = service.require(session, validation_id)
    principal.require_node(row.node)
    node_tasks.progress(session, row, body, now=now)
    return Response(status_code=204)


@router.post("/validations/{id}:cancel", operation_id="cancel_validation", status_code=202)  # noqa: FAST003 - alias
def cancel_validation(
    validation_id: Id, body: Preemption, _: Actor, session: Writing, services: ServicesDep, *, now: Now
) -> ValidationRead:
    """Cancel a validation. The node releases its GPUs within 5 s and keeps completed results."""
    row = service.require(session, validation_id)
    node_tasks.cancel(session, row, body.reason, now=now, settings=services.settings)
    session.flush()
    after_commit(session, lambda: services.wakers.wake("orders"))
    return validation_serializers.serialize_validations(session, [row])[0]


@router.post("/validations:preempt", operation_id="preempt_validations", status_code=202)
def preempt_validations(
    body: NodesPreemption, _: Actor, session: Writing, services: ServicesDep, *, now: Now
) -> ValidationPage:
    """Cancel all running and queued validations on these nodes, for a scheduler that needs them for a job."""
    rows = node_tasks.preempt(session, body.nodes, body.reason, now=now, settings=services.settings)
    session.flush()
    after_commit(session, lambda: services.wakers.wake("orders"))
    return ValidationPage(items=validation_serializers.serialize_validations(session, rows), next_cursor=None)


@router.get("/nodes/{name}/tasks", operation_id="claim_node_tasks")
async def claim_node_tasks(
    name: Annotated[str, Path(pattern=NAME_PATTERN)],
    request: Request,
    principal: Reporter,
    services: ServicesDep,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for a task.")] = 0.0,
) -> NodeTaskList:
    """Return the tasks of the node: immediately if there are any, else after ``wait`` seconds."""
    principal.require_node(name)
    with services.waiting.event(name) as event:
        until = asyncio.get_running_loop().time() + wait
        while True:
            event.clear()
            taken = [] if await request.is_disconnected() else await _look(services, name)
            left = until - asyncio.get_running_loop().time()
            if taken or left <= 0 or services.hub.closed:
                return NodeTaskList(items=taken)
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), left)  # the loop "orders" looks for all that wait at once


async def _look(services: Services, node: str) -> list[ValidationTaskRead | PairTaskRead]:
    return await anyio.to_thread.run_sync(_take, services, node, limiter=services.pressure.threads.machines)


def _take(services: Services, node: str) -> list[ValidationTaskRead | PairTaskRead]:
    now = services.clock.now()
    with services.database.reading() as session:
        require_node(session, node)
        if not node_tasks.nodes_with_orders(session, [node], now):
            return []
    with services.database.session() as session:
        jobs = services.occupancy.by_node(session)
        return [
            *node_tasks.claim_tasks(session, node, jobs, now=now, settings=services.settings),
            *localization_service.claim_node_tasks(session, node, jobs, now=now),
        ]
