"""NVSentinel's events come in as ours, however often they are sent; what they do not say is not made up."""

from __future__ import annotations

import copy
import itertools
import time
from typing import Any

import pytest

GPU = "GPU-455d8f70-2051-db6c-0430-ffc457bff834"
PATH = "/v1/ingest/health-events"
XID: dict[str, Any] = {
    "version": 1,
    "agent": "syslog-health-monitor",
    "componentClass": "GPU",
    "checkName": "SysLogsXIDError",
    "isFatal": True,
    "isHealthy": False,
    "message": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
    "recommendedAction": "RESTART_BM",
    "errorCode": ["79"],
    "entitiesImpacted": [
        {"entityType": "PCI", "entityValue": "0000:17:00"},
        {"entityType": "GPU_UUID", "entityValue": GPU},
    ],
    "metadata": {"chassis_serial": "1234"},
    "generatedTimestamp": "2026-11-20T10:11:12.123456789Z",
    "nodeName": "n1",
    "processingStrategy": "EXECUTE_REMEDIATION",
    "id": "",
}
WATCH: dict[str, Any] = {
    "version": 1,
    "agent": "gpu-health-monitor",
    "componentClass": "GPU",
    "checkName": "GpuPowerWatch",
    "isFatal": False,
    "isHealthy": False,
    "message": "clocks are held down by the power brake",
    "recommendedAction": 2,
    "errorCode": ["DCGM_FR_CLOCK_THROTTLE_POWER"],
    "entitiesImpacted": [{"entityType": "GPU", "entityValue": "1"}],
    "generatedTimestamp": {"seconds": 1795169472, "nanos": 500000000},
    "nodeName": "n1",
    "later_field": {"is": "ignored"},
}


@pytest.fixture
def node(service: Any, any_report: dict[str, Any]) -> Any:
    return furnished(service, any_report)


@pytest.fixture(scope="module")
def lasting_node(lasting_service: Any, any_report: dict[str, Any]) -> Any:
    """The same for tests that look at their own events only."""
    return furnished(lasting_service, any_report)


def furnished(service: Any, any_report: dict[str, Any]) -> Any:
    """A node with two GPUs and a port; a client that speaks for it."""
    client = service.node_client("n1")
    report = {**any_report, "devices": [*any_report["devices"]]}
    base = {"serial": None, "memory_bytes": None, "model": "H100"}
    report["devices"] += [
        {"id": "gpu0", "index": 0, "kind": "gpu", "uuid": GPU, "facts": {"pci": "00000000:17:00.0"}, **base},
        {"id": "gpu1", "index": 1, "kind": "gpu", "uuid": "GPU-other", "facts": {"pci": "00000000:18:00.0"}, **base},
        {"id": "nic:mlx5_0:1", "index": 2, "kind": "nic", "uuid": None, **base},
    ]
    assert client.put("/v1/nodes/n1", json=report).status_code == 200
    return client


def stored(client: Any, **query: str) -> list[dict[str, Any]]:
    return list(client.get("/v1/events", params=query).json()["items"])


def send(client: Any, body: Any, accepted: int, duplicates: int = 0) -> None:
    answer = client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"accepted": accepted, "duplicates": duplicates}


SECONDS = itertools.count(1795170000)


def post_event(client: Any, body: dict[str, Any], accepted: int = 1) -> list[dict[str, Any]]:
    """Send it with a time of its own; the events that came of it."""
    second = next(SECONDS)
    send(client, body | {"generatedTimestamp": {"seconds": second}}, accepted)
    return [event for event in stored(client) if event["time"] == second]


def test_an_xid_of_the_log_is_an_xid(node: Any) -> None:
    send(node, XID, 1)
    (event,) = stored(node, kind="xid")
    assert (event["node"], event["device"]) == ("n1", "gpu0")
    assert event["time"] == pytest.approx(1795169472.123457, abs=1e-5)
    assert event["data"] == {
        "code": 79, "source": "nvsentinel", "text": XID["message"], "pci": "0000:17:00"
    }  # fmt: skip


