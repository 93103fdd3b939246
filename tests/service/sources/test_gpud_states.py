"""gpud tells every state again and again: only what changed becomes an event."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.conftest import wait_until

PATH = "/v1/ingest/gpud-states"


def states(health: str = "Healthy", at: str = "2026-11-20T10:00:00Z", **more: Any) -> list[dict[str, Any]]:
    """As ``GET /v1/states`` answers: one component that varies among two that do not."""
    varying = {"time": at, "component": "accelerator-nvidia-error-xid", "name": "accelerator-nvidia-error-xid"}
    return [
        {
            "component": "accelerator-nvidia-error-xid",
            "states": [
                varying
                | {"run_mode": "auto", "health": health, "reason": f"it is {health}", "extra_info": {"a": "b"}}
                | more
            ],
        },
        {
            "component": "cpu",
            "states": [{"time": at, "component": "cpu", "name": "cpu", "health": "Healthy", "reason": "ok"}],
        },
        {"component": "disk", "states": [{"time": at, "name": "disk", "health": "Initializing"}]},
    ]


def reboot(at: str, *actions: str) -> list[dict[str, Any]]:
    suggested = {"description": "reboot the machine", "repair_actions": list(actions or ("REBOOT_SYSTEM",))}
    return states("Unhealthy", at, suggested_actions=suggested)


@pytest.fixture
def node(service: Any) -> Any:
    return service.node_client("n1")


def send(client: Any, body: Any, **query: str) -> int:
    answer = client.post(PATH, json=body, params=query)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["accepted"] + told["duplicates"] == sum(len(part["states"]) for part in body)
    return int(told["accepted"])


def reports(client: Any) -> list[dict[str, Any]]:
    """Oldest first."""
    found: list[dict[str, Any]] = client.get("/v1/events", params={"kind": "health_report"}).json()["items"]
    return found[::-1]


def test_a_first_healthy_word_is_no_event(node: Any) -> None:
    assert send(node, states()) == 0
    assert reports(node) == []


def test_only_changes_are_events_and_health_clears(node: Any) -> None:
    assert send(node, states(at="2026-11-20T10:00:00Z")) == 0
    assert send(node, reboot("2026-11-20T10:01:00Z")) == 1
    assert send(node, reboot("2026-11-20T10:02:00.5+00:00")) == 0, "it is still so"
    assert send(node, states(at="2026-11-20T10:03:00.123456789Z")) == 1
    assert send(node, states(at="2026-11-20T10:04:00Z")) == 0
    bad, good = reports(node)
    said = bad["data"]
    assert (bad["node"], bad["device"], bad["time"]) == ("n1", None, 1795168860.0)
    assert (said["source"], said["check"], said["fatal"], said["healthy"], said["recommended_action"]) == (
        "gpud", "accelerator-nvidia-error-xid", True, False, "reboot_node"
    )  # fmt: skip
    assert said["message"] == "it is Unhealthy"
    assert (good["data"]["healthy"], good["data"]["fatal"], good["data"]["recommended_action"]) == (True, False, "none")


def test_a_retry_changes_nothing(node: Any) -> None:
    body = reboot("2026-11-20T10:01:00Z")
    assert [send(node, body), send(node, body)] == [1, 0]


def test_a_worse_word_or_another_action_is_news(node: Any) -> None:
    assert send(node, states("Degraded", "2026-11-20T10:00:00Z")) == 1
    assert send(node, states("Unhealthy", "2026-11-20T10:01:00Z")) == 1
    assert send(node, reboot("2026-11-20T10:02:00Z")) == 1
    assert send(node, reboot("2026-11-20T10:03:00Z", "HARDWARE_INSPECTION")) == 1
    assert [e["data"]["recommended_action"] for e in reports(node)] == [
        "monitor",
        "monitor",
        "reboot_node",
        "inspect_node",
    ]


def test_what_was_said_before_does_not_undo_what_was_said_later(node: Any) -> None:
    assert send(node, reboot("2026-11-20T10:05:00Z")) == 1
    assert send(node, states(at="2026-11-20T10:04:00Z")) == 0


def test_initializing_says_nothing(node: Any) -> None:
    assert send(node, reboot("2026-11-20T10:00:00Z")) == 1
    assert send(node, states("Initializing", "2026-11-20T10:01:00Z")) == 0
    assert send(node, states(at="2026-11-20T10:02:00Z")) == 1


def test_a_report_holds_until_it_is_healthy_again(node: Any) -> None:
    def findings() -> list[tuple[str, str, bool]]:
        found = node.get("/v1/findings", params={"kind": "health_report"}).json()["items"]
        return [(finding["severity"], finding["recommended_action"], finding["active"]) for finding in found]

    send(node, reboot("2026-11-20T10:00:00Z"))
    wait_until(lambda: findings() == [("critical", "reboot_node", True)])
    send(node, states(at="2026-11-20T10:01:00Z"))
    wait_until(lambda: findings() == [("critical", "reboot_node", False)])


@pytest.mark.parametrize(
    ("action", "recommended_action"),
    [
        ("IGNORE_NO_ACTION_REQUIRED", "none"), ("CHECK_USER_APP_AND_GPU", "restart_job"),
        ("REBOOT_SYSTEM", "reboot_node"), ("HARDWARE_INSPECTION", "inspect_node"), ("LATER_ACTION", "monitor"),
    ],
)  # fmt: skip
def test_actions(lasting_service: Any, action: str, recommended_action: str) -> None:
    lasting_service.node_client(f"n-{action}")
    client = lasting_service.client()
    assert send(client, reboot("2026-11-20T10:00:00Z", action), node=f"n-{action}") == 1
    assert [e["data"]["recommended_action"] for e in reports(client) if e["node"] == f"n-{action}"] == [
        recommended_action
    ]


def test_the_worst_of_several_states_of_one_name_counts(node: Any) -> None:
    body = [{"component": "ib", "states": [{"name": "ib", "health": h} for h in ("Healthy", "Unhealthy", "Degraded")]}]
    assert send(node, body) == 1
    assert reports(node)[0]["data"]["health"] == "Unhealthy"


def test_whose_states_they_are(service: Any, node: Any) -> None:
    admin = service.client()
    body = reboot("2026-11-20T10:00:00Z")
    assert admin.post(PATH, json=body).status_code == 422
    unknown = admin.post(PATH, json=body, params={"node": "n2"})
    assert (unknown.status_code, "'n2'" in unknown.json()["detail"]) == (404, True)
    service.node_client("n2")
    assert send(admin, body, node="n2") == 1
    assert send(node, body, node="n1") == 1
    assert node.post(PATH, json=body, params={"node": "n2"}).status_code == 403
    assert service.client("").post(PATH, json=body).status_code == 401


def single_state(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"component": "c", "states": [state]}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"), ([7], "body"), ([{"states": []}], "component"), ([{"component": "c"}], "states"),
        (single_state({}), "health"), (single_state({"health": "Fine"}), "health"),
        (single_state({"health": 1}), "health"),
        (single_state({"health": "Healthy", "time": 5}), "time"),
        (single_state({"health": "Healthy", "time": "now"}), "time"),
        (single_state({"health": "Healthy", "reason": ["x"]}), "reason"),
        (single_state({"health": "Healthy", "suggested_actions": {"repair_actions": "x"}}), "repair_actions"),
        (single_state({"health": "Healthy", "extra_info": {"a": 1}}), "extra_info"),
        ([{"component": "c\x00", "states": []}], "component"), ([{"component": "c", "states": []}] * 1001, "body"),
    ],
)  # fmt: skip
def test_bad_types_are_named(lasting_service: Any, body: Any, field: str) -> None:
    answer = lasting_service.client().post(PATH, json=body, params={"node": "n1"})
    assert answer.status_code == 422, answer.text
    assert any(field in map(str, error["loc"]) for error in answer.json()["errors"]), answer.text


def test_changes_are_kept_on_both_databases(service_anywhere: Any) -> None:
    client = service_anywhere.client()
    service_anywhere.node_client("n1")
    assert send(client, reboot("2026-11-20T10:00:00Z"), node="n1") == 1
    assert send(client, reboot("2026-11-20T10:00:00Z"), node="n1") == 0
    assert send(client, states(at="2026-11-20T10:01:00Z"), node="n1") == 1
