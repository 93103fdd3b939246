"""Silences: what they cover, when, and what happens to messages meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mainstay.probes.ids import uuid7
from mainstay.service.incidents.models import FindingRow
from mainstay.service.notifications.planner import Planner
from mainstay.service.silences.matching import Coverage, Silence, covering
from mainstay.service.silences.models import SilenceRow
from tests.service.conftest import Running
from tests.service.notifications.conftest import START, PlannerBench
from tests.service.notifications.test_planner import ALL

Json = dict[str, Any]
ONE = Coverage(detector="xid", kind="xid", node="n1", rack="r1", cohort="h100", job="llm", switches=("s1", "s9"))


def silence(**conditions: Any) -> Silence:
    return Silence(**{"id": "a", "starts_at": 0.0, "ends_at": 1000.0} | conditions)


@pytest.mark.parametrize(
    ("conditions", "covered"),
    [
        ({"nodes": ("n1",)}, True),
        ({"nodes": ("n?",), "racks": ("r2",)}, False),
        ({"racks": ("r*",), "kinds": ("xid",), "detectors": ("xid",)}, True),
        ({"switches": ("s9",)}, True),
        ({"switches": ("s2",)}, False),
        ({"cohorts": ("a100",)}, False),
        ({"jobs": ("llm",)}, True),
        ({"kinds": ("node_lost",)}, False),
    ],
)
def test_all_conditions_must_hold(conditions: Json, *, covered: bool) -> None:
    assert silence(**conditions).covers(ONE) is covered


def test_a_finding_without_a_name_matches_no_pattern() -> None:
    assert not silence(nodes=("*",)).covers(Coverage(detector="d", kind="k"))
    assert not silence(switches=("*",)).covers(Coverage(detector="d", kind="k", node="n1"))


def test_it_covers_a_node_for_any_finding() -> None:
    assert silence(racks=("r1",), kinds=("xid",)).covers_node("n1", "r1", "", [])
    assert not silence(racks=("r1",)).covers_node("n1", "r2", "", [])


def test_hours_within_start_and_end() -> None:
    saturday = datetime(2026, 11, 28, 3, 0, tzinfo=UTC).timestamp()
    window = silence(starts_at=saturday - 10_000, ends_at=saturday + 10_000, hours="Sat 02:00-04:00", nodes=("*",))
    assert window.is_active(saturday)
    assert not window.is_active(saturday + 3600)
    assert not silence(nodes=("*",)).is_active(1000.0)


def test_several_silences_may_cover_an_incident_together() -> None:
    other = Coverage(detector="heartbeat", kind="node_lost", node="n2", rack="r2")
    first, second = silence(id="a", racks=("r1",)), silence(id="b", nodes=("n2",))
    assert covering([first, second], [ONE, other]) == [first, second]
    assert covering([first], [ONE, other]) == []
    assert covering([first], []) == [], "an incident without findings that hold is not covered"


def add_silence(bench: PlannerBench, seconds: float, **conditions: Any) -> None:
    lists: Json = {name: [] for name in ("detectors", "kinds", "nodes", "racks", "switches", "cohorts", "jobs")}
    with bench.services.database.session() as session:
        session.add(
            SilenceRow(
                id=uuid7(), reason="rewiring", actor="ada", created_at=bench.clock.now(), starts_at=bench.clock.now(),
                ends_at=bench.clock.now() + seconds, timezone="UTC", **lists | conditions,
            )
        )  # fmt: skip


def add_finding(bench: PlannerBench, incident: str, node: str) -> None:
    with bench.services.database.session() as session:
        session.add(
            FindingRow(
                id=uuid7(), key=f"xid/{node}", kind="xid", node=node, time=START, severity="critical", detector="xid",
                confidence=1.0, evidence={}, active=True, incident_id=incident,
            )
        )  # fmt: skip


def test_a_silenced_incident_is_sent_when_the_silence_ends(bench: PlannerBench) -> None:
    bench.configure(ALL)
    bench.add_node("n1", rack="r1")
    add_silence(bench, 600.0, racks=["r1"])
    incident = bench.open(node="n1")
    add_finding(bench, incident, "n1")
    assert bench.run() == []
    bench.change(incident, severity="critical", needs_operator=True)
    assert bench.run(599) == []
    assert bench.run(1) == [("oncall", "opened")]
    assert bench.run() == []


def test_a_silence_that_ended_while_no_process_planned_is_noticed(bench: PlannerBench) -> None:
    bench.configure(ALL)
    add_silence(bench, 60.0, nodes=["n1"])
    add_finding(bench, bench.open(node="n1"), "n1")
    assert bench.run() == []
    bench.clock.advance(100)
    bench.planner = Planner(bench.services)
    assert bench.run() == [("oncall", "opened")]


def test_what_ends_in_the_moment_in_which_a_silence_ends_is_resolved(bench: PlannerBench) -> None:
    bench.configure(ALL)
    incident = bench.open(node="n1")
    assert bench.run() == [("oncall", "opened")]
    add_silence(bench, 60.0, nodes=["n2"])
    assert bench.run() == []
    bench.end(incident)
    assert bench.run(60) == [("oncall", "resolved")]


def test_a_finding_that_is_not_covered_breaks_the_silence(bench: PlannerBench) -> None:
    bench.configure(ALL)
    add_silence(bench, 600.0, nodes=["n1"])
    incident = bench.open(node="n1")
    add_finding(bench, incident, "n1")
    assert bench.run() == []
    add_finding(bench, incident, "n2")
    bench.change(incident, summary="n2 as well")
    assert bench.run() == [("oncall", "opened")]


def test_repeated_messages_wait_for_the_end_and_the_resolution_does_not(bench: PlannerBench) -> None:
    bench.configure(ALL + "repeat_minutes = 10\n")
    incident = bench.open(node="n1")
    add_finding(bench, incident, "n1")
    assert bench.run() == [("oncall", "opened")]
    add_silence(bench, 1500.0, nodes=["n1"])
    assert bench.run(600) == []
    assert bench.run(600) == []
    assert bench.run(360) == [("oncall", "repeated")]
    add_silence(bench, 1500.0, nodes=["n1"])
    bench.end(incident)
    assert bench.run() == [("oncall", "resolved")]


def test_endpoints(service: Running, any_report: Json) -> None:
    admin = service.client()
    for name, rack in (("n1", "r1"), ("n2", "r2")):
        service.node_client(name).put(f"/v1/nodes/{name}", json={**any_report, "rack": rack})
    now = service.services.clock.now()
    made = admin.post("/v1/silences", json={"reason": "rewiring", "racks": ["r1"], "ends_at": now + 600})
    assert made.status_code == 201, made.text
    assert (made.json()["state"], made.json()["nodes_matched"], made.json()["actor"]) == ("active", 1, "first admin")
    found = admin.get("/v1/silences?node=n1").json()["items"]
    assert [one["id"] for one in found] == [made.json()["id"]]
    assert admin.get("/v1/silences?node=n2").json()["items"] == []
    assert admin.get("/v1/silences?incident=none").status_code == 404
    ended = admin.post(f"/v1/silences/{made.json()['id']}:end", json={})
    assert (ended.status_code, ended.json()["state"], ended.json()["ended_by"]) == (200, "over", "first admin")
    assert admin.post(f"/v1/silences/{made.json()['id']}:end", json={}).status_code == 409
    assert admin.post("/v1/silences/none:end", json={}).status_code == 404
    assert admin.get("/v1/silences").json()["items"] == []
    assert len(admin.get("/v1/silences?all=true").json()["items"]) == 1


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"racks": []}, "give at least one of"),
        ({"reason": " "}, "body.reason"),
        ({"ends_at": 1.0}, "must be later than now"),
        ({"ends_at": 1e11}, "must be within 366 days"),
        ({"hours": "always"}, "is not of the form"),
        ({"timezone": "Mars"}, "is no time zone"),
        ({"raks": ["r1"]}, "body.raks"),
    ],
)
def test_bad_silences_are_refused(lasting_service: Running, changes: Json, fault: str) -> None:
    body = {"reason": "x", "racks": ["r1"], "ends_at": lasting_service.services.clock.now() + 60} | changes
    answer = lasting_service.client().post("/v1/silences", json=body)
    assert answer.status_code == 422
    assert fault in answer.text
