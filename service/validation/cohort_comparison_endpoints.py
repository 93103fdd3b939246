"""``/v1/cohort-comparisons``: a cohort before and after an update or a moment."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from mainstay.service.auth.guard import Reader
from mainstay.service.common.db import Reading
from mainstay.service.common.openapi import problems
from mainstay.service.common.schemas import Name, Output, QuerySeconds, ShortText
from mainstay.service.validation import cohort_comparison
from mainstay.service.validation.cohort_comparison import CohortSoftware, UpdateRead

router = APIRouter(prefix="/v1", tags=["validation"])
Cohort = Annotated[ShortText, Query(min_length=1, description="Hardware alone: under any driver.")]
Moment = Annotated[QuerySeconds | None, Query()]


class CohortsRead(Output):
    items: list[CohortSoftware]


@router.get("/cohort-comparisons/cohorts", operation_id="list_measured_cohorts")
def list_cohorts(_: Reader, session: Reading) -> CohortsRead:
    """Measured cohorts with their software, the most recently measured first; at most 500."""
    return CohortsRead(items=cohort_comparison.cohorts(session))


@router.get("/cohort-comparisons", operation_id="compare_cohorts", responses=problems(404))
def compare_cohorts(
    _: Reader,
    session: Reading,
    before: Cohort,
    after: Cohort,
    *,
    node: Annotated[Name | None, Query(description="Only its devices.")] = None,
    at: Annotated[
        QuerySeconds | None, Query(description="Compare runs that ended before this time with those after it.")
    ] = None,
    since: Moment = None,
    until: Moment = None,
) -> UpdateRead:
    """The effect of an update: the median change of each metric with its interval, and the devices that stand out."""
    sides = cohort_comparison.RunSelection(before=before, after=after, node=node, at=at, since=since, until=until)
    return cohort_comparison.read(session, sides)
