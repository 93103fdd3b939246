"""A drain that moves ranks first: jobs are advised with the answers to their reports, and say what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mainstay.recovery.job_request import read

Json = dict[str, Any]


@pytest.fixture
def report_job() -> Callable[..., Json]:
    def report(service: Any, *nodes: str, **changes: Any) -> Json:
        ranks = [
            {"rank": r, "dp": r, "pp": 0, "tp": 0, "node": node, "device": None, "pid": 1, "state": "running"}
            for r, node in enumerate(nodes)
        ]
        body = {
            "name": "demo", "state": "running", "generation": 1, "command": "train.py",
            "topology": {"dp": len(nodes), "pp": 1, "tp": 1, "world_size": len(nodes), "ranks": ranks},
            "protection": {
                "slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []
            },
            "steps_total": None, "last_step": 1, "started_at": 1e9, "finished_at": None, **changes,
        }  # fmt: skip
        answer = service.client().put("/v1/jobs/demo", json=body)
        assert answer.status_code == 200, answer.text
        read: Json = answer.json()
        return read

    return report


def drain(service: Any, **body: Any) -> Json:
    answer = service.client().post("/v1/nodes/n1:drain", json={"reason": "it runs hot", **body})
    assert answer.status_code == 200, answer.text
    read: Json = answer.json()
    return read


def test_a_drain_moves_ranks_first(service_anywhere, enrolled, report_job) -> None:
    service = service_anywhere
    enrolled(service, "n1")
    assert report_job(service, "n1", "n2")["requests"] == []
    drained = drain(service, mode="migrate")
    assert drained["state"] == "draining"
    (given,) = drained["requests"]
    assert (given["job"], given["node"], given["rank"], given["state"]) == ("demo", "n1", None, "pending")
    for _ in range(2):  # until it has answered
        assert [one["id"] for one in report_job(service, "n1", "n2")["requests"]] == [given["id"]]

    answer = {"id": given["id"], "state": "accepted", "detail": "rank 0 to n2"}
    assert report_job(service, "n1", "n2", requests=[answer])["requests"][0]["state"] == "accepted"
    answer = {"id": given["id"], "state": "completed", "detail": "ranks [0] moved", "seconds": 0.4, "steps_lost": 0}
    assert (
        report_job(service, "n2", "n2", generation=2, requests=[answer, {"id": "a-file", "state": "completed"}])[
            "requests"
        ]
        == []
    )
    (kept,) = service.client().get("/v1/jobs/demo/requests").json()["items"]
    assert (kept["state"], kept["seconds"], kept["steps_lost"]) == ("completed", 0.4, 0)
    assert service.client().get("/v1/nodes/n1").json()["jobs"] == []


def test_without_the_mode_nobody_is_advised(service, enrolled, report_job) -> None:
    enrolled(service, "n1")
    report_job(service, "n1")
    assert drain(service)["requests"] == []
    assert report_job(service, "n1")["requests"] == []


def test_what_nobody_has_begun_goes_with_the_drain(service, enrolled, report_job) -> None:
    enrolled(service, "n1")
    report_job(service, "n1", "n2")
    drain(service, mode="migrate")
    assert service.client().post("/v1/nodes/n1:undrain", json={"reason": "cooled"}).status_code == 200
    assert report_job(service, "n1", "n2")["requests"] == []
    (kept,) = service.client().get("/v1/jobs/demo/requests").json()["items"]
    assert kept["state"] == "rejected"
    assert "took the drain of n1 back" in kept["detail"]


def test_a_job_is_advised_by_rank_and_once(service, report_job) -> None:
    report_job(service, "n1", "n2")
    ask = {"kind": "migrate", "rank": 1, "reason": "slow"}
    answers = [service.client().post("/v1/jobs/demo/requests", json=ask).json() for _ in range(2)]
    assert answers[0]["id"] == answers[1]["id"]
    for bad in ({"node": "n1"}, {"rank": None}, {"reason": ""}, {"kind": "degrade"}, {"kind": "dance"}, {"dp": 2}):
        assert service.client().post("/v1/jobs/demo/requests", json=ask | bad).status_code == 422


def test_a_request_for_another_shape_reaches_the_job(service, report_job) -> None:
    report_job(service, "n1", "n2")
    for tp in (2, 2, 4):  # the same request twice is one
        ask = {"kind": "reshape", "dp": 1, "tp": tp, "reason": "memory"}
        assert service.client().post("/v1/jobs/demo/requests", json=ask).status_code == 200
    requests = read(report_job(service, "n1", "n2"))
    assert [(request.dp, request.pp, request.tp) for request in requests] == [(1, 0, 2), (1, 0, 4)]


def test_a_job_that_is_over_has_answered_everything(service, report_job) -> None:
    report_job(service, "n1", "n2")
    ask = {"kind": "migrate", "rank": 1, "reason": "slow"}
    assert service.client().post("/v1/jobs/demo/requests", json=ask).status_code == 200
    assert report_job(service, "n1", "n2", state="finished", finished_at=1e9 + 5)["requests"] == []
    (kept,) = service.client().get("/v1/jobs/demo/requests").json()["items"]
    assert (kept["state"], kept["detail"]) == ("rejected", "the job ended first")
    refused = service.client().post("/v1/jobs/demo/requests", json=ask)
    assert (refused.status_code, refused.json()["type"].rsplit(":", 1)[-1]) == (409, "job-ended")
