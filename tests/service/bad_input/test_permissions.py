"""Requests without permission to write."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from mainstay.probes.frame import Axis
from tests.service.bad_input.input_bench import FRAMES, GOOD, JOB, JSON, InputBench, events, nothing_stored
from tests.service.problems import assert_problem


@pytest.fixture
def denied_clients(bench: InputBench) -> dict[str, tuple[httpx.Client, int, str]]:
    """Who: (client, status, slug) without permission to write for n1."""
    gone = bench.admin.post("/v1/auth/tokens", json={"name": "gone", "scopes": ["admin"]}).json()
    assert bench.admin.delete(f"/v1/auth/tokens/{gone['id']}").status_code == 204
    expired = bench.with_token(scopes=["admin"], expires_in=0.001)
    time.sleep(0.002)
    make = bench.service.client
    return {
        "no token": (make(""), 401, "unauthorized"),
        "no known token": (make("mst_node_" + "x" * 43), 401, "unauthorized"),
        "no ASCII": (make("", Authorization=b"Bearer \xff\xfe"), 401, "unauthorized"),
        "expired": (expired, 401, "unauthorized"),
        "revoked": (make(gone["token"]), 401, "unauthorized"),
        "a session that is none": (make("", Cookie="mainstay_session=x", **{"Sec-Fetch-Site": "same-origin"}), 401,
                                   "unauthorized"),
        "may only read": (bench.with_token(scopes=["read"]), 403, "scope-missing"),
        "may only act": (bench.with_token(scopes=["act"]), 403, "scope-missing"),
    }  # fmt: skip


def endpoints(frames: Any, report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What n1 may write: the arguments of a request."""
    return {
        "frame": {"method": "POST", "url": FRAMES, "content": frames.body()},
        "events": {"method": "POST", "url": "/v1/events", "content": GOOD, "headers": JSON},
        "report": {"method": "PUT", "url": "/v1/nodes/n1", "json": report},
        "orders": {"method": "GET", "url": "/v1/nodes/n1/tasks"},
    }


def test_clients_without_permission_write_nothing(
    bench: InputBench, denied_clients: Any, frames: Any, report: Any
) -> None:
    for client, status, slug in denied_clients.values():
        with nothing_stored(bench):
            for request in endpoints(frames, report).values():
                assert_problem(client.request(**request), status, slug)


def test_a_node_writes_for_no_other(bench: InputBench, frames: Any, report: Any) -> None:
    other = bench.service.client(_credential_of(bench, "n3"))
    with nothing_stored(bench):
        for request in endpoints(frames, report).values():
            assert_problem(other.request(**request), 403, "wrong-node", "n1")


def _credential_of(bench: InputBench, name: str) -> str:
    join = bench.with_token(kind="join")
    token: str = join.post("/v1/nodes:enroll", json={"name": name}).json()["token"]
    return token


def test_a_token_of_one_job_writes_for_no_other(bench: InputBench, frames: Any) -> None:
    job = bench.with_token(kind="job", job="mine")
    step = frames.body(subject="yours", axis=Axis.STEP, entities=("0",))
    with nothing_stored(bench):
        assert_problem(job.put("/v1/jobs/yours", json=JOB), 403, "wrong-job", "yours")
        assert_problem(
            job.post("/v1/events", content=events(job="yours", kind="process_exit"), headers=JSON),
            403,
            "wrong-job",
            "yours",
        )
        assert_problem(job.post(FRAMES, content=step), 403, "wrong-job", "yours")


def test_hardware_events_come_from_the_node_itself(bench: InputBench) -> None:
    """One XID from a job's token could otherwise drain any node."""
    xid = events(kind="xid", job="mine", node="n1")
    clients = [bench.with_token(kind="job", job="mine"), bench.with_token(kind="job", any_job=True)]
    with nothing_stored(bench):
        for client in clients:
            assert_problem(client.post("/v1/events", content=xid, headers=JSON), 403, "wrong-node")


def test_hardware_events_of_an_invented_node_refuse_the_batch(bench: InputBench) -> None:
    with nothing_stored(bench):
        sent = bench.admin.post("/v1/events", content=events(kind="xid", job=None, node="invented"), headers=JSON)
        assert_problem(sent, 404, "unknown-node", "invented")


def test_valid_requests_are_accepted(service: Any, frames: Any, report: Any) -> None:
    """Or else the refusals above would prove nothing."""
    bench = InputBench(service, service.client(), service.node_client("n1"))
    before = bench.counts()
    for request in endpoints(frames, report).values():
        answer = bench.node.request(**request)
        assert answer.is_success, answer.text
    assert bench.admin.put("/v1/jobs/demo", json=JOB).status_code == 200
    after = bench.counts()
    for table in ("blocks", "events", "devices", "jobs"):
        assert after[table] == before[table] + 1, "and the counts see what is stored"
