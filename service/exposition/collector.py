"""XIDs, findings, incidents and scrape targets in ``/metrics``: few series, read from the database when asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy import func, select

from mainstay.recovery.calibration import PROMISED
from mainstay.service.common.db import AnySession
from mainstay.service.events.models import XidTotalRow
from mainstay.service.incidents.lifecycle import LIVE
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.jobs import repository as jobs
from mainstay.service.services import Services
from mainstay.service.sources.models import DcgmTargetRow

_LIVE: Final = sorted(state.value for state in LIVE)


def collect_health(services: Services) -> Iterator[Metric]:
    """What was found, and what happened to which card."""
    with services.database.reading() as session:
        yield from _xids(session)
        yield _findings(session)
        yield _incidents(session)
        yield _targets(session)
        yield from _durability(session)
        yield from _accuracy(session)


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
    about = "Active findings, by kind and severity"
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


_DURABILITY: Final = (
    ("survival_probability", "Probability that the next hour costs a running job nothing that memory cannot give back"),
    ("survival_probability_with_disk", "The same, going back to a step on disk counted as survival"),
    ("min_fatal_nodes", "Fewest nodes whose loss at once a running job's memory does not outlive"),
    ("parity_age_steps", "Steps since the newest one that is protected over the nodes"),
    ("degraded", "Degraded states of what protects a running job"),
    ("extra_copies", "Ranks on distrusted nodes of which an extra copy is in place"),
    ("corrupt_steps", "1 while a running job stands on steps that a corrupt node took part in"),
    ("corruption_found", "Damages that scrubbing and drills found in a running job's snapshot memory"),
    ("corruption_repaired", "Of these repaired in place, or rebuilt"),
    ("corruption_lost", "Of these beyond repair: never restored from"),
    ("bit_flips", "Damages where bytes that were right changed by themselves"),
    ("restore_drills_failed", "Restore drills that did not give back the same bytes"),
    ("timestamp_seconds", "When its coordinator last looked"),
)


def _durability(session: AnySession) -> Iterator[Metric]:
    """Of jobs that run. What is not known has no sample."""
    families = {
        name: GaugeMetricFamily(f"mainstay_job_durability_{name}", about, labels=["job"]) for name, about in _DURABILITY
    }
    for row in jobs.current(session, places=False):
        for name, value in _figures(row.protection.get("durability")):
            families[name].add_metric([row.id], value)
    yield from families.values()


def _figures(told: dict[str, Any] | None) -> Iterator[tuple[str, float]]:
    if told is None:
        return
    age = None if None in {told["newest"], told["parity_epoch"]} else told["newest"] - told["parity_epoch"]
    values = {
        "survival_probability": told["survival_hour"],
        "survival_probability_with_disk": told["survival_hour_with_disk"],
        "min_fatal_nodes": told["min_fatal_nodes"],
        "parity_age_steps": None if age is None else max(0, age),
        "degraded": len(told["degraded"]),
        "extra_copies": sum(len(suspect["copies"]) for suspect in told["suspects"]),
        "corrupt_steps": any(step["corrupt"] for step in told["corrupt_steps"]),
        "timestamp_seconds": told["time"],
        **_scrubbed(told.get("scrub")),
    }
    yield from ((name, float(value)) for name, value in values.items() if value is not None)


def _scrubbed(told: dict[str, Any] | None) -> dict[str, int]:
    if told is None:
        return {}
    return {
        "corruption_found": told["found"],
        "corruption_repaired": told["repaired"],
        "corruption_lost": told["lost"],
        "bit_flips": told["flipped"],
        "restore_drills_failed": told["drills_failed"],
    }


def _accuracy(session: AnySession) -> Iterator[Metric]:
    """Accuracy of recovery predictions for running jobs; recoveries without a prediction do not count."""
    families = (
        CounterMetricFamily("mainstay_job_recoveries_predicted", "Recoveries with a prediction", labels=["job"]),
        CounterMetricFamily(
            "mainstay_job_recoveries_within_prediction",
            "Of these, that took no more and no less than a quarter beside it",
            labels=["job"],
        ),
        CounterMetricFamily(
            "mainstay_job_recovery_excess_cost_seconds",
            "Seconds that the best alternatives, as predicted, would have saved",
            labels=["job"],
        ),
    )
    running = {row.id: row.started_at for row in jobs.current(session, places=False)}
    for job, recoveries in jobs.recoveries_of(session, running).items():
        rows = [row for row in recoveries if row.predicted_seconds is not None and row.failed_at >= running[job]]
        within = sum(_kept(row.predicted_seconds, row.seconds) for row in rows)
        for family, total in zip(
            families, (len(rows), within, sum(r.excess_cost_seconds or 0.0 for r in rows)), strict=True
        ):
            family.add_metric([job], total, created=running[job])
    yield from families


def _kept(promised: float | None, seconds: float | None) -> bool:
    if not promised or not seconds:
        return False
    return abs(math.log(seconds / promised)) <= PROMISED
