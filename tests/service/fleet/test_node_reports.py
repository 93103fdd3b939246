"""Reports that arrive together are stored together, and writers that wait block no other request."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from mainstay.service.fleet import node_reports
from mainstay.service.fleet.node_reports import BATCH, NodeReports
from mainstay.service.fleet.schemas import NodeRead, NodeReportCreate

MANY = 120
"""More than the threads that handlers run in (40)."""
Reports = Sequence[tuple[str, dict[str, Any]]]


@pytest.fixture
def batches(service: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of each transaction's nodes; one that has a node called ``bad`` fails."""
    made: list[list[str]] = []
    store = node_reports.service.report_all

    def noted(session: Any, reports: Any, *, now: float) -> Any:
        made.append(list(reports))
        rows = store(session, reports, now=now)
        if "bad" in reports:
            raise RuntimeError("this one cannot be stored")
        return rows

    monkeypatch.setattr(node_reports.service, "report_all", noted)
    return made


def keep(service: Any, reports: Reports) -> list[NodeRead | BaseException]:
    """Hand in reports at once, as one turn of the event loop would."""

    async def at_once() -> list[NodeRead | BaseException]:
        running = service.services
        kept = NodeReports(running.database, running.fleet, running.seen, running.clock, running.occupancy)
        said = [(name, NodeReportCreate.model_validate(report)) for name, report in reports]
        return await asyncio.gather(*(kept.keep(name, one) for name, one in said), return_exceptions=True)

    return asyncio.run(at_once())


def test_a_burst_is_stored_in_few_transactions(service: Any, report: dict[str, Any], batches: list[list[str]]) -> None:
    names = [f"n{number:03d}" for number in range(2 * BATCH + 20)]
    answers = keep(service, [(name, report) for name in names])
    assert [answer.name for answer in answers if isinstance(answer, NodeRead)] == names
    assert [len(batch) for batch in batches] == [BATCH, BATCH, 20]
    listed = service.client().get("/v1/nodes", params={"limit": 500}).json()["items"]
    assert [node["name"] for node in listed] == names


def test_a_report_that_cannot_be_stored_fails_alone(
    service: Any, report: dict[str, Any], batches: list[list[str]]
) -> None:
    names = ["n1", "n2", "bad", "n3"]
    answers = keep(service, [(name, report) for name in names])
    assert [isinstance(answer, NodeRead) for answer in answers] == [True, True, False, True]
    assert str(answers[2]) == "this one cannot be stored"
    assert batches == [names, ["n1"], ["n2"], ["bad"], ["n3"]]


def test_a_node_that_reports_twice_keeps_the_order(
    service: Any, report: dict[str, Any], batches: list[list[str]]
) -> None:
    first, second = keep(service, [("n1", report | {"kernel": "6.1"}), ("n1", report | {"kernel": "6.2"})])
    assert isinstance(first, NodeRead)
    assert isinstance(second, NodeRead)
    assert (first.kernel, second.kernel, batches) == ("6.1", "6.2", [["n1"], ["n1"]])


def test_hardware_that_moves_within_a_batch_tells_where_it_was(service: Any, report: dict[str, Any]) -> None:
    card = {"id": "GPU-0", "index": 0, "kind": "gpu", "model": "H100", "serial": "S1", "uuid": "U1", "memory_bytes": 1}
    with_card = copy.deepcopy(report)
    with_card["devices"].append(card)
    keep(service, [("old", with_card)])
    _, new = keep(service, [("old", report), ("new", with_card)])
    assert isinstance(new, NodeRead)
    assert [device.previous_node for device in new.devices if device.id == "GPU-0"] == ["old"]


def test_more_writers_than_threads_all_get_through(service: Any) -> None:
    """Were they to wait for SQLite's lock in their threads, the request that holds it would find none to continue."""
    client: httpx.Client = service.client()

    def write(number: int) -> int:
        return client.post("/v1/auth/tokens", json={"name": f"t{number}", "kind": "join"}).status_code

    with concurrent.futures.ThreadPoolExecutor(MANY) as pool:
        answers = [pool.submit(write, number) for number in range(MANY)]
        reads = [client.get("/v1/nodes").status_code for _ in range(5)]
        assert {answer.result(60.0) for answer in answers} == {201}
    assert set(reads) == {200}
