"""Queries that run all the time read open work alone, however much that is finished lies beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from mainstay.probes.ids import uuid7
from mainstay.service.admission.node_facts import FactsQuery
from mainstay.service.admission.rules import AdmissionRequest
from mainstay.service.app import build_services, close_services
from mainstay.service.common.db import WriteSession
from mainstay.service.events import repository as events
from mainstay.service.events import totals
from mainstay.service.events.schemas import EventIn
from mainstay.service.fleet import past_states
from mainstay.service.fleet import repository as fleet
from mainstay.service.localization import service as localization
from mainstay.service.remediation import repository as remediation
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation import limits
from mainstay.service.validation import service as validation

_XIDS = [
    EventIn(id=uuid7(), time=1.0, kind="xid", node="a", device=f"GPU-{gpu}", data={"code": 79}) for gpu in range(3)
]


def _admit(session: WriteSession, services: Services) -> None:
    request = AdmissionRequest(now=1.0, heartbeat_timeout_seconds=1.0, suite="quick", max_age_seconds=1.0)
    FactsQuery(session, services, ["a", "b"], request, "job")


@pytest.fixture
def services(make_settings: Callable[..., Settings]) -> Iterator[Services]:
    made = build_services(make_settings())
    yield made
    close_services(made)


@pytest.mark.parametrize(
    ("ask", "table"),
    [
        (_admit, "findings"),
        (_admit, "validations"),
        (lambda session, _: events.unjudged(session), "events"),
        (lambda session, _: totals.count(session, _XIDS), "xid_totals"),
        (lambda session, _: past_states.states_at(session, 1.0), "node_transitions"),
        (lambda session, _: fleet.mark_absent(session, {("a", "GPU-0"), ("a", "GPU-1")}), "devices"),
        (lambda session, _: remediation.open_ones(session), "remediations"),
        (lambda session, _: localization.claim_node_tasks(session, "a", {}, now=1.0), "localization_tasks"),
        (lambda session, _: limits.holding_runs(session), "validations"),
        (lambda session, s: limits.release(session, None, {}, now=1.0, settings=s.settings), "validations"),
        (lambda session, _: remediation.unfit(session, ["a", "b"]), "findings"),
        (lambda session, _: remediation.unfit(session, ["a", "b"]), "nodes"),
        (lambda session, s: validation.expire(session, now=1.0, settings=s.settings), "validations"),
    ],
)
def test_finished_work_is_not_read(
    services: Services, ask: Callable[[WriteSession, Services], Any], table: str
) -> None:
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, many: bool) -> None:
        if table in statement and not many and not statement.startswith("INSERT"):
            asked.append((statement, values))

    with services.database.session() as session:
        event.listen(services.database.engine, "before_cursor_execute", note)
        ask(session, services)
        event.remove(services.database.engine, "before_cursor_execute", note)
        assert asked
        for statement, values in asked:
            plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            read = next(row.detail for row in plan if f" {table}" in row.detail)
            partial = ("active", "pending", "unjudged", "open")
            assert read.startswith("SEARCH") or any(f"_{kind}" in read for kind in partial), f"{read}: {statement}"
