"""Sweeps by rack, cohort, and state, once at a time, in a time zone, and what a preview says of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text

from mainstay.service.app import build_services, close_services
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report as say
from mainstay.service.jobs.schemas import JobReport
from mainstay.service.jobs.service import report as report_job
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation import sweeps
from mainstay.service.validation.models import SweepRow, ValidationRow
from mainstay.service.validation.schedule import next_run
from mainstay.service.validation.schemas import SweepChange, SweepCreate, SweepPreview
from mainstay.service.validation.suites import expected_seconds, require_suite
from mainstay.service.validation.sweep_preview import preview, run_seconds
from mainstay.service.validation.tasks import Tasks
from tests.fakes.clock import ManualClock
from tests.service.validation.test_occupied_nodes import job

Json = dict[str, Any]
NOW = 1_800_000_000.0
QUICK = {"name": "s", "suite": "quick"}


@pytest.fixture
def services(make_settings: Callable[..., Settings], database_url: str, report: Json) -> Any:
    """Six nodes in three racks and two cohorts; n5 is quarantined."""
    made = build_services(make_settings(database_url=database_url), ManualClock(NOW))
    with made.database.session() as session:
        for number in range(6):
            told = {"rack": f"r{number // 2}", "cohort": "b" if number > 3 else "a", "switches": []}
            say(session, f"n{number}", NodeReportCreate.model_validate(report | told), now=NOW)
        session.flush()
        session.get_one(NodeRow, "n5").state = "quarantined"
    yield made
    close_services(made)


def make(services: Services, **changes: Any) -> str:
    with services.database.session() as session:
        return sweeps.create(session, SweepCreate.model_validate(QUICK | changes), now=services.clock.now()).id


def change(services: Services, sweep: str, **changes: Any) -> Any:
    with services.database.session() as session:
        return sweeps.change(session, sweep, SweepChange.model_validate(changes), now=services.clock.now())


def read(services: Services, sweep: str) -> Any:
    with services.database.reading() as session:
        return sweeps.serialize_sweeps(session, [sweeps.require(session, sweep)], keep_runs=5)[0]


def preview_of(services: Services, **body: Any) -> SweepPreview:
    with services.database.reading() as session:
        asked = SweepCreate.model_validate(QUICK | body)
        return preview(session, services, asked, now=services.clock.now())


def validated(services: Services, sweep: str) -> list[str]:
    """Nodes of its last run, which begins now."""
    with services.database.session() as session:
        run = sweeps.start(session, sweeps.require(session, sweep), now=services.clock.now()).id
    Tasks(services, lambda _: None).fan_out(run)
    with services.database.reading() as session:
        rows = session.query(ValidationRow).filter_by(run_id=run)
        return sorted(row.node for row in rows)


def test_a_selector_is_evaluated_at_each_run(services: Services) -> None:
    sweep = make(services, racks=["r0", "r2"], states=["unknown"])
    assert read(services, sweep).next_run_at is None
    assert validated(services, sweep) == ["n0", "n1", "n4"]
    with services.database.session() as session:
        session.get_one(NodeRow, "n5").state = "unknown"
        session.get_one(NodeRow, "n0").rack = "r1"
        session.query(ValidationRow).update({"state": "done"})
        session.flush()
        sweeps.finish_runs(session, now=NOW)
    assert validated(services, sweep) == ["n1", "n4", "n5"]


@pytest.mark.parametrize(
    ("body", "nodes"),
    [
        ({}, ["n0", "n1", "n2", "n3", "n4", "n5"]),
        ({"cohorts": ["a"], "racks": ["r1", "r2"]}, ["n2", "n3"]),
        ({"nodes": ["n5", "n0"], "cohorts": ["b"]}, ["n5"]),
        ({"nodes": []}, []),
        ({"cohort": "b"}, ["n4", "n5"]),
    ],
)
def test_criteria_must_all_hold(services: Services, body: Json, nodes: list[str]) -> None:
    assert preview_of(services, **body).nodes == nodes
    assert validated(services, make(services, **body)) == nodes


def test_the_one_cohort_of_older_clients_is_the_same_selector(services: Services) -> None:
    sweep = make(services, cohort="a")
    assert (read(services, sweep).cohort, read(services, sweep).cohorts) == ("a", ["a"])
    change(services, sweep, version=1, cohorts=["b", "a"])
    assert (read(services, sweep).cohort, read(services, sweep).cohorts) == (None, ["a", "b"])
    change(services, sweep, version=2, cohort="b")
    assert (read(services, sweep).cohort, read(services, sweep).cohorts) == ("b", ["b"])
    change(services, sweep, version=3, cohort=None)
    assert (read(services, sweep).cohort, read(services, sweep).cohorts) == (None, [])


def test_a_sweep_runs_once_at_its_time(services: Services) -> None:
    sweep, tasks = make(services, run_at=NOW + 100), Tasks(services, lambda _: None)
    assert read(services, sweep).next_run_at == NOW + 100
    for seconds, runs in ((99, 0), (2, 1), (86_400, 1)):
        services.clock.advance(seconds)  # type: ignore[attr-defined]
        tasks.tick()
        assert len(read(services, sweep).runs) == runs
    assert read(services, sweep).next_run_at is None
    change(services, sweep, version=1, enabled=False)
    with pytest.raises(UnprocessableError, match="past"):
        change(services, sweep, version=2, enabled=True)
    with pytest.raises(UnprocessableError, match="by schedule or once"):
        change(services, sweep, version=2, schedule="every 60s")
    change(services, sweep, version=2, schedule="every 60s", run_at=None, enabled=True)
    assert read(services, sweep).next_run_at == services.clock.now() + 60


def test_a_time_may_be_text_with_an_offset(services: Services) -> None:
    assert read(services, make(services, run_at="2027-06-01T02:00:00+02:00")).run_at == 1_811_808_000.0
    for bad in ("2027-06-01T02:00:00", "soon", "9999-12-31T23:59:59-23:00", True, -1):
        with pytest.raises(ValueError, match="run_at"):
            SweepCreate.model_validate(QUICK | {"run_at": bad})


def local(*moment: int, zone: str = "Europe/Berlin", fold: int = 0) -> float:
    year, month, day, hour, minute = moment
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def runs(schedule: str, after: float, count: int, zone: str = "Europe/Berlin") -> list[float]:
    found: list[float] = []
    while len(found) < count:
        found.append(next_run(schedule, found[-1] if found else after, zone))
    return found


def test_cron_follows_daylight_saving_time() -> None:
    """2027-03-28: 02:00 to 03:00 does not exist. 2027-10-31: 02:00 to 03:00 comes twice."""
    spring, autumn = local(2027, 3, 27, 12, 0), local(2027, 10, 30, 12, 0)
    at_three = runs("0 3 * * *", spring, 3)
    assert at_three == [local(2027, 3, day, 3, 0) for day in (28, 29, 30)]
    assert at_three[0] - local(2027, 3, 27, 3, 0) == 23 * 3600
    assert runs("30 2 * * *", spring, 2) == [local(2027, 3, 28, 3, 0), local(2027, 3, 29, 2, 30)]
    assert runs("0 3 * * *", autumn, 2) == [local(2027, 10, 31, 3, 0), local(2027, 11, 1, 3, 0)]
    assert runs("0 3 * * *", autumn, 1)[0] - local(2027, 10, 30, 3, 0) == 25 * 3600
    assert runs("30 2 * * *", autumn, 2) == [local(2027, 10, 31, 2, 30), local(2027, 11, 1, 2, 30)]
    hours = runs("0 * * * *", local(2027, 10, 31, 1, 0), 3)
    assert hours == [local(2027, 10, 31, 2, 0), local(2027, 10, 31, 2, 0, fold=1), local(2027, 10, 31, 3, 0)]


def test_a_sweep_keeps_its_timezone(services: Services) -> None:
    sweep = make(services, schedule="0 3 * * *", timezone="Asia/Tokyo")
    due = read(services, sweep).next_run_at
    assert datetime.fromtimestamp(due, ZoneInfo("Asia/Tokyo")).hour == 3
    services.clock.advance(due - NOW)  # type: ignore[attr-defined]
    Tasks(services, lambda _: None).tick()
    assert read(services, sweep).next_run_at == due + 86_400
    change(services, sweep, version=1, timezone="UTC")
    assert read(services, sweep).next_run_at == due + 3 * 3600 + 6 * 3600
    with pytest.raises(ValueError, match="time zone"):
        SweepCreate.model_validate(QUICK | {"timezone": "Mars/Olympus"})


def test_a_preview_counts_what_would_be_skipped_and_stores_nothing(services: Services) -> None:
    with services.database.session() as session:
        report_job(session, "llm", JobReport.model_validate(job("n1", "n2")), now=NOW)
        session.get_one(NodeRow, "n2").stopped_at = NOW
        session.get_one(NodeRow, "n3").last_seen_at = NOW - 3600
    seen = preview_of(services, schedule="0 3 * * *", timezone="Europe/Berlin")
    assert (seen.matched, seen.validated, seen.nodes) == (6, 3, ["n0", "n4", "n5"])
    assert {one.reason: one.count for one in seen.skipped} == {"job": 2, "silent": 1}
    assert seen.next_runs == runs("0 3 * * *", NOW, 3)
    assert preview_of(services, run_at=NOW + 5).next_runs == [NOW + 5]
    assert preview_of(services).next_runs == []
    light = preview_of(services, benchmarks=["tcp"])
    assert {one.reason: one.count for one in light.skipped} == {"silent": 2}, "a light benchmark does not wait for jobs"
    with services.database.reading() as session:
        assert session.query(SweepRow).count() == 0


def test_a_preview_estimates_from_earlier_validations(services: Services) -> None:
    stated = expected_seconds(require_suite("quick"), None)
    assert preview_of(services).seconds == pytest.approx(stated)
    assert (preview_of(services).measured, preview_of(services).node_hours) == (0, pytest.approx(6 * stated / 3600))

    def earlier(number: int, node: str, seconds: float, **changes: Any) -> ValidationRow:
        fields = {
            "suite": "quick", "state": "done", "verdict": "pass", "reason": "", "created_at": NOW - 999 + number,
            "deadline_at": NOW, "started_at": NOW - seconds, "finished_at": NOW, **changes,
        }  # fmt: skip
        return ValidationRow(id=f"v{number}", node=node, **fields)

    with services.database.session() as session:
        session.add_all(earlier(number, "n0", seconds) for number, seconds in enumerate((50.0, 60.0, 900.0)))
        session.add(earlier(3, "n1", 100.0))
        session.add(earlier(4, "n2", 1.0, cancelled_at=NOW))
        session.add(earlier(5, "n3", 2.0, suite="deep"))
        session.add(earlier(6, "n4", 3.0, benchmarks=["gemm"]))
        session.add(earlier(7, "n5", 4.0, state="expired"))
    seen = preview_of(services, nodes=["n0", "n1"])
    assert (seen.measured, seen.seconds) == (2, 100.0)
    assert seen.node_hours == pytest.approx(160 / 3600)
    assert preview_of(services, nodes=["n0", "n1"], max_concurrent=1).seconds == 160.0
    assert preview_of(services, nodes=["n0", "n1"], max_per_switch=1).seconds == 160.0, "both are in rack r0"
    assert preview_of(services).measured == 2
    assert preview_of(services, nodes=["n4"], benchmarks=["gemm"]).seconds == 3.0


def test_the_time_of_a_run_follows_the_limits() -> None:
    inf = float("inf")
    five = [("a", 10.0)] * 5
    assert run_seconds([], inf, inf) == 0
    assert run_seconds(five, inf, inf) == 10
    assert run_seconds(five, 4, inf) == 20
    assert run_seconds(five, inf, 2) == 30
    assert run_seconds([*five, ("b", 30.0)], inf, 2) == 30
    # The order is that of the nodes: b waits although it is the longest, as two others run.
    assert run_seconds([("a", 10.0), ("a", 10.0), ("b", 30.0)], 2, 1) == 30
    assert run_seconds([("a", 10.0), ("c", 10.0), ("b", 30.0)], 2, 1) == 40
    big = [(f"s{number % 500}", 600.0) for number in range(10_000)]
    assert run_seconds(big, 100, 1) == 60_000


def test_a_sweep_of_the_version_before_keeps_its_cohort(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    migrate.upgrade(database, "0014")
    at = "0" if database.is_sqlite else "now()"
    for name, cohort in (("old", "'8x \"H100\"'"), ("all", "NULL")):
        values = f"'{name}', '{name}', 'quick', TRUE, {at}, {cohort}"
        with database.session() as session:
            session.execute(
                text(f"INSERT INTO sweeps (id, name, suite, enabled, created_at, cohort) VALUES ({values})")
            )
    migrate.upgrade(database)
    with database.reading() as session:
        assert {row.id: row.cohorts for row in session.query(SweepRow)} == {"old": ['8x "H100"'], "all": []}
    database.close()