def test_sent_again_it_changes_nothing(node: Any) -> None:
    send(node, XID, 1)
    send(node, XID, 0, 1)
    send(node, {"events": [XID, XID, WATCH]}, 1, 2)
    assert len(stored(node)) == 2


@pytest.mark.parametrize("change", [{"errorCode": ["48"]}, {"generatedTimestamp": "2026-11-20T10:11:12.2Z"}])
def test_another_event_is_another_event(node: Any, change: dict[str, Any]) -> None:
    send(node, XID, 1)
    send(node, XID | change, 1)


def test_all_else_is_a_report(node: Any) -> None:
    send(node, WATCH, 1)
    (event,) = stored(node, kind="health_report")
    assert event["device"] == "gpu1"
    assert event["time"] == 1795169472.5
    said = event["data"]
    assert (said["source"], said["check"], said["fatal"], said["healthy"]) == (
        "nvsentinel",
        "GpuPowerWatch",
        False,
        False,
    )
    assert (said["recommended_action"], said["codes"]) == ("reset_gpu", ["DCGM_FR_CLOCK_THROTTLE_POWER"])


@pytest.mark.parametrize(
    ("action", "recommended_action"),
    [
        ("NONE", "none"), (0, "none"), ("COMPONENT_RESET", "reset_gpu"), ("RESTART_VM", "reboot_node"),
        (15, "reboot_node"), (24, "reboot_node"), ("RESTART_BM", "reboot_node"), ("REPLACE_VM", "replace"),
        (25, "replace"), ("RUN_FIELDDIAG", "inspect_node"), (6, "inspect_node"), ("RUN_DCGMEUD", "inspect_node"),
        (26, "inspect_node"), ("CONTACT_SUPPORT", "inspect_node"), (5, "inspect_node"), ("UNKNOWN", "monitor"),
        (99, "monitor"), ("CUSTOM", "monitor"), (27, "monitor"), (12345, "monitor"), ("SOMETHING_NEW", "monitor"),
        (39, "restart_job"),
    ],
)  # fmt: skip
def test_actions_by_name_and_by_number(lasting_node: Any, action: Any, recommended_action: str) -> None:
    (event,) = post_event(lasting_node, WATCH | {"recommendedAction": action, "customRecommendedAction": "swap-fan"})
    assert event["data"]["recommended_action"] == recommended_action
    assert event["data"]["action"] == "swap-fan" or action not in {"CUSTOM", 27}


@pytest.mark.parametrize("strategy", ["STORE_ONLY", 2, "store_only"])
@pytest.mark.parametrize("body", [XID, WATCH | {"isFatal": True}])
def test_what_is_only_to_be_stored_is_never_severe(lasting_node: Any, body: dict[str, Any], strategy: Any) -> None:
    (event,) = post_event(lasting_node, body | {"processingStrategy": strategy})
    assert event["kind"] == "health_report"
    said = event["data"]
    assert (said["fatal"], said["recommended_action"], said["severity"], said["store_only"]) == (
        False,
        "none",
        "info",
        True,
    )


def test_what_is_only_to_be_stored_opens_nothing(node: Any) -> None:
    from tests.service.conftest import wait_until

    send(node, WATCH | {"isFatal": True, "processingStrategy": "STORE_ONLY"}, 1)
    findings = wait_until(lambda: node.get("/v1/findings").json()["items"])
    assert [(finding["severity"], finding["recommended_action"]) for finding in findings] == [("info", "none")]
    assert node.get("/v1/incidents").json()["items"] == []


def test_healthy_again_is_told_and_asks_for_nothing(node: Any) -> None:
    send(node, XID | {"isHealthy": True, "isFatal": False}, 1)
    (event,) = stored(node)
    assert event["kind"] == "health_report"
    assert (event["data"]["healthy"], event["data"]["recommended_action"]) == (True, "none")


