"""Remediations over REST: who may see, who may decide, and what bad input gets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.probes.ids import uuid7
from mainstay.service.incidents.models import FindingRow
from mainstay.service.incidents.opening import open_incident
from mainstay.service.incidents.service import Context

Json = dict[str, Any]


def problem(answer: httpx.Response, status: int, slug: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == f"urn:mainstay:problem:{slug}"


def blame(service: Any, node: str, recommended_action: RecommendedAction = RecommendedAction.RESET_GPU) -> None:
    """A finding that wants a node out of service, as a detector would have left it."""
    services, now = service.services, time.time()
    with services.database.session() as session:
        incident = open_incident(
            Context(session, services.settings, now), kinds=["gpu_lost"], severity="critical", job=None, node=node,
            device=None, ranks=[], title="Lost.", summary="Lost.",
        )  # fmt: skip
        session.add(
            FindingRow(
                id=uuid7(),
                key=f"gpu_lost:node={node}",
                kind=FindingKind.GPU_LOST.value,
                node=node,
                time=now,
                severity=Severity.CRITICAL.value,
                detector="hardware_events",
                confidence=1.0,
                evidence={"summary": f"GPU lost on {node}.", "numbers": {}, "series": []},
                active=True,
                recommended_action=recommended_action.value,
                incident_id=incident.id,
            )
        )


@pytest.fixture
def proposed(database_url, start, report, eventually: Callable[..., Any]) -> tuple[Any, Json]:
    """A service with one proposal."""
    service = start(database_url=database_url, remediation={"interval_seconds": 0.05})
    assert service.node_client("n1").put("/v1/nodes/n1", json=report).status_code == 200
    blame(service, "n1")
    admin = service.client()
    (item,) = eventually(lambda: admin.get("/v1/remediations").json()["items"])
    return service, item


def user(service: Any, name: str, scope: str) -> httpx.Client:
    body = {"name": name, "kind": "user", "scopes": [scope]}
    client: httpx.Client = service.client(service.client().post("/v1/auth/tokens", json=body).json()["token"])
    return client


def test_a_proposal_is_seen_and_accepted_by_name(proposed, eventually) -> None:
    service, item = proposed
    alice, admin = user(service, "alice", "act"), service.client()
    assert (item["state"], item["recommended_action"], item["dry_run"], item["decided_by"]) == (
        "proposed",
        "reset_gpu",
        True,
        None,
    )
    assert [rule["verdict"] for rule in item["rules"]] == ["allow"] * len(item["rules"])
    assert admin.get(f"/v1/remediations/{item['id']}").json() == item
    path, body, key = f"/v1/remediations/{item['id']}:accept", {"reason": "yes"}, {"Idempotency-Key": "k"}
    first, again = (alice.post(path, json=body, headers=key) for _ in range(2))
    assert first.json() == again.json()
    assert (first.json()["state"], first.json()["decided_by"]) == ("accepted", "alice")
    problem(alice.post(path, json=body), 409, "already-decided")
    problem(alice.post(path.replace("accept", "dismiss"), json=body), 409, "already-decided")
    eventually(lambda: admin.get("/v1/nodes/n1").json()["state"] == "quarantined")
    moves = admin.get("/v1/nodes/n1/transitions").json()["items"]
    assert [(m["to_state"], m["owner"], m["incident"]) for m in moves[:2]] == [
        ("quarantined", "system", item["incident"]), ("draining", "system", item["incident"]),
    ]  # fmt: skip
    assert moves[1]["actor"] == "alice"
    status = admin.get("/v1/remediation-status").json()
    assert (status["mode"], status["breaker"]["touched"], status["breaker"]["open"]) == ("dry_run", 1, True)
    assert any(e["kind"] == "remediation" for e in admin.get(f"/v1/incidents/{item['incident']}").json()["timeline"])


def test_deciding_wants_the_scope_and_a_reason(proposed) -> None:
    service, item = proposed
    reader, alice = user(service, "eve", "read"), user(service, "alice", "act")
    assert reader.get("/v1/remediations").status_code == 200
    for what in ("accept", "dismiss"):
        path = f"/v1/remediations/{item['id']}:{what}"
        problem(reader.post(path, json={"reason": "x"}), 403, "scope-missing")
        problem(alice.post(f"/v1/remediations/{uuid7()}:{what}", json={"reason": "x"}), 404, "unknown-remediation")
        for bad in ({}, {"reason": ""}, {"reason": "  "}, {"reason": "\x00"}, {"reason": "x", "more": 1}):
            problem(alice.post(path, json=bad), 422, "invalid")
    problem(alice.get("/v1/remediations/a%20b"), 422, "invalid")
    problem(alice.get("/v1/remediations", params={"state": "odd"}), 422, "invalid")
    assert alice.get("/v1/remediations", params={"state": "done"}).json()["items"] == []
    assert alice.get("/v1/remediations", params={"node": "n1", "state": "proposed"}).json()["items"] == [item]
    dismissed = alice.post(f"/v1/remediations/{item['id']}:dismiss", json={"reason": "known"}).json()
    assert (dismissed["state"], dismissed["decided_by"]) == ("dismissed", "alice")
    assert alice.get("/v1/nodes/n1").json()["state"] != "draining"


def test_metrics_tell_of_it(proposed) -> None:
    service, item = proposed
    service.client().post(f"/v1/remediations/{item['id']}:accept", json={"reason": "yes"})
    text = service.client().get("/metrics").text
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["mainstay_remediations", "accepted"] == 1
    assert found["mainstay_remediation_breaker_open",] == 1
    assert found["mainstay_remediation_drained",] == 1
    assert found["mainstay_remediation_automatic",] == 0
    assert found["mainstay_node_transitions_last_hour", "draining", "system"] == 1


def test_from_an_xid_to_a_proposal_in_seconds(start, report, eventually) -> None:
    """The whole way with the real detectors: a GPU that fell off the bus wants its node out of service."""
    service = start(remediation={"interval_seconds": 60.0})  # woken by the detection loop, not by its own clock
    node, admin = service.node_client("n1"), service.client()
    assert node.put("/v1/nodes/n1", json=report).status_code == 200
    event = {
        "id": uuid7(), "time": time.time(), "kind": "xid", "node": "n1", "device": "gpu0",
        "data": {"code": 79, "uptime": 1e6, "source": "nvml", "text": "GPU has fallen off the bus."},
    }  # fmt: skip
    began = time.monotonic()
    assert node.post("/v1/events", json={"items": [event]}).status_code == 200
    (item,) = eventually(lambda: admin.get("/v1/remediations").json()["items"])
    assert time.monotonic() - began < 10.0
    assert (item["node"], item["device"], item["state"]) == ("n1", "gpu0", "proposed")
    assert RecommendedAction(item["recommended_action"]).evicts
    decided = admin.get("/v1/overview").json()["automated_actions"]
    assert any("take n1 out of service" in decision["text"] for decision in decided)
