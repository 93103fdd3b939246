"""``/v1/suites``, ``/v1/validations`` and ``/v1/nodes/{name}/orders``: from an order to a verdict."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import select

from probes.words import NAME_PATTERN
from service.auth.guard import Actor, Reader, Reporter
from service.fleet.service import require_node
from service.kit.clock import Now
from service.kit.db import Reading, Writing, after_commit
from service.kit.idempotency import Idempotency
from service.kit.openapi import problems
from service.kit.pagination import Page, Paging, paginate
from service.kit.schemas import Name
from service.services import Services, ServicesDep
from service.validation import comparison, localisation, orders, reading, service
from service.validation.comparison import ComparisonRead
from service.validation.models import ValidationRow
from service.validation.pair_schemas import PairOrderRead
from service.validation.schemas import (
    NodesPreemption,
    OrderRead,
    OrdersRead,
    Preemption,
    ResultsIn,
    StandingIn,
    SuiteRead,
    ValidationCreate,
    ValidationRead,
)
from service.validation.suites import suites

router = APIRouter(tags=["validation"])
Id = Annotated[Name, Path(alias="id")]
MAX_WAIT = 25.0
"""Longest wait for orders: less than the half minute after which proxies give up."""


class SuitePage(Page[SuiteRead]):
    """Suites, the quickest first."""


class ValidationPage(Page[ValidationRead]):
    """Validations, newest first."""


@router.get("/suites", operation_id="list_suites")
async def list_suites(_: Reader) -> SuitePage:
    """What can be run: suites, their benchmarks and what these measure."""
    return SuitePage(items=[reading.read_suite(suite) for suite in suites().values()], next_cursor=None)


@router.post("/validations", operation_id="create_validation", status_code=202, responses=problems(404))
def create_validation(
    body: ValidationCreate,
    idempotency: Idempotency,
    _: Actor,
    session: Writing,
    services: ServicesDep,
    *,
    now: Now,
) -> ValidationRead:
    """Order a suite, or a part of one, on a node, which fetches it by itself; ask here again for the verdict."""
    wish = service.Wish(benchmarks=body.benchmarks, again=body.again)
    row = service.order(session, services.settings, node=body.node, suite=body.suite, now=now, wish=wish)
    session.flush()
    after_commit(session, lambda: services.wakers.wake("orders"))
    return idempotency.remember(session, reading.read_many(session, [row])[0], 202)


@router.get("/validations", operation_id="list_validations")
def list_validations(
    _: Reader,
    session: Reading,
    page: Paging,
    *,
    node: Annotated[Name | None, Query()] = None,
    sweep: Annotated[Name | None, Query()] = None,
    run: Annotated[Name | None, Query(description="A run of a sweep.")] = None,
    results: Annotated[bool, Query(description="False leaves the results out, as for a run over many nodes.")] = True,
) -> ValidationPage:
    """Validations, newest first."""
    statement = select(ValidationRow)
    if node is not None:
        statement = statement.where(ValidationRow.node == node)
    if sweep is not None:
        statement = statement.where(ValidationRow.sweep_id == sweep)
    if run is not None:
        statement = statement.where(ValidationRow.run_id == run)
    rows, cursor = paginate(session, statement, keys=(ValidationRow.created_at, ValidationRow.id), page=page)
    return ValidationPage(items=reading.read_many(session, rows, with_results=results), next_cursor=cursor)


@router.get("/validations/{id}", operation_id="get_validation")  # noqa: FAST003 - Id is its alias
def get_validation(validation_id: Id, _: Reader, session: Reading) -> ValidationRead:
    """One validation with its results."""
    return reading.read_many(session, [service.require(session, validation_id)])[0]


@router.get("/validations/{id}/comparison", operation_id="compare_validation")  # noqa: FAST003 - Id is its alias
def compare_validation(
    validation_id: Id,
    _: Reader,
    session: Reading,
    before: Annotated[Name | None, Query(description="An earlier validation; else the last that measured.")] = None,
) -> ComparisonRead:
    """A node before and after a repair or an update: each metric against its own past, as its cohort wanders."""
    return comparison.read(session, validation_id, before)


@router.post("/validations/{id}/results", operation_id="post_results")  # noqa: FAST003 - Id is its alias
def post_results(
    validation_id: Id, body: ResultsIn, principal: Reporter, session: Writing, services: ServicesDep, *, now: Now
) -> ValidationRead:
    """Results of a validation, from the node that was to run it. The first results count; a repetition is harmless."""
    row = service.require(session, validation_id)
    principal.require_node(row.node)
    service.accept(session, row, body, now=now, settings=services.settings)
    session.flush()
    after_commit(session, lambda: services.wakers.wake("tasks"))
    return reading.read_many(session, [row])[0]


@router.post("/validations/{id}/progress", operation_id="post_progress", status_code=204)  # noqa: FAST003 - alias
def post_progress(validation_id: Id, body: StandingIn, principal: Reporter, session: Writing, *, now: Now) -> Response:
    """How far a validation is, from the node that runs it. What has ended already is not changed by it."""
    row = service.require(session, validation_id)
    principal.require_node(row.node)
    orders.progress(session, row, body, now=now)
    return Response(status_code=204)


@router.post("/validations/{id}:cancel", operation_id="cancel_validation", status_code=202)  # noqa: FAST003 - alias
def cancel_validation(
    validation_id: Id, body: Preemption, _: Actor, session: Writing, services: ServicesDep, *, now: Now
) -> ValidationRead:
    """Call a validation off: the node gives its GPUs back within five seconds and keeps what it measured."""
    row = service.require(session, validation_id)
    orders.cancel(session, row, body.reason, now=now, settings=services.settings)
    session.flush()
    after_commit(session, lambda: services.wakers.wake("orders"))
    return reading.read_many(session, [row])[0]


@router.post("/validations:preempt", operation_id="preempt_validations", status_code=202)
def preempt_validations(
    body: NodesPreemption, _: Actor, session: Writing, services: ServicesDep, *, now: Now
) -> ValidationPage:
    """Call off whatever runs or waits on these nodes, as a scheduler does that wants them for a job."""
    rows = orders.preempt(session, body.nodes, body.reason, now=now, settings=services.settings)
    session.flush()
    after_commit(session, lambda: services.wakers.wake("orders"))
    return ValidationPage(items=reading.read_many(session, rows), next_cursor=None)


@router.get("/nodes/{name}/orders", operation_id="take_orders")
async def take_orders(
    name: Annotated[str, Path(pattern=NAME_PATTERN)],
    request: Request,
    principal: Reporter,
    services: ServicesDep,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for an order.")] = 0.0,
) -> OrdersRead:
    """What the node is to do. The answer comes at once when there is something, else after ``wait`` seconds."""
    principal.require_node(name)
    with services.waiting.bell(name) as bell:
        until = asyncio.get_running_loop().time() + wait
        while True:
            bell.clear()
            taken = [] if await request.is_disconnected() else await run_in_threadpool(_take, services, name)
            left = until - asyncio.get_running_loop().time()
            if taken or left <= 0 or services.hub.closed:
                return OrdersRead(items=taken)
            await _ring(bell, left)


async def _ring(bell: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(bell.wait(), min(seconds, 5.0))  # now and then look anyway: a lost order comes again
    except TimeoutError:
        return


def _take(services: Services, node: str) -> list[OrderRead | PairOrderRead]:
    now = services.clock.now()
    with services.database.reading() as session:
        require_node(session, node)
        if not orders.has_orders(session, node, now) and not localisation.nodes_with_orders(session, [node], now):
            return []
    with services.database.session() as session:
        return [*orders.take_orders(session, node, now=now), *localisation.take_orders(session, node, now=now)]