@pytest.mark.parametrize(
    ("entities", "devices"),
    [
        ([("GPU", "0")], ["gpu0"]), ([("GPU", GPU)], ["gpu0"]), ([("PCI", "PCI:0000:17:00.0")], ["gpu0"]),
        ([("PCI", "00000000:18:00")], ["gpu1"]), ([("GPU", "0"), ("GPU", "1")], ["gpu0", "gpu1"]),
        ([("GPU", "0"), ("PCI", "0000:17:00"), ("GPU_UUID", GPU)], ["gpu0"]), ([("GPU", "7")], ["gpu7"]),
        ([("GPU_UUID", "GPU-absent")], [None]), ([("NODE", "n1")], [None]), ([("POD", "train-0")], [None]),
        ([("NIC", "mlx5_0")], ["nic:mlx5_0:1"]), ([("NIC", "mlx5_9:1")], ["nic:mlx5_9:1"]), ([], [None]),
        ([("UFO", "x")], [None]), ([("NIC", "bad name")], [None]),
    ],
)  # fmt: skip
def test_entities_become_devices(lasting_node: Any, entities: list[tuple[str, str]], devices: list[str | None]) -> None:
    impacted = [{"entityType": kind, "entityValue": value} for kind, value in entities]
    told = post_event(lasting_node, WATCH | {"entitiesImpacted": impacted}, len(devices))
    assert sorted((event["device"] for event in told), key=str) == devices


def test_an_xid_that_a_poll_saw_is_no_fresh_xid(node: Any) -> None:
    send(node, XID | {"agent": "gpu-health-monitor", "checkName": "GpuXidWatch"}, 1)
    assert stored(node, kind="xid") == []


def test_an_sxid_is_no_xid(node: Any) -> None:
    send(node, XID | {"checkName": "SysLogsSXIDError", "errorCode": ["20034"]}, 1)
    assert stored(node, kind="xid") == []


def without(field: str) -> dict[str, Any]:
    body = copy.deepcopy(WATCH)
    del body[field]
    return body


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (without("nodeName"), "nodeName"), (without("checkName"), "checkName"),
        (without("generatedTimestamp"), "generatedTimestamp"), (WATCH | {"isFatal": "yes"}, "isFatal"),
        (WATCH | {"isHealthy": 0}, "isHealthy"), (WATCH | {"recommendedAction": 1.5}, "recommendedAction"),
        (WATCH | {"recommendedAction": None}, "recommendedAction"), (WATCH | {"errorCode": "79"}, "errorCode"),
        (WATCH | {"errorCode": [79]}, "errorCode"),
        (WATCH | {"entitiesImpacted": [{"entityType": "GPU"}]}, "entityValue"),
        (WATCH | {"metadata": {"a": 1}}, "metadata"),
        (WATCH | {"generatedTimestamp": "yesterday"}, "generatedTimestamp"),
        (WATCH | {"generatedTimestamp": "1969-12-31T23:59:59Z"}, "generatedTimestamp"),
        (WATCH | {"generatedTimestamp": "2026-13-01T00:00:00Z"}, "generatedTimestamp"),
        (WATCH | {"generatedTimestamp": {"seconds": "5"}}, "generatedTimestamp"),
        (WATCH | {"generatedTimestamp": {"seconds": 5, "nanos": 10**9}}, "generatedTimestamp"),
        (WATCH | {"nodeName": "../x"}, "nodeName"), (WATCH | {"message": "x" * 5000}, "message"),
        (WATCH | {"message": "a\x00b"}, "message"), ({"events": "all"}, "events"), ({"events": [7]}, "events"),
        ({"events": [XID] * 501}, "events"), ([], "body"), ("x", "body"), (None, "body"),
    ],
)  # fmt: skip
def test_bad_types_are_named(lasting_service: Any, body: Any, field: str) -> None:
    answer = lasting_service.client().post(PATH, json=body)
    assert answer.status_code == 422, answer.text
    assert any(field in map(str, error["loc"]) for error in answer.json()["errors"]), answer.text


