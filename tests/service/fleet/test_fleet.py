"""Nodes, devices and the heat-map's bytes."""

from __future__ import annotations

import time
from typing import Any

import httpx
import numpy as np
import pytest

from mainstay.probes.core_types import HealthState
from mainstay.probes.frame import checksum
from mainstay.probes.signals import SignalSource, catalog
from mainstay.service.fleet.models import NodeRow
from tests.fakes.clock import ManualClock


def gpu(index: int, **changes: object) -> dict[str, object]:
    return {
        "id": f"gpu{index}", "index": index, "kind": "gpu", "model": "H100", "serial": f"S{index}",
        "uuid": f"GPU-{index}", "memory_bytes": 80 * 2**30, **changes,
    }  # fmt: skip


def run_loop(service, name: str) -> None:
    next(loop for loop in service.app.state.loops if loop.name == name).run_once()


def test_a_report_is_kept_and_told(service_anywhere, report) -> None:
    node = service_anywhere.node_client("n1")
    report["devices"].append(gpu(0))
    answer = node.put("/v1/nodes/n1", json=report)
    assert answer.status_code == 200, answer.text
    read = service_anywhere.client().get("/v1/nodes/n1").json()
    assert read["hostname"] == "host-1"
    assert read["memory_bytes"] == 8 * 2**30
    assert [device["id"] for device in read["devices"]] == ["host", "gpu0"]
    assert read["age_seconds"] < 10
    assert (read["jobs"], read["open_incidents"], read["last_verdict"]) == ([], 0, None)
    devices = service_anywhere.client().get("/v1/devices", params={"node": "n1"}).json()["items"]
    assert {device["serial"] for device in devices} == {None, "S0"}


def test_devices_of_several_nodes_are_one_request(service_anywhere, report) -> None:
    for name in ("n1", "n2", "n3"):
        body = report | {"devices": [*report["devices"], gpu(0), gpu(1)]}
        assert service_anywhere.node_client(name).put(f"/v1/nodes/{name}", json=body).status_code == 200
    client = service_anywhere.client()

    def found(**query: list[str]) -> list[tuple[str, str]]:
        items = client.get("/v1/devices", params=query).json()["items"]
        return [(item["node"], item["id"]) for item in items]

    assert found(node=["n1", "n3"], device=["gpu1", "gpu7"]) == [("n1", "gpu1"), ("n3", "gpu1")]
    assert found(device=["gpu0"]) == [("n1", "gpu0"), ("n2", "gpu0"), ("n3", "gpu0")]
    assert found(node=["unknown"]) == []
    assert client.get("/v1/devices", params={"device": ["d"] * 51}).status_code == 422


def test_the_switches_above_a_node_are_kept_and_told(service_anywhere, report) -> None:
    node = service_anywhere.node_client("n1")
    assert node.put("/v1/nodes/n1", json=report).json()["switches"] == []
    above = report | {"switches": ["leaf-3", "spine-1"]}
    assert node.put("/v1/nodes/n1", json=above).json()["switches"] == ["leaf-3", "spine-1"]
    assert node.get("/v1/nodes/n1").json()["switches"] == ["leaf-3", "spine-1"]
    for bad in (["leaf 3"], ["a", "a"], [f"s{i}" for i in range(9)], "leaf-3"):
        assert node.put("/v1/nodes/n1", json=report | {"switches": bad}).status_code == 422, bad
    assert node.get("/v1/nodes/n1").json()["switches"] == ["leaf-3", "spine-1"]


def test_the_power_domain_of_a_node_is_kept_and_told(service_anywhere, report) -> None:
    node = service_anywhere.node_client("n1")
    assert node.put("/v1/nodes/n1", json=report).json()["power_domain"] == "", "unknown"
    assert node.put("/v1/nodes/n1", json=report | {"power_domain": "pdu-7"}).json()["power_domain"] == "pdu-7"
    assert node.put("/v1/nodes/n1", json=report | {"power_domain": 7}).status_code == 422
    (listed,) = node.get("/v1/nodes").json()["items"]
    assert listed["power_domain"] == "pdu-7"


