"""The weekly report: when it is due, once a week, also after a time without a process, and what it says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mainstay.service.common.problem import UnprocessableError
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.notifications import config
from mainstay.service.notifications.message import plain_text
from mainstay.service.notifications.planner import Planner
from mainstay.service.notifications.report_schedule import ReportSchedule, message_id
from tests.service.notifications.conftest import START, PlannerBench

HOUR, DAY = 3600.0, 86_400.0
MAIL = """
[receivers.ops-mail]
kind = "email"
host = "127.0.0.1"
sender = "mainstay@mail.test"
recipients = ["ops@mail.test"]
[receivers.hook]
kind = "webhook"
url = "https://hooks.example/a"
"""
REPORT = MAIL + '[report]\nreceivers = ["ops-mail"]\nday = "monday"\nhour = 8\ntimezone = "Europe/Berlin"\n'
MONDAY = datetime(2027, 1, 18, 7, 0, tzinfo=UTC).timestamp()
"""The first Monday, 08:00 in Berlin, after ``START``, a Friday."""


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2027-01-18T07:00:00Z", "2027-01-18T08:00:00+01:00"),
        ("2027-01-18T06:59:59Z", "2027-01-11T08:00:00+01:00"),
        ("2027-01-17T23:30:00Z", "2027-01-11T08:00:00+01:00"),
        ("2027-01-24T23:00:00Z", "2027-01-18T08:00:00+01:00"),
        ("2027-03-29T06:00:00Z", "2027-03-29T08:00:00+02:00"),
        ("2027-03-29T05:59:59Z", "2027-03-22T08:00:00+01:00"),
    ],
)
def test_due_in_local_time(now: str, due: str) -> None:
    schedule = ReportSchedule(receivers=("a",), timezone="Europe/Berlin")
    assert schedule.last_due(at(now)).isoformat() == due


def test_every_moment_has_a_due_time_within_the_week_before() -> None:
    for hour in (0, 2, 23):  # 02:00 does not exist on one day a year, and 02:00 exists twice on another
        schedule = ReportSchedule(receivers=("a",), day="sunday", hour=hour, timezone="Europe/Berlin")
        for step in range(0, 366 * 24, 5):
            now = START + step * HOUR
            due = schedule.last_due(now)
            assert now - 7 * DAY - HOUR <= due.timestamp() <= now
            assert due.weekday() == 6


def test_one_key_for_one_week_and_receiver() -> None:
    monday, friday = datetime(2027, 1, 18, 8, tzinfo=UTC), datetime(2027, 1, 22, 9, tzinfo=UTC)
    assert message_id("a", monday) == message_id("a", friday)
    assert (
        len({message_id("a", monday), message_id("b", monday), message_id("a", datetime(2027, 1, 25, tzinfo=UTC))}) == 3
    )
    assert len(message_id("a" * 100, monday)) <= 36


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('receivers = ["lead"]', "report names the receiver 'lead', which is not there"),
        ('receivers = ["hook"]', "report names the receiver 'hook', which is not an e-mail receiver"),
        ("receivers = []", "report.receivers"),
        ("", "report.receivers: Field required"),
        ('receivers = ["ops-mail"]\nday = "mon"', "report.day"),
        ('receivers = ["ops-mail"]\nhour = 24', "report.hour"),
        ('receivers = ["ops-mail"]\nhour = true', "report.hour"),
        ('receivers = ["ops-mail"]\nhour = "8"', "report.hour"),
        ('receivers = ["ops-mail"]\ndays = 0', "report.days"),
        ('receivers = ["ops-mail"]\ntimezone = "Mars"', "no time zone such as Europe/Berlin"),
        ('receivers = ["ops-mail"]\nwhen = 1', "report.when"),
    ],
)
def test_faults_are_named(table: str, fault: str) -> None:
    with pytest.raises(UnprocessableError) as caught:
        config.parse(f"{MAIL}[report]\n{table}\n")
    assert fault in str(caught.value)


def move_to(bench: PlannerBench, moment: float) -> list[tuple[str, str]]:
    return bench.run(moment - bench.clock.now())


def test_it_is_sent_at_its_time_and_once_a_week(bench: PlannerBench) -> None:
    bench.configure(REPORT)
    assert bench.run() == []
    assert move_to(bench, MONDAY - 1) == []
    assert move_to(bench, MONDAY) == [("ops-mail", "report")]
    assert bench.run(1) == []
    bench.planner = Planner(bench.services)
    assert bench.run(HOUR) == [], "another process, or this one after a restart"
    assert move_to(bench, MONDAY + 7 * DAY) == [("ops-mail", "report")]


def test_a_receiver_that_is_named_twice_gets_one(bench: PlannerBench) -> None:
    bench.configure(REPORT.replace('["ops-mail"]', '["ops-mail", "ops-mail"]'))
    assert move_to(bench, MONDAY) == [("ops-mail", "report")]


def test_a_changed_schedule_sends_no_second_one_in_a_week(bench: PlannerBench) -> None:
    bench.configure(REPORT)
    assert move_to(bench, MONDAY) == [("ops-mail", "report")]
    bench.configure(REPORT.replace("monday", "wednesday"))
    assert move_to(bench, MONDAY + 2 * DAY) == []
    assert move_to(bench, MONDAY + 9 * DAY) == [("ops-mail", "report")]


@pytest.mark.parametrize(("hours", "sent"), [(23.9, True), (24.1, False)])
def test_a_time_without_a_process(bench: PlannerBench, hours: float, *, sent: bool) -> None:
    bench.configure(REPORT)
    bench.run()
    bench.planner = Planner(bench.services)
    assert move_to(bench, MONDAY + hours * HOUR) == ([("ops-mail", "report")] if sent else [])


def test_a_new_schedule_begins_with_its_next_time(bench: PlannerBench) -> None:
    bench.clock.advance(MONDAY + 60 - bench.clock.now())
    bench.configure(REPORT)
    assert bench.run() == []
    assert move_to(bench, MONDAY + 7 * DAY) == [("ops-mail", "report")]


def test_an_incident_is_sent_though_the_report_fails(bench: PlannerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.configure(REPORT + '[[routes]]\nname = "a"\nreceivers = ["hook"]\n')
    bench.clock.advance(MONDAY - bench.clock.now())
    bench.open()
    with monkeypatch.context() as patch:
        patch.setattr("mainstay.service.reports.service.report", _fail)
        with pytest.raises(RuntimeError):
            bench.run()
    assert [(row.receiver, row.event) for row in bench.rows()] == [("hook", "opened")]
    assert bench.run() == [("ops-mail", "report")]


def _fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("the database went away")


def put_history(bench: PlannerBench) -> None:
    """A job that stood still for an hour, in the week before ``MONDAY``."""
    at = MONDAY - 2 * DAY
    with bench.services.database.session() as session:
        session.add(
            JobRow(
                id="demo", name="<b>demo</b>", state="running", generation=1, command="", protection={},
                steps_total=None, topology={"world_size": 8, "ranks": []}, last_step=1000, started_at=MONDAY - 6 * DAY,
                finished_at=None, last_seen_at=MONDAY, request_obstacles=None,
            )
        )  # fmt: skip
        session.add(
            IncidentRow(
                id="i1", title="t", summary="s", state="closed", version=1, severity="critical", needs_operator=False,
                opened_at=at, recovered_at=at + HOUR, closed_at=at + HOUR, updated_at=at, ranks=[], kinds=["xid"],
                cause="faulty_gpu", node="n1",
            )
        )  # fmt: skip
        session.add(
            RecoveryRow(
                id="r1", job="demo", failed_at=at, recovered_at=at + HOUR, failed_ranks=[1], steps_lost=0,
                seconds=HOUR, parts={"detect": 1.0}, outcome="verified", incident_id="i1",
            )
        )  # fmt: skip
        session.add(NodeRow(name="n1", cohort="h100", gpus=8, first_seen_at=MONDAY - 30 * DAY))


def test_a_week_without_jobs_has_no_empty_tables(bench: PlannerBench) -> None:
    bench.configure(REPORT)
    move_to(bench, MONDAY)
    body = bench.message().body
    assert body is not None
    assert "Jobs that lost most" not in body.plain
    assert body.html.count("<table") == 2, "the summary and the assumptions"


def test_what_it_says(bench: PlannerBench) -> None:
    bench.configure(REPORT)
    put_history(bench)
    assert move_to(bench, MONDAY + HOUR) == [("ops-mail", "report")]
    message = bench.message()
    assert message.title == "Mainstay reliability report, 2027-01-11 08:00 to 2027-01-18 08:00 CET"
    assert message.url == "https://mainstay.example/reliability"
    text = plain_text(message)
    assert text.startswith(message.title)
    assert message.url in text
    lines = {" ".join(line.split()) for line in text.splitlines()}
    for line in (
        "Effective training time 99.3% unknown",
        "Lost to recovery (GPU hours) 8 0",
        "<b>demo</b> 8 144 h 99.3% 8",
        "faulty gpu 1 8 1 h",
        "n1 1 0 h",
    ):
        assert line in lines, text
    assert "A restart from the last checkpoint takes 10 min." in lines
    assert message.body is not None
    assert "&lt;b&gt;demo&lt;/b&gt;" in message.body.html
    assert "<b>" not in message.body.html
