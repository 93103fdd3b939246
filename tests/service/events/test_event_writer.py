"""Events of many senders are one transaction; duplicates, invented nodes, and excess cost no writer a turn."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Any

import httpx
import pytest
from sqlalchemy import event as sql_event

from mainstay.probes.ids import uuid7
from mainstay.service.events.schemas import EventIn
from mainstay.service.events.writer import BATCH


def xid(node: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": uuid7(), "time": 1_800_000_000.0, "kind": "xid", "node": node, "device": "gpu0",
        "data": {"code": 63, "source": "nvml"}, **changes,
    }  # fmt: skip


@pytest.fixture
def node(service: Any, report: dict[str, Any]) -> httpx.Client:
    service.hold_still()
    client: httpx.Client = service.node_client("n1")
    assert client.put("/v1/nodes/n1", json=report).status_code == 200
    return client


def post(client: httpx.Client, *events: dict[str, Any]) -> httpx.Response:
    return client.post("/v1/events", json={"items": list(events)})


def test_a_burst_of_single_events_is_few_transactions_and_each_counts(service: Any, node: httpx.Client) -> None:
    commits: list[object] = []
    sql_event.listen(service.services.database.engine, "commit", commits.append)
    events = [EventIn.model_validate(xid("n1", device=f"gpu{k % 8}")) for k in range(2 * BATCH)]

    async def at_once() -> list[Any]:
        keep = service.services.events.keep
        return await asyncio.gather(*(keep([one]) for one in events), keep([events[0], events[1]]))

    answers = asyncio.run(at_once())
    assert sum(answer.accepted for answer in answers) == len(events)
    assert (answers[-1].accepted, answers[-1].duplicates) == (0, 2)
    assert len(commits) <= 4
    again = asyncio.run(service.services.events.keep(events))
    assert (again.accepted, again.duplicates, len(commits) <= 4) == (0, len(events), True)


def test_invented_nodes_and_duplicates_are_answered_while_another_writes(service: Any, node: httpx.Client) -> None:
    stored = xid("n1")
    assert post(node, stored).json() == {"accepted": 1, "duplicates": 0, "set_aside": 0}
    with service.services.database.session() as session:
        session.connection()  # holds the one writer's turn
        invented = post(service.client(), xid("invented"))
        again = post(node, stored)
    assert invented.status_code == 404
    assert invented.json()["type"].endswith("unknown-node")
    assert again.json() == {"accepted": 0, "duplicates": 1, "set_aside": 0}


def test_a_node_that_sends_more_than_its_quota_is_told_when_to_come_back(start: Any, report: dict[str, Any]) -> None:
    service = start(quotas={"node_events_burst": 500, "node_events_per_second": 0.001})
    one, other = service.node_client("n1"), service.node_client("n2")
    for name, client in (("n1", one), ("n2", other)):
        assert client.put(f"/v1/nodes/{name}", json=report).status_code == 200
    assert post(one, *(xid("n1") for _ in range(500))).status_code == 200
    refused = post(one, xid("n1"))
    assert refused.status_code == 429
    assert refused.json()["type"].endswith("quota-exceeded")
    assert int(refused.headers["retry-after"]) > 0
    assert post(other, xid("n2")).status_code == 200


def test_new_nodes_of_one_token_have_a_quota_and_known_ones_do_not(start: Any, report: dict[str, Any]) -> None:
    service = start(quotas={"entities_burst": 2, "entities_per_second": 0.001})
    admin = service.client()
    answers = [admin.put(f"/v1/nodes/n{k}", json=report).status_code for k in range(3)]
    assert answers == [200, 200, 429]
    assert admin.put("/v1/nodes/n0", json=report).status_code == 200


def test_people_sign_in_and_read_while_the_threads_of_machines_are_taken(
    service: Any, node: httpx.Client, report: dict[str, Any]
) -> None:
    admin = service.client()
    reader = admin.post("/v1/auth/tokens", json={"name": "r", "kind": "user", "scopes": ["read"]}).json()["token"]
    taken, release = threading.Event(), threading.Event()
    machines = service.services.pressure.threads.machines

    def occupy() -> None:
        if machines.available_tokens == 0:
            taken.set()
        release.wait(60.0)

    async def fill() -> None:
        import anyio

        await asyncio.gather(*(anyio.to_thread.run_sync(occupy, limiter=machines) for _ in range(8)))

    loop = service.services.ingest.writer._loop
    filling = asyncio.run_coroutine_threadsafe(fill(), loop)
    assert taken.wait(30.0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.put, "/v1/nodes/n1", json=report)
        try:
            signed = service.client("").post("/v1/auth/session", json={"token": reader})
            read = service.client(reader).get("/v1/nodes")  # a token that is looked up now
            assert (signed.status_code, read.status_code) == (204, 200)
            assert not waiting.done()
        finally:
            release.set()
        assert waiting.result(60.0).status_code == 200
    filling.result(30.0)
