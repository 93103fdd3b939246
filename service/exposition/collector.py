"""XIDs, findings, incidents and scrape targets in ``/metrics``: few series, read from the database when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from service.events.models import XidTotalRow
from service.incidents.life_cycle import LIVE
from service.incidents.models import FindingRow, IncidentRow
from service.kit.db import AnySession
from service.services import Services
from service.sources.models import DcgmTargetRow

_LIVE: Final = sorted(state.value for state in LIVE)


class HealthCollector(Collector):
    """What was found, and what happened to which card."""

    def __init__(self, services: Services) -> None:
        self.services = services

    def collect(self) -> Iterator[Metric]:
        with self.services.database.reading() as session:
            yield from _xids(session)
            yield _findings(session)
            yield _incidents(session)
            yield _targets(session)


def _xids(session: AnySession) -> Iterator[Metric]:
    """An XID is a label, never a value: codes cannot be added up, and the last one hides the one before."""
    where = ["gpu_uuid", "xid"]
    totals = CounterMetricFamily("mainstay_xid_events", "XIDs of a card, by code", labels=where)
    about = "When a card last had an XID"
    seen = GaugeMetricFamily("mainstay_xid_last_seen_timestamp_seconds", about, labels=where)
    for row in session.scalars(select(XidTotalRow).order_by(XidTotalRow.gpu, XidTotalRow.xid)):
        totals.add_metric([row.gpu, str(row.xid)], row.total, created=row.first_at)
        seen.add_metric([row.gpu, str(row.xid)], row.last_at)
    yield from (totals, seen)


def _findings(session: AnySession) -> Metric:
    about = "Findings that hold, by kind and severity"
    family = GaugeMetricFamily("mainstay_findings_active_by_kind", about, labels=["kind", "severity"])
    columns = (FindingRow.kind, FindingRow.severity)
    held = select(*columns, func.count()).where(FindingRow.active).group_by(*columns)
    for kind, severity, count in session.execute(held):
        family.add_metric([kind, severity], count)
    return family


def _incidents(session: AnySession) -> Metric:
    about = "Incidents that are not closed, by each kind of finding in them"
    family = GaugeMetricFamily("mainstay_incidents_by_kind", about, labels=["kind", "severity"])
    held = select(IncidentRow.kinds, IncidentRow.severity).where(IncidentRow.state.in_(_LIVE))
    counts = Counter((kind, severity) for kinds, severity in session.execute(held) for kind in set(kinds))
    for (kind, severity), count in sorted(counts.items()):
        family.add_metric([kind, severity], count)
    return family


def _targets(session: AnySession) -> Metric:
    about = "Scrape targets that are on, by how the latest scrape went"
    family = GaugeMetricFamily("mainstay_dcgm_targets", about, labels=["state"])
    row = DcgmTargetRow
    columns = select(row.last_error.is_not(None), row.last_scrape_at.is_(None)).where(row.enabled)
    states = Counter("failing" if failed else "new" if new else "ok" for failed, new in session.execute(columns))
    for state in ("ok", "failing", "new"):
        family.add_metric([state], states[state])
    return family
