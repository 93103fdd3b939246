"""Many nodes are drained, returned, and validated at once; each is decided as one node is."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report_all

Json = dict[str, Any]


@pytest.fixture
def fleet(service_anywhere: Any, enrolled: Any) -> Any:
    """Four nodes: n1 and n2 in rack r1, n3 and n4 in r2."""
    for index in (1, 2, 3, 4):
        enrolled(service_anywhere, f"n{index}", rack=f"r{(index + 1) // 2}", cohort="h100" if index < 4 else "b200")
    return service_anywhere


def move(service: Any, verb: str, **body: Any) -> Json:
    answer = service.client().post(f"/v1/nodes:{verb}", json=body)
    assert answer.status_code == 200, answer.text
    read: Json = answer.json()
    return read


def states(service: Any) -> dict[str, str]:
    return {node["name"]: node["state"] for node in service.client().get("/v1/nodes").json()["items"]}


def outcomes(moved: Json) -> dict[str, bool]:
    return {item["node"]: item["accepted"] for item in moved["items"]}


def test_a_preview_names_nodes_jobs_and_refusals_and_changes_nothing(fleet: Any, run_job: Any) -> None:
    run_job(fleet, "n1", "n2", dp=2)  # a node without work would be quarantined meanwhile
    assert move(fleet, "drain", nodes=["n2"], reason="rewiring", confirm_count=1)["changed"] == ["n2"]
    seen = move(fleet, "drain", racks=["r1"], preview=True)
    assert (seen["preview"], seen["matched"], seen["fleet"], seen["changed"]) == (True, 2, 4, ["n1"])
    assert seen["confirmation_required"]
    n1, n2 = seen["items"]
    assert (n1["node"], n1["accepted"], n1["jobs"], n1["detail"]) == ("n1", True, ["demo"], "")
    assert (n2["node"], n2["accepted"], n2["state"]) == ("n2", False, "draining")
    assert n2["detail"] == "it is draining already, by a person"
    assert [name for name, state in states(fleet).items() if state == "draining"] == ["n2"]


def test_a_refused_node_stops_no_other_and_each_keeps_reason_and_author(
    fleet: Any, run_job: Any, operator: Any
) -> None:
    run_job(fleet, "n1", "n3", dp=2)
    alice = operator(fleet)
    fleet.client().post("/v1/nodes/n3:quarantine", json={"reason": "smoke"})
    body = {"nodes": ["n1", "n3", "typo"], "reason": "new switch", "mode": "migrate", "confirm_count": 2}
    moved = alice.post("/v1/nodes:drain", json=body).json()
    assert moved["changed"] == ["n1"]
    assert outcomes(moved) == {"n1": True, "n3": False, "typo": False}
    assert [request["node"] for request in moved["items"][0]["requests"]] == ["n1"]
    assert moved["items"][2]["detail"] == "no node is called 'typo'"
    latest = fleet.client().get("/v1/nodes/n1/transitions").json()["items"][0]
    assert (latest["to_state"], latest["actor"], latest["reason"]) == ("draining", "alice", "new switch")
    (request,) = fleet.client().get("/v1/jobs/demo/requests").json()["items"]
    assert request["actor"] == "alice"


def test_the_list_of_a_drain_undoes_it(fleet: Any, run_job: Any) -> None:
    run_job(fleet, "n1", "n2", dp=2)  # work that keeps them draining
    drained = move(fleet, "drain", racks=["r1"], reason="rewiring", mode="migrate", confirm_count=2)
    assert drained["changed"] == ["n1", "n2"]
    assert {states(fleet)[name] for name in drained["changed"]} == {"draining"}
    returned = move(fleet, "undrain", nodes=drained["changed"], reason="done", confirm_count=2)
    assert returned["changed"] == ["n1", "n2"]
    assert "draining" not in states(fleet).values()
    assert {r["state"] for r in fleet.client().get("/v1/jobs/demo/requests").json()["items"]} == {"rejected"}


def test_all_criteria_must_hold(fleet: Any) -> None:
    def matching(**criteria: Any) -> list[str]:
        return [item["node"] for item in move(fleet, "drain", preview=True, **criteria)["items"]]

    assert matching(racks=["r2"], cohorts=["h100"]) == ["n3"]
    assert matching(nodes=["n1", "n3"], racks=["r1", "r2"], states=["unknown", "healthy"]) == ["n1", "n3"]
    assert matching(states=["validating"]) == []


def test_quarantined_nodes_are_validated_and_others_refused(fleet: Any) -> None:
    for name in ("n1", "n2"):
        fleet.client().post(f"/v1/nodes/{name}:quarantine", json={"reason": "smoke"})
    moved = move(fleet, "validate", racks=["r1", "r2"], suite="quick", reason="repaired", confirm_count=4)
    assert moved["changed"] == ["n1", "n2"]
    assert [states(fleet)[name] for name in moved["changed"]] == ["validating"] * 2
    orders = fleet.client().get("/v1/validations").json()["items"]
    assert sorted((order["node"], order["suite"]) for order in orders) == [("n1", "quick"), ("n2", "quick")]


def test_more_than_a_tenth_of_the_fleet_needs_the_count_of_the_preview(fleet: Any, enrolled: Any) -> None:
    client = fleet.client()
    refused = client.post("/v1/nodes:drain", json={"nodes": ["n1"], "reason": "x"})
    assert (refused.status_code, refused.json()["type"].split(":")[-1]) == (409, "confirmation-required")
    assert "1 of 4 nodes match, more than 10% of the fleet" in refused.json()["detail"]
    stale = client.post("/v1/nodes:drain", json={"racks": ["r1"], "reason": "x", "confirm_count": 1})
    assert stale.status_code == 409
    assert "2 nodes match now, and not 1" in stale.json()["detail"]
    assert "draining" not in states(fleet).values()
    for index in range(5, 11):
        enrolled(fleet, f"n{index}", rack="r9")
    assert move(fleet, "drain", nodes=["n1"], reason="x")["changed"] == ["n1"]  # a tenth, not more


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"reason": "x"}, "give at least one of nodes, racks, cohorts, states"),
        ({"nodes": ["n1"], "reason": " "}, "give a reason"),
        ({"racks": ["r1", "r8"], "reason": "x"}, "body.racks: no node has the rack 'r8'"),
        ({"cohorts": ["a100"], "reason": "x"}, "body.cohorts: no node has the cohort 'a100'"),
        ({"nodes": ["n1"] * 1025, "reason": "x"}, "at most 1024 items"),
        ({"states": ["drained"], "reason": "x"}, "body.states.0"),
        ({"nodes": ["n1"], "reason": "x", "confirm_count": "1"}, "body.confirm_count"),
    ],
)
def test_bad_input_is_named(fleet: Any, body: Any, words: Any) -> None:
    answer = fleet.client().post("/v1/nodes:drain", json=body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_who_may_only_read_moves_nothing(fleet: Any, operator: Any) -> None:
    body = {"nodes": ["n1"], "reason": "x", "confirm_count": 1}
    assert operator(fleet, "bob", scope="read").post("/v1/nodes:drain", json=body).status_code == 403


def test_a_repeated_request_is_answered_and_not_done_again(fleet: Any) -> None:
    body, key = {"racks": ["r1"], "reason": "x", "confirm_count": 2}, {"Idempotency-Key": "one"}
    first = fleet.client().post("/v1/nodes:drain", json=body, headers=key)
    again = fleet.client().post("/v1/nodes:drain", json=body, headers=key)
    assert first.json()["changed"] == ["n1", "n2"]
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")


def test_a_thousand_nodes_are_one_request_and_more_are_refused(service: Any, any_report: Any) -> None:
    names = [f"m{index:04}" for index in range(1025)]
    with service.services.database.session() as session:
        said = NodeReportCreate.model_validate({**any_report, "devices": []})
        report_all(session, dict.fromkeys(names, said), now=service.services.clock.now())
    many = service.client().post("/v1/nodes:drain", json={"cohorts": [any_report["cohort"]], "preview": True})
    assert many.status_code == 422
    assert many.json()["detail"] == "1025 nodes match, and a request takes at most 1024: narrow the criteria"
    assert len(move(service, "drain", nodes=names[:1024], reason="x", confirm_count=1024)["changed"]) == 1024
