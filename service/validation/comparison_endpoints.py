"""``/v1/comparisons``: a cohort before and after an update or a moment."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.auth.guard import Reader
from service.kit.db import Reading
from service.kit.openapi import problems
from service.kit.schemas import Name, Output, QuerySeconds, ShortText
from service.validation import updates
from service.validation.updates import CohortSoftware, UpdateRead

router = APIRouter(tags=["validation"])
Cohort = Annotated[ShortText, Query(min_length=1, description="Hardware alone: under any driver.")]
Moment = Annotated[QuerySeconds | None, Query()]


class CohortsRead(Output):
    items: list[CohortSoftware]


@router.get("/comparisons/cohorts", operation_id="list_measured_cohorts")
def list_cohorts(_: Reader, session: Reading) -> CohortsRead:
    """Cohorts that were measured, each with its software, those measured last first; 500 at most."""
    return CohortsRead(items=updates.cohorts(session))


@router.get("/comparisons", operation_id="compare_cohorts", responses=problems(404))
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
    sides = updates.Sides(before=before, after=after, node=node, at=at, since=since, until=until)
    return updates.read(session, sides)
