"""``/v1/sweeps`` and ``/v1/criteria``: what is checked again and again, and against what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy import select

from mainstay.service.auth.guard import Actor, Admin, Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Writing
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.schemas import Name, ShortText
from mainstay.service.criteria import store as criteria_store
from mainstay.service.criteria.schemas import CriteriaIn, CriteriaLearn, CriterionDetail, CriterionRead
from mainstay.service.operation import Acting, Operation
from mainstay.service.services import ServicesDep
from mainstay.service.validation import sweeps
from mainstay.service.validation.cohorts import within
from mainstay.service.validation.models import CriterionRow, SweepRow
from mainstay.service.validation.schemas import SweepChange, SweepCreate, SweepPreview, SweepRead
from mainstay.service.validation.sweep_preview import preview

router = APIRouter(prefix="/v1", tags=["validation"])
Id = Annotated[Name, Path(alias="id")]


class SweepPage(Page[SweepRead]):
    """Sweeps, newest first."""


class CriterionPage(Page[CriterionRead]):
    """Criteria by cohort, benchmark and metric."""


@router.post("/sweeps", operation_id="create_sweep", status_code=201, responses=problems(404))
def create_sweep(body: SweepCreate, acting: Acting) -> SweepRead:
    """Run a suite on the nodes that meet the criteria at the time of each run: by schedule, once, or on request."""
    return acting.remember(_answer(acting, sweeps.create(acting.session, body, now=acting.now)), 201)


@router.post("/sweeps:preview", operation_id="preview_sweep", responses=problems(404))
def preview_sweep(body: SweepCreate, _: Reader, session: Reading, services: ServicesDep, now: Now) -> SweepPreview:
    """Tell what a run of this sweep would do now: its nodes, how long it would take, and when it would run next."""
    return preview(session, services, body, now=now)


@router.get("/sweeps", operation_id="list_sweeps")
def list_sweeps(_: Reader, session: Reading, services: ServicesDep, page: Paging) -> SweepPage:
    """Sweeps, newest first, with their last runs."""
    rows, cursor = paginate(session, select(SweepRow), keys=(SweepRow.created_at, SweepRow.id), page=page)
    reads = sweeps.serialize_sweeps(session, rows, keep_runs=services.settings.validation.keep_runs)
    return SweepPage(items=reads, next_cursor=cursor)


@router.get("/sweeps/{id}", operation_id="get_sweep")  # noqa: FAST003 - Id is its alias
def get_sweep(sweep_id: Id, _: Reader, session: Reading, services: ServicesDep) -> SweepRead:
    """One sweep with its last runs."""
    row = sweeps.require(session, sweep_id)
    return sweeps.serialize_sweeps(session, [row], keep_runs=services.settings.validation.keep_runs)[0]


@router.patch("/sweeps/{id}", operation_id="change_sweep", responses=problems(409))  # noqa: FAST003 - Id is its alias
def change_sweep(
    sweep_id: Id, body: SweepChange, _: Actor, session: Writing, services: ServicesDep, *, now: Now
) -> SweepRead:
    """Change the sent fields, or turn the sweep off or on. Rejected if the sweep changed since the client read it."""
    row = sweeps.change(session, sweep_id, body, now=now)
    return sweeps.serialize_sweeps(session, [row], keep_runs=services.settings.validation.keep_runs)[0]


@router.post("/sweeps/{id}:run", operation_id="run_sweep", status_code=202)  # noqa: FAST003 - Id is its alias
def run_sweep(sweep_id: Id, acting: Acting) -> SweepRead:
    """Start a run now, in addition to the schedule."""
    row = sweeps.require(acting.session, sweep_id)
    sweeps.start(acting.session, row, now=acting.now)
    acting.wake("tasks")
    return acting.remember(_answer(acting, row), 202)


def _answer(acting: Operation, row: SweepRow) -> SweepRead:
    return sweeps.serialize_sweeps(acting.session, [row], keep_runs=acting.services.settings.validation.keep_runs)[0]


@router.delete("/sweeps/{id}", operation_id="delete_sweep", status_code=204)  # noqa: FAST003 - Id is its alias
def delete_sweep(sweep_id: Id, _: Actor, session: Writing) -> Response:
    """Delete a sweep. Its validations stay."""
    session.delete(sweeps.require(session, sweep_id))
    return Response(status_code=204)


@router.get("/criteria", operation_id="list_criteria")
def list_criteria(
    _: Reader, session: Reading, page: Paging, cohort: Annotated[ShortText | None, Query()] = None
) -> CriterionPage:
    """Criteria by cohort, benchmark and metric. A cohort that names only hardware includes those of every driver."""
    statement = select(CriterionRow)
    if cohort is not None:
        statement = statement.where(within(CriterionRow.cohort, cohort))
    keys = (CriterionRow.cohort, CriterionRow.benchmark, CriterionRow.metric)
    rows, cursor = paginate(session, statement, keys=keys, page=page, descending=False)
    return CriterionPage(items=[CriterionRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.get("/criteria/detail", operation_id="get_criterion", responses=problems(404))
def get_criterion(
    _: Reader,
    session: Reading,
    cohort: Annotated[ShortText, Query(min_length=1)],
    benchmark: Annotated[ShortText, Query(min_length=1)],
    metric: Annotated[ShortText, Query(min_length=1)],
    validation: Annotated[
        Name | None, Query(description="The runs of this validation are included, of any age.")
    ] = None,
) -> CriterionDetail:
    """One criterion with its reference sample and the newest runs."""
    return criteria_store.detail(session, cohort=cohort, benchmark=benchmark, metric=metric, validation=validation)


@router.put("/criteria", operation_id="put_criteria")
def put_criteria(body: CriteriaIn, _: Admin, session: Writing, now: Now) -> CriterionPage:
    """Set criteria. They replace those of the same benchmark, metric, and cohort. Return the stored criteria."""
    rows = [item.model_dump(mode="json") | {"learned_at": now} for item in body.items]
    criteria_store.store(session, rows)
    return _written(rows)


@router.post("/criteria:learn", operation_id="learn_criteria")
def learn_criteria(body: CriteriaLearn, acting: Acting) -> CriterionPage:
    """Learn criteria from stored results of one cohort or of all. Return the learned criteria."""
    rows = criteria_store.learn(acting.session, body.cohort, now=acting.now)
    return acting.remember(_written(rows))


def _written(rows: list[dict[str, Any]]) -> CriterionPage:
    return CriterionPage(items=[CriterionRead.model_validate(row) for row in rows], next_cursor=None)
