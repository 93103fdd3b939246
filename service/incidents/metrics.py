"""Metrics of detection and validation for ``/metrics``: read from the database at scrape time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy import ColumnExpressionArgument, func, select
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.service.common.db import AnySession
from mainstay.service.events.models import EventRow
from mainstay.service.exposition.families import gauge
from mainstay.service.incidents.lifecycle import LIVE
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.services import Services
from mainstay.service.validation.models import SweepRow, ValidationRow
from mainstay.service.validation.service import IS_PENDING

_STATES: Final = sorted(state.value for state in LIVE)


def collect_open_work(services: Services) -> Iterator[Metric]:
    """Open work: what waits for the detection loop, a node, a heartbeat, or an operator."""
    now = services.clock.now()
    with services.database.reading() as session:
        yield _incidents(session)
        yield gauge("incidents_needing_operator", "Incidents that need an operator", _needing(session))
        yield gauge("findings_active", "Active findings", _count(session, FindingRow.id, FindingRow.active))
        waiting = session.scalar(select(func.min(EventRow.received_at)).where(EventRow.judged_at.is_(None)))
        yield gauge(
            "events_pending_age_seconds", "Age of the oldest event that is not evaluated yet", _age(waiting, now)
        )
        pending = _count(session, ValidationRow.id, IS_PENDING)
        yield gauge("validations_pending", "Validations that are requested and have not ended", pending)
        due = session.scalar(select(func.min(SweepRow.next_run_at)))
        yield gauge(
            "sweep_delay_seconds",
            "Delay of the most overdue sweep; it grows if the scheduler does not run",
            _age(due, now),
        )


def _incidents(session: AnySession) -> Metric:
    family = GaugeMetricFamily("mainstay_incidents", "Incidents that are not closed, by state", labels=["state"])
    statement = select(IncidentRow.state, func.count()).where(IncidentRow.state.in_(_STATES))
    rows = session.execute(statement.group_by(IncidentRow.state))
    counts = {state: count for state, count in rows}  # noqa: C416 - no tuples to mypy
    for state in _STATES:
        family.add_metric([state], counts.get(state, 0))
    return family


def _needing(session: AnySession) -> int:
    return _count(session, IncidentRow.id, IncidentRow.needs_operator)


def _count(session: AnySession, column: InstrumentedAttribute[str], condition: ColumnExpressionArgument[bool]) -> int:
    return session.scalar(select(func.count(column)).where(condition)) or 0


def _age(since: float | None, now: float) -> float:
    return 0.0 if since is None else max(0.0, now - since)