@pytest.fixture(scope="module")
def unheard(lasting_service) -> httpx.Client:
    """A client of a node of which nothing is accepted."""
    return lasting_service.node_client("n1")


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_count": -1}, {"memory_bytes": 2**63}, {"hostname": "x\x00"}, {"hostname": "\ud800"}, {"devices": [{}]},
        {"started_at": "soon"}, {"devices": [gpu(0), gpu(0)]}, {"devices": [gpu(0, id="host")]},
        {"devices": [gpu(0, id="a b")]},
    ],
)  # fmt: skip
def test_bad_reports_are_refused_whole(lasting_service, unheard, report, change: dict[str, object]) -> None:
    import json

    body = json.dumps({**report, **change})  # ASCII escapes, so that even a lone surrogate can be sent
    answer = unheard.put("/v1/nodes/n1", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["loc"][0] == "body"
    assert lasting_service.client().get("/v1/nodes/n1").json()["hostname"] == ""


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_json_numbers_that_are_none_are_refused(unheard, report, number: str) -> None:
    import json

    body = json.dumps(report).replace("1700000000.0", number)
    answer = unheard.put("/v1/nodes/n1", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "started_at" in answer.text


@pytest.mark.postgres
def test_no_node_is_silent_because_the_database_was_away(
    start, databases, migrated_template: str, report, eventually
) -> None:
    clock, url = ManualClock(1_800_000_000.0), databases.make(template=migrated_template)
    service = start(clock, database_url=url, fleet={"heartbeat_timeout_seconds": 10.0})
    node, admin, name = service.node_client("n1"), service.client(), url.rsplit("/", 1)[1]

    def run_next() -> None:
        clock.advance(4)
        run_loop(service, "fleet-voices")

    for _ in range(10):
        assert node.put("/v1/nodes/n1", json=report).status_code == 200
        run_next()
    databases.run(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    databases.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    for _ in range(5):
        run_next()
    databases.run(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    eventually(lambda: service.services.leases.epoch("node-states") is not None)
    run_next()
    assert admin.get("/v1/nodes/n1").json()["state"] == "healthy", "nothing could be acknowledged for 24 s"
    databases.drop(url)


def test_silence_is_unknown_and_speech_is_heard_again(start, report) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock, fleet={"heartbeat_timeout_seconds": 10.0})
    node, admin = service.node_client("n1"), service.client()

    def state() -> str:
        return str(admin.get("/v1/nodes/n1").json()["state"])

    assert state() == "unknown", "enrolled, and never healthy before its first report"
    node.put("/v1/nodes/n1", json=report)
    run_loop(service, "fleet-voices")
    assert state() == "healthy"
    for _ in range(4):  # the service listens all the time
        clock.advance(4)
        run_loop(service, "fleet-voices")
        assert state() == "healthy", "a service that began a moment ago cannot tell"
    clock.advance(4)
    node.put("/v1/nodes/n1", json=report)
    run_loop(service, "fleet-voices")
    for _ in range(3):
        clock.advance(4)
        run_loop(service, "fleet-voices")
    read = admin.get("/v1/nodes/n1").json()
    assert (read["state"], read["state_reason"], read["age_seconds"]) == ("unknown", "silent since 12 s", 12.0)
    node.put("/v1/nodes/n1", json=report)
    run_loop(service, "fleet-voices")
    assert state() == "healthy"


def test_a_service_that_was_frozen_or_away_accuses_no_node(start, report) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock, fleet={"heartbeat_timeout_seconds": 10.0})
    service.hold_still()
    node, admin = service.node_client("n1"), service.client()
    node.put("/v1/nodes/n1", json=report)
    for _ in range(10):
        clock.advance(4)
        node.put("/v1/nodes/n1", json=report)
        run_loop(service, "fleet-voices")
    clock.advance(60)  # nothing was heard, since the process stood still
    for _ in range(6):
        run_loop(service, "fleet-voices")
        assert admin.get("/v1/nodes/n1").json()["state"] == "healthy"
        clock.advance(4)
    run_loop(service, "fleet-voices")
    clock.advance(4)
    run_loop(service, "fleet-voices")
    assert admin.get("/v1/nodes/n1").json()["state"] == "unknown", "it had time to be heard again"


@pytest.mark.parametrize("held", [HealthState.SUSPECT, HealthState.QUARANTINED, HealthState.DRAINING])
def test_speech_and_silence_lift_nothing_that_others_decided(start, report, held: HealthState) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock)
    service.hold_still()  # what is drained and has no work is otherwise taken further
    node = service.node_client("n1")
    with service.services.database.session() as session:
        row = session.get(NodeRow, "n1")
        row.state, row.state_reason = held.value, "because"
    for _ in range(2):
        node.put("/v1/nodes/n1", json=report)
        run_loop(service, "fleet-voices")
        clock.advance(100)
        run_loop(service, "fleet-voices")
    assert service.client().get("/v1/nodes/n1").json()["state"] == held


def test_moved_hardware_is_recognized(service, report) -> None:
    first, second = service.node_client("n1"), service.node_client("n2")
    first.put("/v1/nodes/n1", json={**report, "devices": [*report["devices"], gpu(0)]})
    first.put("/v1/nodes/n1", json=report)
    answer = second.put("/v1/nodes/n2", json={**report, "devices": [*report["devices"], gpu(0)]}).json()
    assert [device["previous_node"] for device in answer["devices"]] == [None, "n1"]
    gone = service.client().get("/v1/nodes/n1").json()["devices"]
    assert [(device["id"], device["present"]) for device in gone] == [("host", True), ("gpu0", False)]


def test_lists_filter_and_walk(service, report) -> None:
    admin = service.client()
    for number in range(5):
        admin.put(f"/v1/nodes/n{number}", json={**report, "cohort": "a" if number < 2 else "100%_b"})
    assert [n["name"] for n in admin.get("/v1/nodes", params={"q": "%_"}).json()["items"]] == ["n2", "n3", "n4"]
    assert [n["name"] for n in admin.get("/v1/nodes", params={"q": "N1"}).json()["items"]] == ["n1"]
    none = admin.get("/v1/nodes", params={"state": "quarantined"}).json()
    assert none == {"items": [], "next_cursor": None, "total": 0, "facets": None, "names": None}
    first = admin.get("/v1/nodes", params={"limit": 3}).json()
    second = admin.get("/v1/nodes", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [n["name"] for n in first["items"] + second["items"]] == [f"n{i}" for i in range(5)]
    assert second["next_cursor"] is None


def test_unknown_nodes_are_404_in_words(service) -> None:
    answer = service.client().get("/v1/nodes/absent")
    assert (answer.status_code, answer.json()["detail"]) == (404, "no node is called 'absent'")
    assert service.client().get("/v1/telemetry/query?node=absent&signal=load_1m").status_code == 404
    assert service.client().get("/v1/nodes/a%20b").status_code == 422


# the heat-map


def layout(client: httpx.Client, **headers: str) -> httpx.Response:
    return client.get("/v1/fleet/heatmap-layout", headers=headers)


def slots_of(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(node, device, rack) of each slot, as the dashboard reads them."""
    places = zip(told["nodes"], told["shape_of"], told["rack_of"], strict=True)
    return [
        (node, device, told["racks"][rack]) for node, shape, rack in places
        for device in told["shapes"][shape]
    ]  # fmt: skip


def test_the_layout_is_stable_and_cheap_to_poll(service, report) -> None:
    admin = service.client()
    for name in ("b", "a"):
        admin.put(f"/v1/nodes/{name}", json={**report, "devices": [gpu(1), gpu(0), *report["devices"]]})
    answer = layout(admin)
    assert slots_of(answer.json()) == [(n, d, "") for n in "ab" for d in ("host", "gpu0", "gpu1")]
    assert answer.json()["shapes"] == [["host", "gpu0", "gpu1"]], "nodes of one kind share it"
    tag = answer.headers["etag"]
    again = layout(admin, **{"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert layout(admin, **{"If-None-Match": '"other"'}).status_code == 200
    admin.put("/v1/nodes/b", json={**report, "rack": "r7"})
    moved = layout(admin, **{"If-None-Match": tag})
    assert slots_of(moved.json())[-1] == ("b", "host", "r7"), "a change is there with the next request"


def test_the_layout_groups_nodes_by_all_that_they_share(service, report) -> None:
    admin = service.client()
    places = {"a": {"switches": ["leaf-2", "spine-1"], "power_domain": "pdu-1"}, "b": {"cohort": "gpu", "rack": "r1"}}
    for name, place in places.items():
        admin.put(f"/v1/nodes/{name}", json={**report, **place})
    told = layout(admin).json()
    groups = [("racks", "rack_of"), ("switches", "switch_of"), ("power_domains", "power_domain_of"),
              ("cohorts", "cohort_of")]  # fmt: skip
    assert {many: [told[many][place] for place in told[one]] for many, one in groups} == {
        "racks": ["", "r1"], "switches": ["leaf-2", ""], "power_domains": ["pdu-1", ""], "cohorts": ["cpu", "gpu"],
    }  # fmt: skip
    admin.put("/v1/nodes/b", json={**report, **places["b"], "power_domain": "pdu-2"})
    assert layout(admin).json()["power_domains"] == ["pdu-1", "pdu-2"]


def test_the_jobs_of_nodes_are_in_the_order_of_the_layout(service, report) -> None:
    admin = service.client()
    for name in ("a", "b", "c"):
        admin.put(f"/v1/nodes/{name}", json=report)
    assert admin.get("/v1/fleet/jobs").json()["jobs"] == [""]
    ranks = [{"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": "b", "device": None, "pid": 1, "state": "running"}]
    job = {
        "name": "j", "state": "running", "generation": 1, "command": "train.py",
        "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": ranks},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": None, "last_step": 1, "started_at": 1_700_000_000.0, "finished_at": None,
    }  # fmt: skip
    assert admin.put("/v1/jobs/j", json=job).status_code == 200
    told = admin.get("/v1/fleet/jobs").json()
    assert told["layout"] == layout(admin).json()["version"]
    assert [told["jobs"][place] for place in told["job_of"]] == ["", "j", ""]


def test_a_snapshot_has_a_byte_a_slot_and_unknown_is_not_zero(service, report, frames, eventually) -> None:
    admin = service.client()
    devices = [*report["devices"], gpu(0), gpu(1)]
    admin.put("/v1/nodes/n1", json={**report, "devices": devices})
    admin.put("/v1/nodes/n2", json=report)
    frames.catalog = catalog(SignalSource.HOST, SignalSource.GPU)
    made = frames.catalog
    values = np.full((3, len(made.narrow), 2), np.nan, "<f4")
    values[0, made.narrow.index("cpu_utilization_ratio")] = 0.5
    values[1, made.narrow.index("gpu_utilization_ratio")] = 1.0
    wide = np.zeros((3, len(made.wide), 2), "<i8").tobytes()
    fields = {"values": values.tobytes(), "wide": wide, "crc32": checksum(values.tobytes(), wide)}
    body = frames.body(1, t0=float(int(time.time()) - 3), entities=("host", "gpu0", "gpu1"), **fields)
    assert admin.post("/v1/telemetry/frames", content=body).status_code == 204

    def snapshot(signal: str) -> tuple[list[int], float, float]:
        answer = admin.get("/v1/fleet/heatmap", params={"signal": signal})
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-mainstay-heatmap-layout"] == layout(admin).json()["version"]
        return list(answer.content), float(answer.headers["x-mainstay-low"]), float(answer.headers["x-mainstay-high"])

    assert snapshot("cpu_utilization_ratio") == ([125, 255, 255, 255], 0.0, 1.0)
    assert snapshot("gpu_utilization_ratio") == ([255, 250, 255, 255], 0.0, 1.0)
    assert snapshot("state")[1:] == (0.0, 5.0)
    order = [state.value for state in HealthState]

    def agrees() -> bool:
        states = [admin.get(f"/v1/nodes/{n}").json()["state"] for n in ("n1",) * 3 + ("n2",)]
        return [order[byte] for byte in snapshot("state")[0]] == states

    eventually(agrees)  # a frame may change a state between the two answers


@pytest.mark.parametrize("signal", ["nonsense", "loss", ""])
def test_snapshots_of_what_is_not_there_are_refused(lasting_service, signal: str) -> None:
    assert lasting_service.client().get("/v1/fleet/heatmap", params={"signal": signal}).status_code == 422
