"""Active findings are found by an index of their own, not among years of findings that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from mainstay.service.common.db import Database
from mainstay.service.common.pagination import PageParams, encode_cursor, paginate
from mainstay.service.incidents import repository
from mainstay.service.incidents.models import FindingRow
from mainstay.service.settings import Settings


@pytest.fixture
def database(make_settings: Callable[..., Settings]) -> Iterator[Database]:
    made = Database(make_settings().resolved_database_url)
    yield made
    made.close()


@pytest.mark.parametrize("cursor", [None, encode_cursor([1_800_000_000.0, "id"])], ids=["first", "next"])
@pytest.mark.parametrize(("active", "index"), [(True, "ix_findings_active_time"), (None, "ix_findings_time_id")])
def test_the_way_sqlite_takes(database: Database, *, active: bool | None, index: str, cursor: str | None) -> None:
    plan = _plan(database, active, cursor)
    assert f"USING INDEX {index}" in plan
    assert "TEMP B-TREE" not in plan, "the index gives the order"


def _plan(database: Database, active: bool | None, cursor: str | None) -> str:
    asked: list[tuple[str, Any]] = []
    event.listen(database.engine, "before_cursor_execute", lambda _c, _u, sql, given, *_: asked.append((sql, given)))
    statement = repository.findings(node=None, job=None, kind=None, active=active)
    with database.reading() as session:
        page = PageParams(limit=50, cursor=cursor)
        assert paginate(session, statement, keys=(FindingRow.time, FindingRow.id), page=page) == ([], None)
        sql, given = next((sql, given) for sql, given in asked if "FROM findings" in sql)
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", given)
        return "\n".join(row[-1] for row in plan)
