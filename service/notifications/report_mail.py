"""The weekly reliability report as a message: into the outbox when it is due, at least once and once a week.

Invariant: the key of the row is the receiver and the week, so that neither a restart nor another process sends it
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Final

from mainstay.probes.core_types import Severity
from mainstay.service.common.db import AnySession
from mainstay.service.common.time_texts import duration_text
from mainstay.service.notifications import outbox, repository
from mainstay.service.notifications.message import Message, MessageBody, NotificationEvent
from mainstay.service.notifications.models import NotificationRow
from mainstay.service.notifications.report_schedule import ReportSchedule, message_id
from mainstay.service.reports import service as reports
from mainstay.service.reports.reliability import Period
from mainstay.service.reports.schemas import BetweenRead, DrainCounts, ReliabilityRead, ReliabilitySummary
from mainstay.service.services import Services

_DAY: Final = 86_400.0
LATEST_SECONDS: Final = _DAY
"""A report that no process could send is sent until so long after it was due."""
RESTART_SECONDS, CHECKPOINT_SECONDS = 600.0, 3600.0
"""Assumptions about a restart without Mainstay: the defaults of the page."""
_ROWS: Final = 10
UNKNOWN: Final = "unknown"
_CELL: Final = "padding:3px 12px 3px 0;border-bottom:1px solid #dde3e7;text-align:left;vertical-align:top"


def send_report(services: Services, schedule: ReportSchedule) -> int:
    """Put the report into the outbox for the receivers that must get it now; returns how many."""
    now = services.clock.now()
    due = schedule.last_due(now)
    if due.timestamp() < now - LATEST_SECONDS:
        return 0
    with services.database.reading() as session:
        names = _unsent(session, schedule, due)
        if not names:
            return 0
        message = compose_report(session, schedule, due, base_url=services.settings.dashboard_url, now=now)
    with services.database.session() as session:
        for name in names:
            outbox.put(session, name, message, group_id=None, incident_id=None, message_id=message_id(name, due))
    return len(names)


def _unsent(session: AnySession, schedule: ReportSchedule, due: datetime) -> list[str]:
    config = repository.newest_config(session)
    if config is None or due.timestamp() < config.created_at:  # a new schedule begins with its next time
        return []
    names = dict.fromkeys(schedule.receivers)
    return [name for name in names if session.get(NotificationRow, message_id(name, due)) is None]


def compose_report(
    session: AnySession, schedule: ReportSchedule, due: datetime, *, base_url: str, now: float
) -> Message:
    """The report of the days before ``due``."""
    until = due.timestamp()
    period = Period(since=until - schedule.days * _DAY, until=until)
    found = reports.report(  # without the fleet: the message shows no batches
        session, period, {}, restart_seconds=RESTART_SECONDS, checkpoint_seconds=CHECKPOINT_SECONDS, now=now
    )
    since = datetime.fromtimestamp(period.since, due.tzinfo)
    tables = [table for table in _tables(found) if table.rows]
    return Message(
        group="reliability-report",
        event=NotificationEvent.REPORT,
        severity=Severity.INFO,
        title=f"Mainstay reliability report, {since:%Y-%m-%d %H:%M} to {due:%Y-%m-%d %H:%M %Z}",
        incidents=[],
        incidents_total=0,
        url=f"{base_url}/reliability",
        acknowledge_url=None,
        created_at=now,
        body=MessageBody(
            plain="\n\n".join(table.plain() for table in tables), html="\n".join(table.html() for table in tables)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def plain(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([self.title, "-" * len(self.title), *texts])

    def html(self) -> str:
        head = "".join(f'<th style="{_CELL}">{escape(text)}</th>' for text in self.header)
        rows = ("".join(f'<td style="{_CELL}">{escape(text)}</td>' for text in row) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>\n" for row in rows)
        style = "border-collapse:collapse;font-size:14px"
        return f'<h4>{escape(self.title)}</h4>\n<table style="{style}">\n<tr>{head}</tr>\n{body}</table>'


def _tables(found: ReliabilityRead) -> Iterator[_Table]:
    yield _Table("Summary", ("", "This period", "Period before"), _summary(found.summary, found.before))
    jobs = [
        (job.name, str(job.ranks), _hours(job.hours), _percent(job.ettr), _figure(job.lost_gpu_hours))
        for job in found.jobs[:_ROWS]
    ]
    yield _Table("Jobs that lost most", ("Job", "Ranks", "Wall time", "Effective", "Lost GPU hours"), jobs)
    causes = [
        (row.cause.replace("_", " "), str(row.incidents), _figure(row.lost_gpu_hours), _time(row.mean_repair_seconds))
        for row in found.causes[:_ROWS]
    ]
    yield _Table("Causes", ("Cause", "Incidents", "Lost GPU hours", "Mean time to recovery"), causes)
    nodes = [(row.name, str(row.incidents), _hours(row.out_of_service_hours)) for row in found.nodes[:_ROWS]]
    yield _Table("Nodes with most incidents", ("Node", "Incidents", "Out of service"), nodes)
    cohorts = [
        (row.cohort or "not reported", str(row.nodes), _between(row.between_failures)) for row in found.cohorts[:_ROWS]
    ]
    yield _Table("Cohorts", ("Cohort", "Nodes", "Node time between failures"), cohorts)
    yield _Table("Assumptions", ("Figures of saved and lost time assume:",), [(text,) for text in found.assumptions])


def _summary(now: ReliabilitySummary, before: ReliabilitySummary) -> list[tuple[str, str, str]]:
    figures: dict[str, Callable[[ReliabilitySummary], str]] = {
        "Effective training time": lambda one: _percent(one.ettr),
        "GPU hours of jobs": lambda one: _figure(one.gpu_hours),
        "Lost to detection (GPU hours)": lambda one: _figure(one.lost_gpu_hours.detection),
        "Lost to recovery (GPU hours)": lambda one: _figure(one.lost_gpu_hours.recovery),
        "Lost to repeated steps (GPU hours)": lambda one: _figure(one.lost_gpu_hours.repeated),
        "Lost to absent ranks (GPU hours)": lambda one: _figure(one.lost_gpu_hours.degraded),
        "Nodes out of service (GPU hours)": lambda one: _figure(one.lost_gpu_hours.out_of_service),
        "Saved against restarts (GPU hours)": lambda one: _figure(one.saved_gpu_hours),
        "Incidents": lambda one: str(one.incidents),
        "False drains": lambda one: _false_drains(one.drains),
        "Recoveries": lambda one: f"{one.recoveries} ({one.failed_recoveries} failed)",
        "Mean time to recovery": lambda one: _time(one.mean_repair_seconds),
        "Node time between failures": lambda one: _between(one.between_failures),
    }
    return [(label, figure(now), figure(before)) for label, figure in figures.items()]


def _between(found: BetweenRead) -> str:
    if found.hours is None or found.high is None:
        return f"no failure; at least {_hours(found.low)}"
    return f"{_hours(found.hours)} (95%: {_hours(found.low)} to {_hours(found.high)})"


def _false_drains(found: DrainCounts) -> str:
    if found.ratio is None:
        return f"none of {found.drains} drains is decided"
    limits = f"95%: {_percent(found.low)} to {_percent(found.high)}"
    return f"{found.false_drains} of {found.false_drains + found.confirmed} ({limits})"


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.1%}"


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else duration_text(seconds)


def _hours(hours: float) -> str:
    return f"{_figure(hours)} h"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
