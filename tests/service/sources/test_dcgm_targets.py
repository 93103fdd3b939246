"""A target, from the request that adds it to the ring: stored durably, told when it fails, never beside a daemon."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from mainstay.probes.signals import SignalSource
from mainstay.service.sources import targets
from mainstay.service.telemetry.blocks import BlockKind
from tests.service.conftest import wait_until
from tests.service.sources.exporter import UUIDS, Exporter, new_text, old_labels, old_text

TIME = [BlockKind.TIME]


def add_target(service: Any, exporter: Exporter, **fields: Any) -> dict[str, Any]:
    body = {"url": exporter.url, "interval_seconds": 1, **fields}
    answer = service.client().post("/v1/ingest/dcgm-targets", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def the_target(service: Any) -> dict[str, Any]:
    (found,) = service.client().get("/v1/ingest/dcgm-targets").json()["items"]
    return dict(found)


def latest(service: Any, signal: str, device: str = "gpu0", node: str = "dgx-07") -> float | None:
    now = int(time.time())
    window = service.services.ring.window(
        SignalSource.GPU, now - 60, now + 2, signals=[signal], columns=[(node, device)]
    )
    known = window.values[~np.isnan(window.values)]
    return float(known[-1]) if known.size else None


@pytest.mark.parametrize("text", [old_text(), new_text()], ids=["old", "4.6"])
def test_a_target_fills_ring_blocks_and_fleet(service: Any, exporter: Exporter, text: str) -> None:
    exporter.answer = text
    made = add_target(service, exporter)
    assert set(made) == {
        "id", "url", "node", "interval_seconds", "enabled", "last_scrape_at", "last_error", "samples"
    }  # fmt: skip
    wait_until(lambda: latest(service, "gpu_temperature_celsius") == 47.0)
    node = service.client().get("/v1/nodes/dgx-07").json()
    assert [(d["id"], d["uuid"]) for d in node["devices"]] == [("gpu0", UUIDS[0]), ("gpu1", UUIDS[1])]
    assert node["version"] == "dcgm-exporter"
    seen = wait_until(lambda: (found := the_target(service))["samples"] and found)
    assert seen["last_error"] is None
    assert abs(seen["last_scrape_at"] - time.time()) < 30
    blocks = list(service.services.blocks.read(time.time() - 60, time.time() + 60, subject="dgx-07", kinds=TIME))
    assert {block.stream for block in blocks} == {f"dcgm-{made['id']}"}


@pytest.mark.slow
def test_sequences_grow_by_one_and_counters_become_rates(service: Any, exporter: Exporter) -> None:
    energy = iter(range(10_000_000, 10**12, 500_000))

    def answer(handler: Any) -> None:
        body = old_text(TOTAL_ENERGY_CONSUMPTION=next(energy)).encode()
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)

    exporter.answer = answer
    add_target(service, exporter)
    wait_until(lambda: latest(service, "gpu_energy_millijoules_total"))
    read = service.services.blocks.read
    blocks = wait_until(
        lambda: len(b := list(read(time.time() - 60, time.time() + 60, subject="dgx-07", kinds=TIME))) >= 3 and b
    )
    sequences = sorted(block.sequence for block in blocks)
    assert sequences == list(range(1, len(sequences) + 1))


def test_the_target_may_name_the_node(service: Any, exporter: Exporter) -> None:
    add_target(service, exporter, node="rack3-n1")
    wait_until(lambda: latest(service, "gpu_power_watts", node="rack3-n1"))
    assert service.client().get("/v1/nodes/dgx-07").status_code == 404


def test_one_exporter_may_tell_of_two_nodes(service: Any, exporter: Exporter) -> None:
    exporter.answer = old_text("dgx-07") + old_text("dgx-08").replace(UUIDS[0], "GPU-x").replace(UUIDS[1], "GPU-y")
    add_target(service, exporter)
    for node in ("dgx-07", "dgx-08"):
        wait_until(lambda node=node: latest(service, "gpu_power_watts", node=node))


def test_a_node_with_a_daemon_is_left_to_it(service: Any, exporter: Exporter, report: dict[str, Any]) -> None:
    assert service.node_client("dgx-07").put("/v1/nodes/dgx-07", json=report).status_code == 200
    add_target(service, exporter)
    target = wait_until(lambda: (found := the_target(service))["last_error"] and found)
    assert "has a daemon of its own" in target["last_error"]
    assert target["samples"] == 0
    assert [d["id"] for d in service.client().get("/v1/nodes/dgx-07").json()["devices"]] == ["host"]
    assert latest(service, "gpu_power_watts") is None


def test_a_node_is_fed_from_one_target_only(service: Any, exporter: Exporter) -> None:
    add_target(service, exporter)
    wait_until(lambda: the_target(service)["samples"])
    second = Exporter(new_text())
    try:
        made = add_target(service, second)
        items = lambda: service.client().get("/v1/ingest/dcgm-targets").json()["items"]  # noqa: E731
        told = wait_until(lambda: next((t for t in items() if t["id"] == made["id"] and t["last_error"]), None))
        assert "fed from another target" in told["last_error"]
    finally:
        second.close()


@pytest.mark.slow
def test_a_target_that_fails_leaves_its_node_unknown(start: Any, exporter: Exporter) -> None:
    service = start(fleet={"heartbeat_timeout_seconds": 3.0})
    add_target(service, exporter)
    state = lambda: service.client().get("/v1/nodes/dgx-07").json().get("state")  # noqa: E731
    wait_until(lambda: state() == "healthy")

    def broken(handler: Any) -> None:
        handler.send_response(503)
        handler.end_headers()

    exporter.answer = broken
    wait_until(lambda: state() == "unknown")
    assert "503" in the_target(service)["last_error"]
    (silent,) = wait_until(lambda: emitted_events(service))
    assert (silent["node"], silent["data"]["sampler"], "cleared" in silent["data"]) == ("dgx-07", "dcgm", False)
    kinds = {finding["kind"] for finding in service.client().get("/v1/findings").json()["items"]}
    assert "node_lost" not in kinds, "an exporter that is away says nothing of the node"
    exporter.answer = old_text()
    wait_until(lambda: state() == "healthy", seconds=30)
    wait_until(lambda: the_target(service)["last_error"] is None)
    assert [event["data"].get("cleared", False) for event in emitted_events(service)] == [True, False]


def emitted_events(service: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        service.client().get("/v1/events", params={"kind": "probe_unresponsive"}).json()["items"]
    )
    return found


@pytest.mark.slow
def test_between_two_scrapes_a_node_is_not_silent(start: Any, exporter: Exporter) -> None:
    service = start(fleet={"heartbeat_timeout_seconds": 4.0})
    add_target(service, exporter, interval_seconds=8)
    state = lambda: service.client().get("/v1/nodes/dgx-07").json().get("state")  # noqa: E731
    wait_until(lambda: state() == "healthy")
    until = time.monotonic() + 6.5
    while time.monotonic() < until:
        assert state() == "healthy"
        time.sleep(0.1)


def test_a_hanging_target_holds_up_no_other(start: Any, exporter: Exporter) -> None:
    service = start(sources={"scrape_seconds": 1.0, "scrape_threads": 2})
    stuck = Exporter(lambda _handler: stuck.over.wait(60) and None)
    try:
        add_target(service, stuck)
        add_target(service, exporter)
        wait_until(lambda: latest(service, "gpu_power_watts"), seconds=5)
        items = lambda: service.client().get("/v1/ingest/dcgm-targets").json()["items"]  # noqa: E731
        told = wait_until(lambda: next((t for t in items() if t["url"] == stuck.url and t["last_error"]), None))
        assert "within 1 s" in told["last_error"]
        assert not any(loop.failures for loop in service.app.state.loops)
    finally:
        stuck.close()


def test_a_huge_target_is_refused(start: Any, exporter: Exporter) -> None:
    service = start(sources={"max_scrape_bytes": 2048})
    add_target(service, exporter)
    target = wait_until(lambda: (found := the_target(service))["last_error"] and found)
    assert "more than 2048 bytes" in target["last_error"]


@pytest.mark.parametrize("host", ["", "../x", "a b"])
def test_a_host_label_that_is_no_name_is_told(service: Any, exporter: Exporter, host: str) -> None:
    exporter.answer = old_text(host)
    add_target(service, exporter)
    assert "no node is named" in wait_until(lambda: the_target(service)["last_error"])


def test_xids_that_the_exporter_counts_become_events(service: Any, exporter: Exporter) -> None:
    window = f'{{{old_labels(1)},xid="79",window_size_in_ms="300000"}}'
    exporter.answer = old_text() + f"DCGM_EXP_XID_ERRORS_COUNT{window} 0\n"
    add_target(service, exporter)
    wait_until(lambda: the_target(service)["samples"])
    exporter.answer = old_text(XID_ERRORS=79) + f"DCGM_EXP_XID_ERRORS_COUNT{window} 1\n"
    events = wait_until(lambda: service.client().get("/v1/events", params={"kind": "xid"}).json()["items"])
    assert [(e["node"], e["device"], e["data"]["code"], e["data"]["source"]) for e in events] == [
        ("dgx-07", "gpu1", 79, "dcgm")
    ]


@pytest.mark.slow
def test_a_deleted_target_is_scraped_no_more(service: Any, exporter: Exporter) -> None:
    made = add_target(service, exporter)
    wait_until(lambda: exporter.asked)
    assert service.client().delete(f"/v1/ingest/dcgm-targets/{made['id']}").status_code == 204
    assert service.client().delete(f"/v1/ingest/dcgm-targets/{made['id']}").status_code == 404
    time.sleep(0.2)  # a scrape that is under way may end
    asked = exporter.asked
    time.sleep(1.5)
    assert exporter.asked == asked


def test_a_target_that_is_off_is_not_scraped(service: Any, exporter: Exporter) -> None:
    add_target(service, exporter, enabled=False)
    time.sleep(1.0)
    assert exporter.asked == 0


def test_the_same_address_twice_is_a_conflict(service: Any, exporter: Exporter) -> None:
    add_target(service, exporter, enabled=False)
    again = service.client().post("/v1/ingest/dcgm-targets", json={"url": exporter.url})
    assert (again.status_code, again.json()["type"]) == (409, "urn:mainstay:problem:target-exists")


def test_a_repeated_request_with_a_key_makes_one_target(service: Any, exporter: Exporter) -> None:
    client = service.client(**{"Idempotency-Key": "k1"})
    body = {"url": exporter.url, "enabled": False}
    first, again = (client.post("/v1/ingest/dcgm-targets", json=body) for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"


def test_only_an_admin_adds_and_removes(service: Any, exporter: Exporter) -> None:
    admin = service.client()
    tokens = {
        scope: admin.post("/v1/auth/tokens", json={"name": scope, "kind": "user", "scopes": [scope]}).json()["token"]
        for scope in ("read", "report", "act")
    }
    for token in tokens.values():
        client = service.client(token)
        assert client.post("/v1/ingest/dcgm-targets", json={"url": exporter.url}).status_code == 403
        assert client.delete("/v1/ingest/dcgm-targets/x").status_code == 403
        assert client.get("/v1/ingest/dcgm-targets").status_code == 200
    assert service.client("").get("/v1/ingest/dcgm-targets").status_code == 401
    assert exporter.asked == 0


@pytest.mark.parametrize(
    "body",
    [
        {}, {"url": "file:///etc/passwd"}, {"url": "http://169.254.169.254/"}, {"url": "http://u:p@h/"}, {"url": 7},
        {"url": "http://h/", "interval_seconds": 0.1}, {"url": "http://h/", "interval_seconds": 31},
        {"url": "http://h/", "interval_seconds": "5"}, {"url": "http://h/", "node": "../x"},
        {"url": "http://h/", "enabled": "yes"}, {"url": "http://h/", "more": 1}, {"url": "http://" + "h" * 600},
    ],
)  # fmt: skip
def test_bad_targets_are_refused_by_field(lasting_service: Any, body: dict[str, Any]) -> None:
    answer = lasting_service.client().post("/v1/ingest/dcgm-targets", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"], json.dumps(answer.json())


def test_due_targets_are_claimed_once(service_anywhere: Any) -> None:
    database = service_anywhere.services.database
    with database.session() as session:
        targets.create(session, url="http://127.0.0.1:9/", node="n", interval=30.0, enabled=False, now=100.0)
        row = targets.create(session, url="http://127.0.0.1:9/b", node="n", interval=30.0, enabled=True, now=5e9)
        identity = row.id
    with database.session() as one:
        (first,) = targets.claim(one, 5e9 + 1, 10)
    with database.session() as other:
        assert targets.claim(other, 5e9 + 2, 10) == []
    assert (first.id, first.sequence) == (identity, 1)
    with database.session() as session:
        targets.settle(session, [targets.ScrapeResult(first, 5e9 + 2, "refused")])
        targets.settle(session, [targets.ScrapeResult(first, 5e9 + 3, "refused")])
    with database.session() as session:
        assert targets.claim(session, 5e9 + 20, 10) == []
        (second,) = targets.claim(session, 5e9 + 40, 10)
    assert (second.sequence, second.failures) == (2, 1)
