"""What is long over is forgotten, a few rows at a time; what is active, waits or is cited stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import func, select

from mainstay.probes.core_types import RecommendedAction
from mainstay.service.app import build_services, close_services
from mainstay.service.common.db import WriteSession
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.models import ActionRow, FindingRow, IncidentRow, PlanRow, TimelineRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.retention import loops
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from tests.fakes.clock import ManualClock

NOW = 1_800_000_000.0
DAY = 86_400.0
OLD, YOUNG = NOW - 91 * DAY, NOW - 89 * DAY


@pytest.fixture
def services(make_settings: Callable[..., Settings], database_url: str) -> Iterator[Services]:
    made = build_services(make_settings(database_url=database_url, retention={"batch": 50}), ManualClock(NOW))
    yield made
    close_services(made)


def incident(session: WriteSession, name: str, closed_at: float | None) -> None:
    session.add(IncidentRow(
        id=name, title=name, summary="", state="open" if closed_at is None else "closed", version=1, severity="warning",
        needs_operator=False, opened_at=OLD - DAY, closed_at=closed_at, updated_at=OLD, ranks=[], kinds=["xid"],
    ))  # fmt: skip
    session.flush()
    session.add(TimelineRow(id=f"t-{name}", incident_id=name, time=OLD, kind="opened", text="x", data={}))
    session.add(ActionRow(id=f"a-{name}", incident_id=name, recovery="r", name="x", state="done", started_at=OLD,
                          detail=""))  # fmt: skip
    session.add(PlanRow(id=f"p-{name}", job="j", generation=1, created_at=OLD, body={}, incident_id=name))
    session.flush()


def finding(
    session: WriteSession, name: str, of: str | None, *, active: bool = False, at: float = OLD, event: str | None = None
) -> None:
    session.add(FindingRow(
        id=f"f-{name}", key=f"k-{name}", kind="xid", node="n1", time=at, severity="warning", detector="hardware_events",
        confidence=1.0, evidence={"summary": ""}, active=active, cleared_at=None if active else at, event_id=event,
        incident_id=of,
    ))  # fmt: skip
    session.flush()


def remediation(session: WriteSession, of: str, state: str) -> None:
    session.add(RemediationRow(
        id=f"r-{of}", incident_id=of, node="n1", recommended_action=RecommendedAction.REPLACE.value, state=state,
        dry_run=True, reason="",
        rules=[], tried=[], created_at=OLD,
    ))  # fmt: skip


def event(session: WriteSession, name: str, at: float, *, judged: bool = True) -> None:
    session.add(EventRow(id=f"e-{name}", time=at, kind="xid", node="n1", data={}, received_at=at,
                         judged_at=at if judged else None))  # fmt: skip


def run_retention(services: Services, times: int = 1) -> None:
    (loop,) = loops.make(services)
    services.leases.seconds = 60.0  # on a slow machine too, it lasts for the test
    for _ in range(2):  # the first adds the lease
        services.leases.renew()
    for _ in range(times):
        loop.turn()


def ids(services: Services, table: Any) -> set[str]:
    with services.database.reading() as session:
        return set(session.scalars(select(table.id)))


def test_only_what_is_long_over_goes(services: Services) -> None:
    with services.database.session() as session:
        incident(session, "old", OLD)
        finding(session, "old", "old", event="e-of-old")
        remediation(session, "old", "done")
        incident(session, "young", YOUNG)
        finding(session, "young", "young", event="e-of-young")
        incident(session, "open", None)
        finding(session, "open", "open", active=True)
        incident(session, "holds", OLD)
        finding(session, "holds", "holds", active=True)
        incident(session, "waits", OLD)
        remediation(session, "waits", "accepted")
        for name, at in (("of-old", OLD), ("of-young", OLD), ("old", OLD), ("young", YOUNG)):
            event(session, name, at)
        event(session, "unjudged", OLD, judged=False)
        finding(session, "exclusive", None)
        finding(session, "alone-young", None, at=YOUNG)
        finding(session, "alone-active", None, active=True)
    run_retention(services)
    kept = {"young", "open", "holds", "waits"}
    assert ids(services, IncidentRow) == kept
    for table, prefix in ((TimelineRow, "t"), (ActionRow, "a"), (PlanRow, "p")):
        assert ids(services, table) == {f"{prefix}-{name}" for name in kept}
    assert ids(services, RemediationRow) == {"r-waits"}
    assert ids(services, FindingRow) == {"f-young", "f-open", "f-holds", "f-alone-young", "f-alone-active"}
    assert ids(services, EventRow) == {"e-of-young", "e-young", "e-unjudged"}


def test_the_move_that_put_a_node_where_it_is_stays(services: Services) -> None:
    with services.database.session() as session:
        session.add(NodeRow(name="n1", first_seen_at=1.0, state="quarantined", state_version=3))
        session.flush()
        for version, at in ((1, OLD), (2, OLD + 1), (3, OLD + 2)):
            session.add(TransitionRow(
                id=f"m{version}", node="n1", version=version, time=at, trigger="found", from_state="healthy",
                to_state="suspect", owner="system", actor="mainstay", reason="", incident=None,
            ))  # fmt: skip
    run_retention(services)
    assert ids(services, TransitionRow) == {"m3"}


def test_a_turn_is_bounded(services: Services) -> None:
    with services.database.session() as session:
        for number in range(120):
            event(session, str(number), OLD + number)
    left = []
    for _ in range(4):
        run_retention(services)
        with services.database.reading() as session:
            left.append(session.scalar(select(func.count()).select_from(EventRow)))
    assert left == [70, 20, 0, 0]
