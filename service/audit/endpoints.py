"""``/v1/audit-log``: who did what, newest first, as pages and as one file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import ColumnElement, select

from mainstay.service.audit.models import AuditRow
from mainstay.service.audit.schemas import AuditRead
from mainstay.service.auth.guard import Admin
from mainstay.service.common.db import Database, Reading
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.rows import equal_to
from mainstay.service.common.schemas import QuerySeconds, ShortText
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["audit"])
_AT_ONCE: Final = 1000
_COLUMNS: Final = ("at", "actor", "actor_kind", "actor_id", "action", "target", "detail", "address", "id")
Text = Annotated[ShortText | None, Query()]
Time = Annotated[QuerySeconds | None, Query()]


class AuditPage(Page[AuditRead]):
    """Acts, newest first."""


def _wanted(
    actor: str | None, action: str | None, target: str | None, since: float | None, until: float | None
) -> list[ColumnElement[bool]]:
    wanted = equal_to({AuditRow.actor: actor, AuditRow.action: action, AuditRow.target: target})
    wanted += [] if since is None else [AuditRow.at >= since]
    return wanted + ([] if until is None else [AuditRow.at < until])


@router.get("/audit-log", operation_id="list_audit_log")
def list_audit_log(
    _: Admin,
    session: Reading,
    page: Paging,
    *,
    actor: Text = None,
    action: Text = None,
    target: Text = None,
    since: Time = None,
    until: Time = None,
) -> AuditPage:
    """Acts of people, tokens, and rules, newest first, from ``since`` up to but not including ``until`` (Unix seconds).

    ``action`` is the operation of this API; ``target`` its path.
    """
    statement = select(AuditRow).where(*_wanted(actor, action, target, since, until))
    rows, cursor = paginate(session, statement, keys=(AuditRow.at, AuditRow.id), page=page)
    return AuditPage(items=[AuditRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.get(
    "/audit-log.csv",
    operation_id="export_audit_log",
    response_class=Response,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def export_audit_log(_: Admin, services: ServicesDep, since: Time = None, until: Time = None) -> StreamingResponse:
    """The audit log as CSV, oldest first: times in UTC, ``detail`` as JSON."""
    wanted = _wanted(None, None, None, since, until)
    headers = {"Content-Disposition": 'attachment; filename="audit-log.csv"'}
    return StreamingResponse(_lines(services.database, wanted), media_type="text/csv; charset=utf-8", headers=headers)


def _lines(database: Database, wanted: list[ColumnElement[bool]]) -> Iterator[str]:
    statement = select(AuditRow).where(*wanted).order_by(AuditRow.at, AuditRow.id)
    yield ",".join(_COLUMNS) + "\r\n"
    with database.reading() as session:
        for rows in session.scalars(statement.execution_options(yield_per=_AT_ONCE)).partitions():
            text = io.StringIO()
            csv.writer(text).writerows(_cells(row) for row in rows)
            yield text.getvalue()


def _cells(row: AuditRow) -> list[str]:
    values = {column: getattr(row, column) for column in _COLUMNS}
    values["at"] = datetime.fromtimestamp(row.at, UTC).isoformat(timespec="milliseconds")
    values["detail"] = json.dumps(row.detail, separators=(",", ":"))
    return [_as_text(value) for value in values.values()]


def _as_text(value: object) -> str:
    """A spreadsheet would run a text that begins like a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text
