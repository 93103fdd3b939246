"""From an order to a verdict over REST, and what never passes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Json = dict[str, Any]


def problem(answer: httpx.Response, status: int, slug: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"urn:mainstay:problem:{slug}"


@pytest.fixture
def node(service: Any, enroll: Callable[..., Any]) -> Any:
    return enroll(service, "n1")


def order(admin: httpx.Client, suite: str = "quick") -> Json:
    answer = admin.post("/v1/validations", json={"node": "n1", "suite": suite})
    assert answer.status_code == 202, answer.text
    made: Json = answer.json()
    return made


def validate(admin: httpx.Client, node: Any, suite: str = "quick", **changes: Any) -> Json:
    made = order(admin, suite)
    (taken,) = node.orders()
    assert node.obey(taken, **changes).status_code == 200
    read: Json = admin.get(f"/v1/validations/{made['id']}").json()
    return read


def test_suites_say_what_they_measure(admin: httpx.Client) -> None:
    items = admin.get("/v1/suites").json()["items"]
    assert [suite["name"] for suite in items] == ["quick", "standard", "deep"]
    gemm = next(b for b in items[0]["benchmarks"] if b["name"] == "gemm")
    assert gemm["metrics"]
    assert set(gemm["metrics"][0]) == {"name", "unit", "better"}


def test_an_order_is_taken_once_and_ends_in_a_verdict(admin: httpx.Client, node: Any, criteria: Any) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    made = order(admin)
    assert (made["state"], made["verdict"], made["results"]) == ("queued", "unknown", [])
    (taken,) = node.orders()
    assert (taken["kind"], taken["suite"], taken["validation_id"]) == ("validate", "quick", made["id"])
    assert taken["deadline_at"] > time.time()
    assert node.orders() == []
    assert admin.get(f"/v1/validations/{made['id']}").json()["state"] == "taken"
    assert node.obey(taken).status_code == 200
    read = admin.get(f"/v1/validations/{made['id']}").json()
    assert (read["state"], read["verdict"]) == ("done", "pass"), read["reason"]
    result = read["results"][0]
    assert (result["value"], result["unit"], result["verdict"]) == (100.0, "B/s", "pass")
    assert (result["criterion"]["low"], result["criterion"]["source"]) == (90.0, "stated")
    assert admin.get("/v1/validations", params={"node": "n1"}).json()["items"] == [read]
    assert admin.get("/v1/nodes/n1").json()["last_verdict"] == "pass"
    told = admin.post("/v1/admission", json={"job": "llm", "nodes": ["n1"]}).json()
    assert {node["verdict"] for node in told["nodes"]} <= {"pass"}, "the gate knows it with the next question"


def test_without_criteria_nothing_passes(admin: httpx.Client, node: Any) -> None:
    read = validate(admin, node)
    assert read["verdict"] == "unknown"
    assert {result["verdict"] for result in read["results"]} == {"unknown"}


def test_a_slow_node_fails_and_is_suspect_until_an_equal_suite_passes(
    admin: httpx.Client, node: Any, criteria: Any
) -> None:
    admin.put("/v1/criteria", json={"items": criteria("standard")})
    node.scale = 0.5
    assert validate(admin, node, "standard")["verdict"] == "fail"
    read = admin.get("/v1/nodes/n1").json()
    assert (read["state"], read["last_verdict"]) == ("suspect", "fail")
    assert "standard" in read["state_reason"]
    node.scale = 1.0
    assert validate(admin, node, "quick")["verdict"] == "pass"
    assert admin.get("/v1/nodes/n1").json()["last_verdict"] == "fail", "a weaker check clears nothing"
    assert validate(admin, node, "standard")["verdict"] == "pass"
    read = admin.get("/v1/nodes/n1").json()
    assert (read["state"], read["last_verdict"]) == ("healthy", "pass")


@pytest.mark.parametrize(
    "change",
    [
        {"error": "killed at its deadline"},
        {"benchmarks": []},
    ],
)
def test_what_could_not_run_is_unknown(admin: httpx.Client, node: Any, criteria: Any, change: Json) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    read = validate(admin, node, **change)
    assert (read["state"], read["verdict"]) == ("done", "unknown")
    assert change.get("error", "missing") in read["reason"]


def test_a_missing_benchmark_is_unknown(admin: httpx.Client, node: Any, criteria: Any, results: Any) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    read = validate(admin, node, benchmarks=results("quick")["benchmarks"][1:])
    assert read["verdict"] == "unknown"
    assert "missing" in read["reason"]


def test_results_sent_twice_count_once(admin: httpx.Client, node: Any, criteria: Any, results: Any) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    read = validate(admin, node)
    again = node.client.post(f"/v1/validations/{read['id']}/results", json=results("quick", 0.1))
    assert again.status_code == 200
    assert again.json() == read


def test_verdicts_and_fields_of_a_newer_node_are_left_aside(admin: httpx.Client, node: Any, results: Any) -> None:
    body = results("quick")
    body["benchmarks"][0]["verdict"] = "pass"
    read = validate(admin, node, benchmarks=body["benchmarks"], invented_later=True)
    assert read["verdict"] == "unknown"


@pytest.mark.parametrize("spoil", ["suite", "order", "nan", "metric", "foreign"])
def test_bad_results_are_refused_and_nothing_is_stored(
    service: Any, node: Any, results: Any, enroll: Any, spoil: str
) -> None:
    admin = service.client()
    made = order(admin)
    body = results("quick")
    path, client, expected = f"/v1/validations/{made['id']}/results", node.client, (422, "invalid")
    if spoil == "suite":
        body, expected = results("deep"), (422, "wrong-suite")
    elif spoil == "order":
        body["finished_at"] = body["started_at"] - 5
    elif spoil == "metric":
        body["benchmarks"][0]["metrics"][0]["better"] = "bigger"
    elif spoil == "foreign":
        client, expected = enroll(service, "n2").client, (403, "wrong-node")
    if spoil == "nan":
        text = json.dumps(body | {"benchmarks": [body["benchmarks"][0] | {"seconds": float("nan")}]})
        answer = client.post(path, content=text, headers={"content-type": "application/json"})
    else:
        answer = client.post(path, json=body)
    problem(answer, *expected)
    read = admin.get(f"/v1/validations/{made['id']}").json()
    assert (read["state"], read["results"]) == ("queued", [])


def test_unknown_things_are_named(admin: httpx.Client, node: Any) -> None:
    problem(admin.post("/v1/validations", json={"node": "absent", "suite": "quick"}), 404, "unknown-node")
    problem(admin.post("/v1/validations", json={"node": "n1", "suite": "slow"}), 422, "unknown-suite")
    problem(admin.get("/v1/validations/absent"), 404, "unknown-validation")
    problem(node.client.get("/v1/nodes/n2/tasks"), 403, "wrong-node")
    problem(node.client.get("/v1/nodes/n1/tasks", params={"wait": 60}), 422, "invalid")
    problem(node.client.post("/v1/validations", json={"node": "n1", "suite": "quick"}), 403, "scope-missing")
    problem(admin.get("/v1/nodes/absent/tasks"), 404, "unknown-node")


def test_the_same_key_orders_once(admin: httpx.Client, node: Any) -> None:
    headers = {"Idempotency-Key": "k"}
    body = {"node": "n1", "suite": "quick"}
    first = admin.post("/v1/validations", json=body, headers=headers)
    again = admin.post("/v1/validations", json=body, headers=headers)
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert len(node.orders()) == 1


def test_a_long_poll_answers_when_the_order_comes(admin: httpx.Client, node: Any) -> None:
    answers: list[tuple[float, list[Json]]] = []

    def poll() -> None:
        items = node.orders(wait=10)
        answers.append((time.monotonic(), items))

    thread = threading.Thread(target=poll)
    thread.start()
    time.sleep(0.3)  # the poll must be waiting already; if it is not, the test only proves less
    ordered = time.monotonic()
    made = order(admin)
    thread.join(12)
    ((at, items),) = answers
    assert [item["validation_id"] for item in items] == [made["id"]]
    assert at - ordered < 9.0  # not only when the poll ends, after ten


def test_a_long_poll_without_orders_ends_by_itself(node: Any) -> None:
    began = time.monotonic()
    assert node.orders(wait=0.3) == []
    assert 0.25 < time.monotonic() - began < 5.0


def test_criteria_are_learned_from_stored_results(admin: httpx.Client, node: Any) -> None:
    for count in range(6):
        node.scale = 1.0 + 0.005 * count
        validate(admin, node)
    learned = admin.post("/v1/criteria:learn", json={"cohort": "cpu"}).json()["items"]
    assert learned
    assert {c["source"] for c in learned} == {"learned:Validator"}
    assert all(50 < c["low"] < 100 and c["n"] == 6 for c in learned)
    assert admin.get("/v1/criteria").json()["items"] == learned
    assert validate(admin, node)["verdict"] == "pass"
    node.scale = 0.5
    assert validate(admin, node)["verdict"] == "fail"


def test_criteria_of_another_driver_do_not_count(admin: httpx.Client, node: Any, report: Json, criteria: Any) -> None:
    """Those learned under a driver hold for it; those of the hardware alone for every driver without its own."""
    gpu = {"id": "gpu0", "index": 0, "kind": "gpu", "model": "H100", "serial": None, "uuid": None, "memory_bytes": None}

    def update(driver: str) -> None:
        body = report | {"devices": [*report["devices"], gpu | {"facts": {"driver": driver, "vbios": "96.00"}}]}
        assert node.client.put(f"/v1/nodes/{node.name}", json=body).status_code == 200

    update("550.90")
    for count in range(6):
        node.scale = 1.0 + 0.005 * count
        validate(admin, node)
    learned = admin.post("/v1/criteria:learn", json={"cohort": "cpu"}).json()["items"]
    assert {one["cohort"] for one in learned} == {"cpu; driver 550.90; vbios 96.00"}
    assert admin.get("/v1/criteria", params={"cohort": "cpu"}).json()["items"] == learned
    assert validate(admin, node)["verdict"] == "pass"
    update("560.35")
    judged = validate(admin, node)
    assert judged["verdict"] == "unknown"
    assert "cpu; driver 560.35; vbios 96.00" in judged["reason"]
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    assert validate(admin, node)["verdict"] == "pass"


def test_a_criterion_is_drawn_from_its_distribution(admin: httpx.Client, node: Any) -> None:
    for count in range(6):
        node.scale = 1.0 + 0.005 * count
        validate(admin, node)
    learned = admin.post("/v1/criteria:learn", json={"cohort": "cpu"}).json()["items"][0]
    key = {name: learned[name] for name in ("cohort", "benchmark", "metric")}
    shown = admin.get("/v1/criteria/detail", params=key).json()
    assert {name: shown[name] for name in learned} == learned
    assert len(shown["distribution"]["reference"]) == 3
    assert 0 < shown["distribution"]["alpha"] <= shown["distribution"]["warn_alpha"] < 1
    assert [run["node"] for run in shown["runs"]] == [node.name] * 6
    assert all(run["values"] == sorted(run["values"]) for run in shown["runs"])
    problem(admin.get("/v1/criteria/detail", params=key | {"metric": "none"}), 404, "unknown-criterion")
    problem(admin.get("/v1/criteria/detail", params={"cohort": "cpu"}), 422, "invalid")


def test_a_stated_distribution_judges_all_repetitions(admin: httpx.Client, node: Any, criteria: Any) -> None:
    items = criteria("quick", low=10.0)
    kept = {"reference": [99.0, 100.0, 101.0], "alpha": 0.98, "warn_alpha": 0.99}
    admin.put("/v1/criteria", json={"items": [items[0] | {"distribution": kept}, *items[1:]]})
    assert validate(admin, node)["verdict"] == "pass"
    node.scale = 0.9
    judged = validate(admin, node)
    failed = [result for result in judged["results"] if result["verdict"] == "fail"]
    assert [result["benchmark"] for result in failed] == [items[0]["benchmark"]]
    assert "similarity 0.901" in failed[0]["reason"]
    admin.put("/v1/criteria", json={"items": items})  # stated again without one: the limits apply again
    assert validate(admin, node)["verdict"] == "pass"
    upside_down = items[0] | {"distribution": kept | {"alpha": 0.995}}
    problem(admin.put("/v1/criteria", json={"items": [upside_down]}), 422, "invalid")
    empty = items[0] | {"distribution": kept | {"reference": []}}
    problem(admin.put("/v1/criteria", json={"items": [empty]}), 422, "invalid")


def test_criteria_of_another_cohort_do_not_count(admin: httpx.Client, node: Any, criteria: Any) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick", cohort="gpu-pod")})
    assert validate(admin, node)["verdict"] == "unknown"


def test_stated_criteria_replace_and_are_checked(service: Any, admin: httpx.Client, criteria: Any) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick", low=10.0)})
    admin.put("/v1/criteria", json={"items": criteria("quick", low=20.0)})
    assert {item["low"] for item in admin.get("/v1/criteria").json()["items"]} == {20.0}
    toothless = criteria("quick")[0] | {"low": None}
    problem(admin.put("/v1/criteria", json={"items": [toothless]}), 422, "invalid")
    upside_down = criteria("quick")[0] | {"low": 2.0, "high": 1.0}
    problem(admin.put("/v1/criteria", json={"items": [upside_down]}), 422, "invalid")
    body = {"name": "operator", "kind": "user", "scopes": ["act"]}
    operator = service.client(admin.post("/v1/auth/tokens", json=body).json()["token"])
    problem(operator.put("/v1/criteria", json={"items": []}), 403, "scope-missing")


def test_a_failure_opens_one_incident_which_ends_with_the_next_pass(
    admin: httpx.Client, node: Any, criteria: Any
) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    node.scale = 0.5
    validate(admin, node)
    validate(admin, node)
    (incident,) = admin.get("/v1/incidents").json()["items"]
    assert (incident["node"], incident["kinds"]) == ("n1", ["validation_failed"])
    found = admin.get(f"/v1/incidents/{incident['id']}").json()["findings"]
    assert "Validation quick failed in" in found[0]["evidence"]["summary"]
    assert admin.get("/v1/nodes/n1").json()["state"] == "suspect"
    validate(admin, node, error="the daemon was stopped")
    assert admin.get(f"/v1/incidents/{incident['id']}").json()["findings"][0]["active"], "unknown takes nothing back"
    node.scale = 1.0
    validate(admin, node)
    assert not any(one["active"] for one in admin.get(f"/v1/incidents/{incident['id']}").json()["findings"])
