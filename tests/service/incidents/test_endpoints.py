"""Incidents, findings, plans, jobs and events over REST: permissions, rejections, and their messages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Json = dict[str, Any]


def problem(answer: httpx.Response, status: int, slug: str) -> Json:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: Json = answer.json()
    assert body["type"] == f"urn:mainstay:problem:{slug}"
    assert body["detail"]
    return body


@pytest.fixture
def incident(job: Any) -> Json:
    job.kill()
    detail: Json = job.wait_for("open")
    return detail


# events


def test_events_are_listed_newest_first_and_page_by_page(service: Any, job: Any, admin: httpx.Client) -> None:
    events = [job.event("xid", node="n0") | {"job": None, "time": 1000.0 + i} for i in range(5)]
    node = service.node_client("n0")
    assert node.post("/v1/events", json={"items": events}).status_code == 200
    seen: list[str] = []
    cursor = None
    while True:
        query = {"limit": 2, "kind": "xid"} | ({"cursor": cursor} if cursor else {})
        page = admin.get("/v1/events", params=query).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [event["id"] for event in reversed(events)]
    assert len(admin.get("/v1/events", params={"since": 1003.0, "node": "n0"}).json()["items"]) == 2
    item = admin.get("/v1/events", params={"limit": 1, "kind": "xid"}).json()["items"][0]
    assert item["received_at"] > item["time"]


BAD_EVENTS: list[tuple[Json, str]] = [
    ({"id": "1"}, "id"),
    ({"id": "0197f9e4-1c2d-4abc-8def-0123456789ab"}, "id"),  # a UUID of another version
    ({"time": -1.0}, "time"),
    ({"time": 1e15}, "time"),
    ({"time": math.nan}, "time"),
    ({"time": math.inf}, "time"),
    ({"rank": -1}, "rank"),
    ({"rank": "one"}, "rank"),
    ({"rank": math.nan}, "rank"),
    ({"job": "../etc"}, "job"),
    ({"node": ""}, "node"),
    ({"data": [1]}, "data"),
    ({"data": {"x": 2**70}}, "data"),
    ({"data": {"x": [math.nan]}}, "data"),
    ({"data": {"x": -math.inf}}, "data"),
    ({"kind": "recovery_planned", "data": {"plan": {"id": "p"}}}, "plan"),
]


def test_bad_events_are_refused_by_name_and_nothing_is_stored(job: Any) -> None:
    """One server for all: a refused batch leaves nothing behind that the next could see."""
    for change, said in BAD_EVENTS:
        good, bad = job.event("xid", node="n0"), job.event("process_exit", node="n0") | change
        body = json.dumps({"items": [good, bad]})  # unlike httpx, json writes NaN
        answer = job.client.post("/v1/events", content=body, headers={"content-type": "application/json"})
        assert said in json.dumps(problem(answer, 422, "invalid")["errors"]), change
    assert job.client.get("/v1/events").json()["items"] == []


def test_broken_output_does_not_cost_the_news(job: Any) -> None:
    job.send(job.event("process_exit", rank=1, node="n0", signal=9, tail=["last \x00 words"], **{"k\x00": 1}))
    (event,) = job.client.get("/v1/events").json()["items"]
    assert event["data"]["tail"] == ["last \ufffd words"]
    assert "k\ufffd" in event["data"]
    job.wait_for("open")


def test_more_than_five_hundred_events_are_refused(job: Any) -> None:
    events = [job.event("process_exit", node="n0") for _ in range(501)]
    problem(job.client.post("/v1/events", json={"items": events}), 422, "invalid")
    job.send(*events[:500])


def test_a_node_speaks_for_itself_only(service: Any, job: Any) -> None:
    node = service.node_client("n0")
    own = job.event("xid", node="n0") | {"job": None}
    assert node.post("/v1/events", json={"items": [own]}).json() == {"accepted": 1, "duplicates": 0, "set_aside": 0}
    other = job.event("xid", node="n1") | {"job": None}
    problem(node.post("/v1/events", json={"items": [own, other]}), 403, "wrong-node")
    nobody = job.event("xid") | {"job": None}
    problem(node.post("/v1/events", json={"items": [nobody]}), 403, "wrong-node")


def test_a_jobs_token_speaks_for_its_job_only(service: Any, job: Any) -> None:
    body = {"name": "demo", "kind": "job", "scopes": ["report"], "job": "demo-1"}
    client = service.client(service.client().post("/v1/auth/tokens", json=body).json()["token"])
    assert client.post("/v1/events", json={"items": [job.event("job_started")]}).status_code == 200
    other = job.event("job_started") | {"job": "demo-2"}
    problem(client.post("/v1/events", json={"items": [other]}), 403, "wrong-job")
    no_job = job.event("xid", node="n0") | {"job": None}
    problem(client.post("/v1/events", json={"items": [no_job]}), 403, "wrong-node")


# jobs


def test_an_unknown_job_is_404(admin: httpx.Client) -> None:
    for path in ("/v1/jobs/absent", "/v1/jobs/absent/steps", "/v1/jobs/absent/recoveries"):
        problem(admin.get(path), 404, "unknown-job")


def test_a_job_is_read_as_it_was_reported(job: Any, report_job: Callable[..., Json]) -> None:
    answer = job.client.put("/v1/jobs/other", json=report_job(name="other"))
    assert answer.status_code == 200, answer.text
    read = answer.json()
    assert read["command"] == "train.py --steps 90"
    assert (read["open_incidents"], read["recoveries"]) == (0, 0)
    assert read["ettr"] == pytest.approx(1.0)
    assert job.client.get("/v1/jobs/other").json()["topology"] == read["topology"]
    assert {item["id"] for item in job.client.get("/v1/jobs").json()["items"]} == {"demo-1", "other"}
    assert job.client.get("/v1/jobs", params={"state": "failed"}).json()["items"] == []


def test_a_fenced_generation_may_not_report(job: Any, report_job: Callable[..., Json]) -> None:
    said = report_job(generation=3)
    assert job.client.put("/v1/jobs/demo-2", json=said).status_code == 200
    problem(job.client.put("/v1/jobs/demo-2", json=said | {"generation": 2}), 409, "stale-generation")
    again = said | {"generation": 1, "started_at": said["started_at"] + 50}
    assert job.client.put("/v1/jobs/demo-2", json=again).status_code == 200, "a new run may reuse the id"


def test_a_report_that_arrives_after_the_last_one_of_a_job_changes_nothing(
    job: Any, report_job: Callable[..., Json]
) -> None:
    """A process that was stopped answers a request later, which its sender has given up and sent to another one."""
    said = report_job(generation=3)
    last = said | {"state": "finished", "finished_at": said["started_at"] + 90}
    for _ in range(2):
        assert job.client.put("/v1/jobs/demo-2", json=last).status_code == 200
    problem(job.client.put("/v1/jobs/demo-2", json=said), 409, "stale-generation")
    assert job.client.get("/v1/jobs/demo-2").json()["state"] == "finished"
    resumed = said | {"generation": 4}
    assert job.client.put("/v1/jobs/demo-2", json=resumed).status_code == 200, "another coordinator has taken over"


def _break(report: Json, path: str, value: Any) -> Json:
    *parents, last = path.split(".")
    target: Any = report
    for parent in parents:
        target = target[int(parent)] if parent.isdigit() else target[parent]
    target[last] = value
    return report


BAD_REPORTS: list[tuple[str, Any]] = [
    ("topology.world_size", 5), ("topology.ranks.1.rank", 0), ("topology.ranks.1.rank", 4),
    ("topology.ranks.0.dp", 7), ("topology.ranks.0.node", "a b"), ("state", "Sleeping"), ("started_at", "soon"),
    ("protection.state_bytes", [-1]), ("generation", -1), ("command", {"a": 1}), ("last_step", 2**60),
]  # fmt: skip


def test_bad_job_reports_are_refused(job: Any, report_job: Callable[..., Json]) -> None:
    for path, value in BAD_REPORTS:
        answer = job.client.put("/v1/jobs/demo-9", json=_break(report_job(), path, value))
        assert answer.status_code == 422, (path, value)
        problem(answer, 422, "invalid")
    problem(job.client.get("/v1/jobs/demo-9"), 404, "unknown-job")


def test_steps_of_a_job_without_any(job: Any) -> None:
    assert job.client.get("/v1/jobs/demo-1/steps").json() == {
        "steps": [], "ranks": [], "step_time_seconds": [], "compute_time_seconds": [], "loss": [],
    }  # fmt: skip
    problem(job.client.get("/v1/jobs/demo-1/steps", params={"points": 0}), 422, "invalid")


# incidents


def test_an_incident_is_closed_by_hand_with_a_reason(job: Any, incident: Json) -> None:
    path = f"/v1/incidents/{incident['id']}:close"
    problem(job.client.post(path, json={"reason": ""}), 422, "invalid")
    problem(job.client.post(path, json={"reason": " "}), 422, "invalid")
    problem(job.client.post(path, json={}), 422, "invalid")
    closed = job.client.post(path, json={"reason": "pulled the plug myself"})
    assert closed.json()["state"] == "closed"
    problem(job.client.post(path, json={"reason": "again"}), 409, "illegal-transition")
    problem(
        job.client.post(f"/v1/incidents/{incident['id']}:acknowledge", json={"reason": "late"}),
        409,
        "illegal-transition",
    )
    last = job.incident()["timeline"][-1]
    assert (last["kind"], last["data"]["reason"]) == ("closed_by_operator", "pulled the plug myself")
    assert not any(finding["active"] for finding in job.incident()["findings"])


def test_a_finding_after_the_close_opens_a_new_incident(job: Any, incident: Json, eventually: Any) -> None:
    job.client.post(f"/v1/incidents/{incident['id']}:close", json={"reason": "seen"})
    job.kill()
    eventually(lambda: len(job.incidents()) == 2)


def test_the_same_key_closes_once(job: Any, incident: Json) -> None:
    path, headers = f"/v1/incidents/{incident['id']}:close", {"Idempotency-Key": "k1"}
    first = job.client.post(path, json={"reason": "seen"}, headers=headers)
    again = job.client.post(path, json={"reason": "seen"}, headers=headers)
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    problem(job.client.post(path, json={"reason": "else"}, headers=headers), 422, "idempotency-mismatch")


def test_acknowledging_takes_it_off_the_list_of_what_needs_a_human(job: Any, incident: Json, eventually: Any) -> None:
    job.send(job.event("recovery_failed", reason="no spare"))
    eventually(lambda: job.incident()["needs_operator"])
    answer = job.client.post(f"/v1/incidents/{incident['id']}:acknowledge", json={"reason": "on it"})
    assert (answer.json()["needs_operator"], answer.json()["state"]) == (False, "open")
    assert job.client.get("/v1/overview").json()["needs_operator"] == []


def test_a_reader_may_look_and_not_touch(service: Any, incident: Json) -> None:
    body = {"name": "viewer", "kind": "user", "scopes": ["read"]}
    viewer = service.client(service.client().post("/v1/auth/tokens", json=body).json()["token"])
    assert viewer.get(f"/v1/incidents/{incident['id']}").status_code == 200
    problem(viewer.post(f"/v1/incidents/{incident['id']}:close", json={"reason": "x"}), 403, "scope-missing")
    problem(viewer.put("/v1/jobs/demo-1", json={}), 403, "scope-missing")
    problem(service.client("").get("/v1/incidents"), 401, "unauthorized")


def test_unknown_ids_are_404(admin: httpx.Client) -> None:
    problem(admin.get("/v1/incidents/absent"), 404, "unknown-incident")
    problem(admin.post("/v1/incidents/absent:close", json={"reason": "x"}), 404, "unknown-incident")
    problem(admin.get("/v1/recovery-plans/absent"), 404, "unknown-plan")


def test_incidents_and_findings_are_filtered(job: Any, incident: Json) -> None:
    get = job.client.get
    assert [i["id"] for i in get("/v1/incidents", params={"node": "n0", "state": "open"}).json()["items"]] == [
        incident["id"]
    ]
    assert get("/v1/incidents", params={"node": "n1"}).json()["items"] == []
    assert get("/v1/incidents", params={"state": "closed"}).json()["items"] == []
    (finding,) = get("/v1/findings", params={"kind": "process_exit", "job": "demo-1"}).json()["items"]
    assert finding["entity"] == {"node": "n0", "device": None, "job": "demo-1", "rank": 1, "peer": None}
    assert finding["incident"] == incident["id"]
    assert get("/v1/findings", params={"node": "n1"}).json()["items"] == []
    problem(get("/v1/incidents", params={"state": "active_incidents"}), 422, "invalid")
    problem(get("/v1/incidents", params={"cursor": "!"}), 422, "invalid-cursor")


def test_every_change_is_told_to_watchers(service: Any, job: Any, incident: Json) -> None:
    from mainstay.service.stream import changes
    from mainstay.service.stream.position import START

    job.plan()
    job.wait_for("recovering")
    with service.services.database.reading() as session:
        told = [(row.topic, row.data) for row in changes.after(session, START) or ()]
    about = [data for topic, data in told if topic == "incident"]
    assert {data["id"] for data in about} == {incident["id"]}
    assert [data["state"] for data in about][-1] == "recovering"
    assert {"event", "job"} <= {topic for topic, _ in told}


def test_the_first_screen(job: Any, incident: Json) -> None:
    screen = job.client.get("/v1/overview").json()
    assert [item["id"] for item in screen["active_incidents"]] == [incident["id"]]
    assert (screen["automated_actions"], screen["needs_operator"]) == ([], [])
    assert screen["nodes"] == dict.fromkeys(
        ["unknown", "healthy", "suspect", "draining", "quarantined", "validating"], 0
    )
    assert (screen["devices"], screen["data_age_seconds"]) == (0, None)
    assert [item["id"] for item in screen["jobs"]] == ["demo-1"]
    plan = job.plan()
    job.recover(plan["id"])
    job.wait_for("recovered")
    screen = job.client.get("/v1/overview").json()
    assert screen["active_incidents"] == []
    assert [item["plan"] for item in screen["automated_actions"]] == [None, plan["id"]]
    assert {item["job"] for item in screen["automated_actions"]} == {"demo-1"}


def test_metrics_count_what_is_open(service: Any, incident: Json) -> None:
    text = service.client().get("/metrics").text
    assert 'mainstay_incidents{state="open"} 1.0' in text
    assert "mainstay_findings_active 1.0" in text
    assert "mainstay_events_pending_age_seconds 0.0" in text
