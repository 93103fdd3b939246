"""``/v1/reports``: what failures cost over a time."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from mainstay.service.auth.guard import Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.reports import service
from mainstay.service.reports.reliability import Period
from mainstay.service.reports.schemas import ReliabilityRead

router = APIRouter(prefix="/v1", tags=["reports"])
_DAY: Final = 86_400.0
_MAX_DAYS: Final = 400
Moment = Annotated[float | None, Query(ge=0, le=1e11)]
Minutes = Annotated[float, Query(ge=0, le=7 * 24 * 60)]


@router.get("/reports/reliability", operation_id="get_reliability_report")
def get_reliability(
    _: Reader,
    session: Reading,
    now: Now,
    *,
    since: Moment = None,
    until: Moment = None,
    restart_minutes: Minutes = 10.0,
    checkpoint_minutes: Minutes = 60.0,
) -> ReliabilityRead:
    """What failures cost between ``since`` and ``until`` (the default is the last 30 days), and in the time before.

    ``restart_minutes`` and ``checkpoint_minutes`` say what a restart without Mainstay would cost.
    """
    return service.report(
        session, _period(since, until, now), restart_seconds=restart_minutes * 60,
        checkpoint_seconds=checkpoint_minutes * 60,
    )  # fmt: skip


@router.get(
    "/reports/reliability.csv",
    operation_id="get_reliability_csv",
    response_class=Response,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def get_reliability_csv(
    _: Reader, session: Reading, now: Now, *, since: Moment = None, until: Moment = None
) -> Response:
    """The jobs of the report as CSV, one line each."""
    found = service.report(session, _period(since, until, now), restart_seconds=0.0, checkpoint_seconds=0.0)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["job", "name", "ranks", "hours", "ettr", "recoveries", "failed_recoveries", "steps_lost",
                     "lost_gpu_hours"])  # fmt: skip
    for job in found.jobs:
        writer.writerow([_plain(value) for value in job.model_dump().values()])
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8")


def _plain(value: object) -> object:
    """A spreadsheet would calculate a name that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t"} else value


def _period(since: float | None, until: float | None, now: float) -> Period:
    until = now if until is None else min(until, now)
    since = until - 30 * _DAY if since is None else since
    if since >= until:
        raise UnprocessableError("since must be earlier than until, and than now")
    if until - since > _MAX_DAYS * _DAY:
        raise UnprocessableError(f"a report covers at most {_MAX_DAYS} days")
    return Period(since=since, until=until)
