"""Return to service: one check that is strong enough and passes; in all other cases the node stays out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mainstay.probes.ids import uuid7
from mainstay.service.validation.suites import expected_benchmarks

Json = dict[str, Any]


def good_enough(admin: httpx.Client, *suites: str) -> None:
    """Criteria of the reported cohort: at least 90 B/s of everything."""
    names = sorted({name for suite in suites for name in expected_benchmarks(suite)})
    items = [
        {"benchmark": name, "metric": "rate", "cohort": "cpu", "better": "higher", "low": 90.0, "high": None}
        for name in names
    ]
    assert admin.put("/v1/criteria", json={"items": items}).status_code == 200


def obey(node: httpx.Client, name: str = "n1", *, value: float = 100.0, **changes: Any) -> list[str]:
    """Fetch what was ordered and answer all of it; ids of the validations."""
    done = []
    for order in node.get(f"/v1/nodes/{name}/tasks").json()["items"]:
        metrics = [{"name": "rate", "unit": "B/s", "better": "higher", "values": [value] * 3}]
        benchmarks = [
            {"benchmark": b, "state": "ok", "error": None, "seconds": 0.1, "device": "cpu", "digest": None,
             "metrics": metrics}
            for b in expected_benchmarks(order["suite"])
        ]  # fmt: skip
        now = time.time()
        body = {"suite": order["suite"], "started_at": now, "finished_at": now, "benchmarks": benchmarks, "error": None}
        answer = node.post(f"/v1/validations/{order['validation_id']}/results", json=body | changes)
        assert answer.status_code == 200, answer.text
        done.append(order["validation_id"])
    return done


def act(client: httpx.Client, what: str, **body: Any) -> Json:
    answer = client.post(f"/v1/nodes/n1:{what}", json={"reason": "because", **body})
    assert answer.status_code == 200, answer.text
    read: Json = answer.json()
    return read


def state(client: httpx.Client) -> str:
    return str(client.get("/v1/nodes/n1").json()["state"])


@pytest.fixture
def alice(service: Any, enrolled: Callable[..., Any], operator: Callable[..., Any]) -> httpx.Client:
    service.node = enrolled(service)
    good_enough(service.client(), "quick", "standard", "deep")
    client: httpx.Client = operator(service)
    return client


def test_a_pass_brings_it_back_on_both_databases(service_anywhere, enrolled, operator) -> None:
    node, alice = enrolled(service_anywhere), operator(service_anywhere)
    good_enough(service_anywhere.client(), "standard")
    act(alice, "quarantine")
    read = act(alice, "validate")
    assert (read["state"], read["owner"]) == ("validating", "operator")
    assert len(obey(node)) == 1
    read = alice.get("/v1/nodes/n1").json()
    assert (read["state"], read["last_verdict"], read["owner"]) == ("healthy", "pass", "system")
    assert "standard: pass" in read["state_reason"]
    walked = [m["to_state"] for m in alice.get("/v1/nodes/n1/transitions").json()["items"]]
    assert walked[:3] == ["healthy", "validating", "quarantined"]


@pytest.mark.parametrize("change", [{"value": 10.0}, {"error": "killed"}, {"benchmarks": []}])
def test_anything_but_a_pass_keeps_it_out(service: Any, alice: httpx.Client, change: Json) -> None:
    act(alice, "quarantine")
    act(alice, "validate", suite="quick")
    obey(service.node, **change)
    read = alice.get("/v1/nodes/n1").json()
    assert (read["state"], read["owner"]) == ("quarantined", "operator"), read
    assert read["last_verdict"] in {"fail", "unknown"}


def test_a_check_that_nobody_ran_keeps_it_out(start, enrolled, operator) -> None:
    from mainstay.service.validation.service import expire
    from tests.fakes.clock import ManualClock

    clock = ManualClock(1_800_000_000.0)
    service = start(clock)
    enrolled(service)
    alice = operator(service)
    act(alice, "quarantine")
    act(alice, "validate", suite="quick")
    clock.advance(10_000)
    with service.services.database.session() as session:
        expire(session, now=clock.now(), settings=service.settings)
    assert state(alice) == "quarantined"


def test_a_failure_wants_a_check_of_its_own_power(service: Any, alice: httpx.Client) -> None:
    act(alice, "quarantine")
    act(alice, "validate", suite="standard")
    obey(service.node, value=10.0)
    weak = alice.post("/v1/nodes/n1:validate", json={"reason": "quickly", "suite": "quick"})
    assert weak.status_code == 409
    assert "power 2" in weak.json()["detail"]
    assert alice.get("/v1/validations").json()["items"][0]["suite"] == "standard", "the refused one was not ordered"
    act(alice, "validate", suite="deep")
    obey(service.node)
    assert state(alice) == "healthy"


def test_the_suite_is_as_strong_as_the_verdict_asks(service: Any, alice: httpx.Client) -> None:
    act(alice, "quarantine")
    act(alice, "validate", suite="deep")
    obey(service.node, value=10.0)
    act(alice, "validate")
    assert alice.get("/v1/validations").json()["items"][0]["suite"] == "deep"


def test_only_the_ordered_check_counts(service: Any, alice: httpx.Client) -> None:
    act(alice, "quarantine")
    assert alice.post("/v1/validations", json={"node": "n1", "suite": "deep"}).status_code == 202
    obey(service.node)
    assert state(alice) == "quarantined", "a check of a sweep lifts nothing"
    act(alice, "validate", suite="quick")
    assert alice.post("/v1/nodes/n1:validate", json={"reason": "again"}).status_code == 409
    act(alice, "quarantine", reason="no, wait")
    obey(service.node)
    assert state(alice) == "quarantined", "a person called it off"


def test_no_check_beside_a_job(service: Any, alice: httpx.Client, run_job: Callable[..., None]) -> None:
    act(alice, "quarantine")
    run_job(service, "n1")
    refused = alice.post("/v1/nodes/n1:validate", json={"reason": "x"})
    assert (refused.status_code, "demo" in refused.json()["detail"]) == (409, True)
    assert alice.get("/v1/validations").json()["items"] == []


def test_a_pass_takes_back_what_events_said_before_it(service: Any, alice: httpx.Client) -> None:
    event = {"id": uuid7(), "time": time.time(), "kind": "xid", "node": "n1", "device": "gpu0", "data": {"code": 48}}
    assert service.node.post("/v1/events", json={"items": [event]}).status_code == 200
    deadline = time.monotonic() + 60
    while not (incidents := alice.get("/v1/incidents").json()["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    act(alice, "quarantine")
    act(alice, "validate", suite="quick")
    obey(service.node)
    findings = alice.get("/v1/findings").json()["items"]
    assert [finding["active"] for finding in findings] == [False] * len(findings)
    detail = alice.get(f"/v1/incidents/{incidents[0]['id']}").json()
    assert detail["state"] in {"recovered", "verified"}
    assert any("passed after it" in entry["text"] for entry in detail["timeline"])
    assert state(alice) == "healthy"
