"""What is long over is forgotten, a few rows at a time; what is active, waits or is cited stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import func, select

from mainstay.probes.core_types import RecommendedAction
from mainstay.service.app import build_services, close_services
from mainstay.service.check_selection.models import SelectionRow
from mainstay.service.common.db import WriteSession
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.models import ActionRow, FindingRow, IncidentRow, PlanRow, TimelineRow
from mainstay.service.jobs.models import JobRequestRow, JobRow, RecoveryRow
from mainstay.service.localization.models import LocalizationRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.retention import loops
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation.models import NodeVerdictRow, ResultRow, SweepRow, SweepRunRow, ValidationRow
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


LONG_AGO, LATELY = NOW - 401 * DAY, NOW - 399 * DAY


def test_history_is_kept_for_longer_and_ends_too(services: Services) -> None:
    with services.database.session() as session:
        for name, at in (("old", LONG_AGO), ("verdict", LONG_AGO), ("waits", LONG_AGO), ("young", LATELY)):
            session.add(SweepRow(id=f"s-{name}", name=name, suite="quick", enabled=True, created_at=at))
            session.flush()
            session.add(SweepRunRow(id=f"run-{name}", sweep_id=f"s-{name}", started_at=at, finished_at=at))
            session.flush()
            state = "queued" if name == "waits" else "done"
            session.add(ValidationRow(
                id=f"v-{name}", node=name, suite="quick", state=state, verdict="unknown", reason="", created_at=at,
                deadline_at=at, finished_at=at, run_id=f"run-{name}",
            ))  # fmt: skip
            session.flush()
            session.add(ResultRow(
                id=f"result-{name}", validation_id=f"v-{name}", position=0, cohort="c", benchmark="b", metric="m",
                unit="", better="higher", values=[1.0], verdict="pass", device="", reason="",
            ))  # fmt: skip
        session.add(NodeVerdictRow(
            node="verdict", verdict="pass", power=1, suite="quick", validation_id="v-verdict", at=LONG_AGO,
        ))  # fmt: skip
        for name, at, over in (("old", LONG_AGO, True), ("runs", LONG_AGO, False), ("young", LATELY, True)):
            _history(session, name, at, over=over)
    run_retention(services)
    assert ids(services, ValidationRow) == {"v-verdict", "v-waits", "v-young"}
    assert ids(services, ResultRow) == {"result-verdict", "result-waits", "result-young"}
    assert ids(services, SweepRunRow) == {"run-verdict", "run-waits", "run-young"}
    assert ids(services, SelectionRow) == {"young"}
    for table in (JobRow, RecoveryRow, JobRequestRow, LocalizationRow):
        assert ids(services, table) == {"runs", "young"}, table


def _history(session: WriteSession, name: str, at: float, *, over: bool) -> None:
    ended = at if over else None
    session.add(JobRow(
        id=name, name=name, state="finished" if over else "running", generation=1, command="", topology={"ranks": []},
        protection={}, started_at=at, finished_at=ended, last_seen_at=at,
    ))  # fmt: skip
    session.add(RecoveryRow(
        id=name, job=name, failed_at=at, failed_ranks=[], parts={}, outcome="verified" if over else "recovering",
    ))  # fmt: skip
    session.add(JobRequestRow(
        id=name, job=name, kind="migrate", reason="", actor="", state="completed" if over else "pending", detail="",
        created_at=at, updated_at=at,
    ))  # fmt: skip
    session.add(LocalizationRow(
        id=name, state="done" if over else "running", reason="", nodes=[], partners=[], addresses={}, round=1,
        document="", state_reason="", created_at=at, finished_at=ended,
    ))  # fmt: skip
    if name != "runs":
        session.add(SelectionRow(
            id=name, created_at=at, trigger="manual", suite="quick", nodes=[], run_on=[], job_hours=1.0,
            target_risk=0.1, record={},
        ))  # fmt: skip


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
