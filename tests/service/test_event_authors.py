"""Who may report which event: a node itself, a job its own and about its own nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.fakes.clock import ManualClock

NOW = 1_800_000_000.0
COUNT = iter(range(1, 10_000))


def event(kind: str = "process_exit", *, age: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {"id": f"0197f9e4-1c2d-7abc-8def-{next(COUNT):012x}", "time": NOW - age, "kind": kind, "data": {}, **fields}


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).removeprefix("urn:mainstay:problem:")


@pytest.fixture
def service(start: Callable[..., Any]) -> Any:
    return start(ManualClock(NOW))


def token(service: Any, **body: Any) -> httpx.Client:
    answer = service.client().post("/v1/auth/tokens", json={"name": "t", **body})
    assert answer.status_code == 201, answer.text
    return service.client(answer.json()["token"])


def job_report(*nodes: str, standbys: tuple[str, ...] = ()) -> dict[str, Any]:
    ranks = [
        {"rank": r, "dp": r, "pp": 0, "tp": 0, "node": node, "device": None, "pid": None, "state": "running"}
        for r, node in enumerate(nodes)
    ]
    size = len(nodes)
    return {
        "name": "mine", "state": "running", "generation": 1, "command": "train.py",
        "topology": {"dp": size, "pp": 1, "tp": 1, "world_size": size, "ranks": ranks,
                     "standbys": dict.fromkeys(standbys, 1)},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": 90, "last_step": 10, "started_at": NOW - 100, "finished_at": None,
    }  # fmt: skip


def post(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/events", json={"items": [event(**fields)]})


def test_a_job_reports_of_the_nodes_that_it_has_or_had(service) -> None:
    job = token(service, kind="job", job="mine")
    assert job.put("/v1/jobs/mine", json=job_report("n1", "n2", standbys=("n3",))).status_code == 200
    assert job.put("/v1/jobs/mine", json=job_report("n1", "n4")).status_code == 200
    assert job.put("/v1/jobs/mine", json=job_report("n1", "n5")).status_code == 200
    for node in ("n1", "n2", "n3", "n4", "n5", None):
        assert post(job, job="mine", node=node, age=3600).status_code == 200, node
    assert job.get("/v1/jobs/mine").json()["topology"]["world_size"] == 2, "and the job still reads as reported"


@pytest.mark.parametrize("bound", [{"job": "mine"}, {"any_job": True}])
def test_a_job_reports_of_no_other_node(service, bound: dict[str, Any]) -> None:
    job = token(service, kind="job", **bound)
    assert job.put("/v1/jobs/mine", json=job_report("n1")).status_code == 200
    old = post(job, job="mine", node="victim", kind="node_lost", age=61)
    assert (old.status_code, slug(old)) == (403, "wrong-node")
    young = post(job, job="mine", node="victim", kind="node_lost")
    assert (young.status_code, slug(young)) == (403, "node-not-in-job"), "its topology may be on the way: retried"
    assert job.put("/v1/jobs/mine", json=job_report("n1", "victim")).status_code == 200
    assert post(job, job="mine", node="victim", kind="node_lost").status_code == 200


def test_a_job_that_is_not_known_yet_names_no_node(service) -> None:
    job = token(service, kind="job", job="mine")
    assert post(job, job="mine", kind="job_started").status_code == 200
    assert slug(post(job, job="mine", node="n1")) == "node-not-in-job"


def test_a_bound_token_reports_of_no_other_job_and_of_no_hardware(service) -> None:
    job = token(service, kind="job", job="mine")
    assert job.put("/v1/jobs/mine", json=job_report("n1")).status_code == 200
    assert slug(post(job, job="yours")) == "wrong-job"
    kinds = ("xid", "gpu_lost", "kernel_fault", "link_down", "probe_unresponsive", "health_report", "node_stopping")
    for kind in kinds:
        assert slug(post(job, job="mine", node="n1", kind=kind, age=3600)) == "wrong-node", kind
    assert slug(post(job, node="n1", age=3600)) == "wrong-node", "without its job it speaks for no node"


def test_a_token_for_every_job_is_made_only_when_asked(service) -> None:
    admin = service.client()
    for body in ({"kind": "job"}, {"kind": "job", "job": "mine", "any_job": True}):
        answer = admin.post("/v1/auth/tokens", json={"name": "t", **body})
        assert answer.status_code == 422
        assert "any_job" in answer.json()["detail"]
    every = token(service, kind="job", any_job=True)
    for job in ("mine", "yours"):
        assert post(every, job=job, kind="job_started").status_code == 200


def test_a_node_reports_of_itself_only(service) -> None:
    node = service.node_client("n1")
    service.node_client("n2")
    assert post(node, node="n1", kind="xid").status_code == 200
    assert slug(post(node, node="n2", kind="xid")) == "wrong-node"
    assert slug(post(node, node="n2", job="mine")) == "wrong-node"
