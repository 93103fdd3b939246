"""The report of a real service, on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.probes.ids import uuid7
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.incidents.models import IncidentRow, TimelineRow
from mainstay.service.jobs.models import JobRow, RecoveryRow
from tests.service.conftest import Running

DAY = 86_400.0
HOUR = 3600.0


def put_history(service: Running, now: float) -> None:
    """Two jobs, three incidents of which one is part of another, and a node that is out for an hour."""
    with service.services.database.session() as session:
        for name, ranks, start, end in (("a", 8, now - 2 * DAY, now - DAY), ("=b", 2, now - 40 * DAY, now)):
            session.add(
                JobRow(
                    id=name, name=name, state="running", generation=1, command="", protection={}, steps_total=None,
                    topology={"world_size": ranks, "ranks": []}, last_step=1000, started_at=start,
                    finished_at=end if name == "a" else None, last_seen_at=end, request_obstacles=None,
                )
            )  # fmt: skip
        for name, opened, cause in (
            ("i1", now - 1.5 * DAY, "faulty_gpu"),
            ("i2", now - 3 * DAY, None),
            ("i3", now, None),
        ):
            session.add(
                IncidentRow(
                    id=name, title="t", summary="s", state="closed", version=1, severity="critical",
                    needs_operator=False, opened_at=opened - 10, recovered_at=opened + 50, closed_at=opened + 60,
                    updated_at=opened, ranks=[], kinds=["xid"], cause=cause, node="n1",
                )
            )  # fmt: skip
        session.flush()
        session.add(
            TimelineRow(
                id=uuid7(), incident_id="i3", time=now, kind="merged", text="The same thing as incident i1.",
                data={"trigger": "merged"},
            )
        )  # fmt: skip
        session.add(
            RecoveryRow(
                id="r1", job="a", generation=1, failed_at=now - 1.5 * DAY, planned_at=None,
                recovered_at=now - 1.5 * DAY + 60, verified_at=None, failed_ranks=[1], restore_strategy="local",
                steps_lost=3, planned_seconds=None, seconds=60.0, parts={"detect": 15.0}, epoch=None,
                outcome="verified", incident_id="i1", plan_id=None, absent_ranks=2,
            )
        )  # fmt: skip
        session.add(NodeRow(name="n1", cohort="h100", gpus=8, first_seen_at=now - 10 * DAY))
        session.flush()
        for version, time, before, after in (
            (1, now - 5 * HOUR, "healthy", "draining"),
            (2, now - 4.5 * HOUR, "draining", "quarantined"),
            (3, now - 4 * HOUR, "quarantined", "healthy"),
        ):
            session.add(
                TransitionRow(
                    id=uuid7(), node="n1", version=version, time=time, trigger="drain", from_state=before,
                    to_state=after, owner="operator", actor="ada", reason="r",
                )
            )  # fmt: skip


def test_the_report(service_anywhere: Running) -> None:
    service = service_anywhere
    now = service.services.clock.now()
    put_history(service, now)
    admin = service.client()
    found: dict[str, Any] = admin.get(f"/v1/reports/reliability?since={now - 7 * DAY}").json()
    summary = found["summary"]
    assert (summary["jobs"], summary["incidents"], summary["recoveries"]) == (2, 2, 1)
    step = (DAY - 60) / 1000
    lost = (60 + 3 * step) * 8 / HOUR
    assert summary["gpu_hours"] == pytest.approx(24 * 8 + 7 * 24 * 2, rel=1e-3)
    assert sum(summary["lost_gpu_hours"][name] for name in ("detection", "recovery", "repeated")) == pytest.approx(lost)
    assert summary["lost_gpu_hours"]["detection"] == pytest.approx(15 * 8 / HOUR)
    assert summary["lost_gpu_hours"]["degraded"] == pytest.approx(2 * (DAY / 2 - 60) / HOUR)
    assert found["jobs"][0]["degraded_gpu_hours"] == pytest.approx(2 * (DAY / 2 - 60) / HOUR)
    assert summary["lost_gpu_hours"]["out_of_service"] == pytest.approx(8.0)
    assert summary["ettr"] == pytest.approx(1 - lost / summary["gpu_hours"])
    assert summary["mean_repair_seconds"] == pytest.approx(60.0)
    assert summary["between_failures"]["hours"] == pytest.approx((7 * 24 - 1) / 2, rel=1e-3)
    assert [job["id"] for job in found["jobs"]] == ["a", "=b"]
    assert [(row["cause"], row["incidents"]) for row in found["causes"]] == [("faulty_gpu", 1), ("unknown", 1)]
    assert found["cohorts"][0]["cohort"] == "h100"
    assert found["nodes"] == [{"name": "n1", "incidents": 2, "out_of_service_hours": pytest.approx(1.0)}]
    assert (found["before"]["jobs"], found["before"]["incidents"]) == (1, 0)

    text = admin.get("/v1/reports/reliability.csv").text.splitlines()
    assert text[0].startswith("job,name,ranks,hours,ettr")
    assert text[2].startswith("'=b,'=b,2,"), "a spreadsheet must not calculate it"


def test_an_empty_service_reports_nothing_rather_than_health(service: Running) -> None:
    answer = service.client().get("/v1/reports/reliability")
    assert answer.status_code == 200, answer.text
    summary = answer.json()["summary"]
    assert (summary["ettr"], summary["mean_repair_seconds"]) == (None, None)
    assert summary["between_failures"]["hours"] is None


@pytest.mark.parametrize("query", ["since=200&until=100", "since=0", "restart_minutes=-1"])
def test_bad_periods_are_refused(lasting_service: Running, query: str) -> None:
    assert lasting_service.client().get(f"/v1/reports/reliability?{query}").status_code == 422
