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

router = APIRouter(tags=["validation"])
Cohort = Annotated[ShortText, Query(min_length=1, description="Hardware alone: under any driver.")]
Moment = Annotated[QuerySeconds | None, Query()]


class CohortsRead(Output):
    items: list[CohortSoftware]


@router.get("/cohort-comparisons/cohorts", operation_id="list_measured_cohorts")
def list_cohorts(_: Reader, session: Reading) -> CohortsRead:
    """Cohorts that were measured, each with its software, those measured last first; 500 at most."""
    return CohortsRead(items=cohort_comparison.cohorts(session))


@router.get("/cohort-comparisons", operation_id="compare_cohorts", responses=problems(404))
def compare_cohorts(
    _: Reader,
    session: Reading,
    before: Cohort,
    after: Cohort,
    *,
    node: Annotated[Name | None, Query(description="Only its devices.")] = None,
    at: Annotated[QuerySeconds | None, Query(description="Runs that ended before it against those after it.")] = None,
    since: Moment = None,
    until: Moment = None,
) -> UpdateRead:
    """What an update or a moment did: the median change of each metric with its interval, and who stands out."""
    sides = cohort_comparison.RunSelection(before=before, after=after, node=node, at=at, since=since, until=until)
    return cohort_comparison.read(session, sides)
