"""``/v1/reports``: what failures cost over a time."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Final, Literal, get_args

from fastapi import APIRouter, Query, Response

from mainstay.service.auth.guard import Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.common.schemas import Output
from mainstay.service.reports import service
from mainstay.service.reports.reliability import Period
from mainstay.service.reports.schemas import BetweenRead, ReliabilityRead
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["reports"])
_DAY: Final = 86_400.0
_MAX_DAYS: Final = 400
Moment = Annotated[float | None, Query(ge=0, le=1e11)]
ReportTable = Literal["jobs", "teams", "causes", "detectors", "components", "batches", "cohorts", "nodes"]
Minutes = Annotated[float, Query(ge=0, le=7 * 24 * 60)]


@router.get("/reports/reliability", operation_id="get_reliability_report")
def get_reliability(
    _: Reader,
    session: Reading,
    services: ServicesDep,
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
        session, _period(since, until, now), services.fleet.current(session).nodes,
        restart_seconds=restart_minutes * 60, checkpoint_seconds=checkpoint_minutes * 60, now=now,
    )  # fmt: skip


@router.get(
    "/reports/reliability.csv",
    operation_id="get_reliability_csv",
    response_class=Response,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def get_reliability_csv(
    _: Reader,
    session: Reading,
    services: ServicesDep,
    now: Now,
    *,
    since: Moment = None,
    until: Moment = None,
    table: ReportTable = "jobs",
) -> Response:
    """A table of the report as CSV, by default its jobs. Without a team: the jobs that are in none."""
    found = service.report(
        session, _period(since, until, now), services.fleet.current(session).nodes, restart_seconds=0.0,
        checkpoint_seconds=0.0, now=now,
    )  # fmt: skip
    text = io.StringIO()
    writer = csv.writer(text)
    rows: list[Output] = getattr(found, table)
    writer.writerow(_columns(get_args(ReliabilityRead.model_fields[table].annotation)[0]))
    for row in rows:
        values = (value.values() if isinstance(value, dict) else [value] for value in row.model_dump().values())
        writer.writerow([_plain(value) for some in values for value in some])
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8")


def _columns(kind: type[Output]) -> list[str]:
    """Names of the columns; those of the time between failures in place of it."""
    found: list[str] = []
    for name, field in kind.model_fields.items():
        parts = [f"between_{part}" for part in BetweenRead.model_fields]
        found += parts if field.annotation is BetweenRead else ["job" if name == "id" else name]
    return found


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