def test_nothing_of_a_bad_batch_is_stored(node: Any) -> None:
    assert node.post(PATH, json={"events": [XID, WATCH | {"isFatal": 1}]}).status_code == 422
    assert stored(node) == []


def test_a_node_reports_for_itself_only(service: Any, node: Any) -> None:
    refused = node.post(PATH, json={"events": [XID, WATCH | {"nodeName": "n2"}]})
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:mainstay:problem:wrong-node")
    assert stored(node) == []
    assert service.client("").post(PATH, json=XID).status_code == 401
    unknown = service.client().post(PATH, json={"events": [XID, WATCH | {"nodeName": "n2"}]})
    assert (unknown.status_code, "'n2'" in unknown.json()["detail"]) == (404, True)
    assert stored(node) == []
    service.node_client("n2")
    send(service.client(), WATCH | {"nodeName": "n2"}, 1)


def test_xids_are_counted_by_the_card_once_for_each_time(service: Any, node: Any) -> None:
    from sqlalchemy import select

    from mainstay.probes.ids import uuid7
    from mainstay.service.events.models import XidTotalRow

    send(node, XID, 1)
    at = 1795169473.0
    kernel = {
        "id": uuid7(),
        "time": at,
        "kind": "xid",
        "node": "n1",
        "device": "gpu0",
        "data": {"code": 79, "source": "kernel"},
    }
    later = kernel | {"id": uuid7(), "time": at + 60}
    twice = [later | {"id": uuid7(), "time": at + 61}, later | {"id": uuid7(), "time": at + 62}]
    twice[1]["data"] = {"code": 79, "source": "kernel", "count": 40}
    assert node.post("/v1/events", json={"items": [kernel, later, *twice]}).json()["accepted"] == 4
    assert node.post("/v1/events", json={"items": [kernel, later, *twice]}).json()["accepted"] == 0
    with service.services.database.reading() as session:
        (row,) = session.scalars(select(XidTotalRow))
    assert (row.gpu, row.xid, row.total) == (GPU, 79, 43)
    assert (row.first_at, row.last_at) == (pytest.approx(1795169472.123, abs=1e-2), at + 62)


def incident_of(client: Any) -> str:
    from tests.service.conftest import wait_until

    (found, *_) = wait_until(lambda: client.get("/v1/incidents").json()["items"])
    return str(found["id"])


def test_an_incident_can_be_told_in_their_shape(service: Any, node: Any) -> None:
    send(node, XID | {"generatedTimestamp": {"seconds": int(time.time())}}, 1)
    incident = incident_of(node)
    told = node.get(f"/v1/incidents/{incident}/nvsentinel").json()
    (event,) = [event for event in told["events"] if event["checkName"] == "xid"]
    assert (event["agent"], event["componentClass"], event["nodeName"]) == ("mainstay", "GPU", "n1")
    assert (event["isHealthy"], event["errorCode"]) == (False, ["79"])
    assert event["recommendedAction"] in {"RESTART_BM", "COMPONENT_RESET", "CONTACT_SUPPORT", "REPLACE_VM"}
    assert event["isFatal"] is True
    assert event["processingStrategy"] == "STORE_ONLY", "nothing acts while the machine only proposes"
    assert [(e["entityType"], e["entityValue"]) for e in event["entitiesImpacted"]] == [
        ("GPU", "0"), ("GPU_UUID", GPU), ("PCI", "00000000:17:00.0")
    ]  # fmt: skip
    assert event["metadata"]["incident"] == incident
    before = len(stored(node))
    send(node, told, 0, len(told["events"]))
    assert len(stored(node)) == before, "what we found does not come back as evidence"
    assert node.get(f"/v1/incidents/{'0' * 8}/nvsentinel").status_code == 404
