"""A gateway accepts what nodes and jobs send, and the other processes know it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mainstay.service.server import CannotServeError, check_database
from mainstay.service.settings import ClusterSettings, Settings
from tests.service.cluster.test_log_follower import announce, node_of, post

GATEWAY = ClusterSettings(role="gateway")


@pytest.fixture
def pair(start, databases: Any, migrated_template: str, tmp_path) -> Iterator[tuple[Any, Any]]:
    """A gateway, and a process that does the rest."""
    url = databases.make(template=migrated_template)
    full = start(database_url=url, data_dir=tmp_path / "full")
    yield start(database_url=url, data_dir=tmp_path / "gateway", cluster=GATEWAY), full
    databases.drop(url)


@pytest.mark.parametrize("blocks", ["auto", "sqlite"])
def test_a_gateway_needs_postgresql(make_settings, blocks: str) -> None:
    settings: Settings = make_settings(cluster=GATEWAY, blocks=blocks)
    with pytest.raises(CannotServeError, match="a gateway stores frames in PostgreSQL"):
        check_database(settings)


@pytest.mark.postgres
def test_what_a_gateway_accepts_is_in_the_memory_of_the_others_and_not_in_its_own(
    pair, frames, report, eventually
) -> None:
    gateway, full = pair
    node = node_of(full, "n1", report)
    announce(node, frames)
    assert post(node, gateway.url, frames.body(1)) == 204
    event = {"id": "00000000-0000-7000-8000-000000000001", "kind": "xid", "node": "n1", "device": "GPU-1"}
    event |= {"time": full.services.clock.now(), "data": {"code": 79}}
    assert node.post(f"{gateway.url}/v1/events", json={"items": [event]}).is_success

    admin = full.client(full.admin_token)
    eventually(lambda: full.services.ring.nbytes > 0)
    eventually(lambda: admin.get("/v1/incidents").json()["items"])
    assert full.services.follower.blocks == 1
    assert full.services.seen.get("n1") is not None
    assert gateway.services.follower is None
    assert gateway.services.leases.names() == []
    assert {loop.name for loop in gateway.app.state.loops}.isdisjoint({"detection", "history", "telemetry-log"})
    assert gateway.services.ring.nbytes == 0


@pytest.mark.postgres
def test_a_gateway_answers_nodes_and_refuses_people(pair, report) -> None:
    gateway, full = pair
    admin = gateway.client(full.admin_token)
    for path in ("/v1/nodes", "/v1/incidents", "/v1/cluster", "/v1/telemetry/query?node=n1&signal=x"):
        refused = admin.get(path)
        assert (refused.status_code, refused.json()["type"]) == (421, "urn:mainstay:problem:gateway"), path
    node = node_of(full, "n1", report)
    assert node.put(f"{gateway.url}/v1/nodes/n1", json=report).status_code == 200
    assert node.get(f"{gateway.url}/v1/auth/me").json()["subject"]
    assert node.get(f"{gateway.url}/v1/nodes/n1/tasks?wait=0").is_success
    full.client(full.admin_token).post("/v1/nodes/n1:quarantine", json={"reason": "test"})
    asked = {"job": "llm", "nodes": ["n1", "n2"]}
    assert admin.post("/v1/admission", json=asked).status_code == 421
    made = {"name": "llm", "kind": "job", "job": "llm"}
    job = gateway.client(full.client(full.admin_token).post("/v1/auth/tokens", json=made).json()["token"])
    told = {
        node["node"]: [r["code"] for r in node["reasons"]]
        for node in job.post("/v1/admission", json=asked).json()["nodes"]
    }
    assert told == {"n1": ["state", "never_validated"], "n2": ["unknown_node"]}, "and nothing of who is silent"
    anyone = gateway.client("")
    assert anyone.get("/").status_code == 404
    assert anyone.get("/readyz").status_code == 200
    page = anyone.get("/metrics").text
    assert "mainstay_frames_stored_total" in page
    assert "mainstay_nodes{" not in page
    roles = {one["role"] for one in full.client(full.admin_token).get("/v1/cluster").json()["processes"]}
    assert roles == {"all", "gateway"}
