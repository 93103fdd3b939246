"""Checkpoints of a job from report to answer: the newest counts, newer versions are set aside, nonsense is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

STEP: dict[str, Any] = {
    "step": 40, "state": "complete", "problem": "", "time": 1_700_000_000.0, "ranks": 4, "disk_bytes": 900,
    "full_bytes": 1000, "read_bytes": 300, "levels": ["local", "upload"], "pinned": True, "bases": [30],
    "unreadable": [50], "previous": 30, "restore_seconds": 1.5, "seconds_lost": 12.0, "nodes": ["n1"],
    "node_count": 1, "survives": "any loss of nodes", "quantized": {"bits": 8, "absolute": 0.25, "relative": 0.03},
    "serves_recovery": False, "parity_bytes": 300,
}  # fmt: skip
REPORT: dict[str, Any] = {
    "run": "0199", "directory": "/checkpoints", "upload": "s3://bucket/llm", "time": 1_700_000_100.0,
    "steps": [STEP], "omitted": 0, "upload_problems": [{"node": "n1", "problem": "refused", "since": 1_700_000_000.0}],
}  # fmt: skip


def read(client: Any) -> Any:
    return client.get("/v1/jobs/demo/checkpoints").json()


def test_the_newest_report_counts_until_the_next_start(service: Any, report_job: Callable[..., Any]) -> None:
    client, started = service.client(), time.time() - 100
    assert client.get("/v1/jobs/demo/checkpoints").status_code == 404
    client.put("/v1/jobs/demo", json=report_job(started_at=started))
    assert read(client) == {"reported_at": None, "checkpoints": None}
    assert client.put("/v1/jobs/demo", json=report_job(started_at=started, checkpoints=REPORT)).status_code == 200
    told = read(client)
    assert told["checkpoints"] == REPORT
    assert abs(told["reported_at"] - time.time()) < 60.0
    job = client.put("/v1/jobs/demo", json=report_job(started_at=started, last_step=11)).json()
    assert read(client) == told, "a report without them leaves them"
    assert "checkpoints" not in job["protection"], "they are not part of each answer about a job"
    client.put("/v1/jobs/demo", json=report_job(started_at=started, checkpoints=REPORT | {"steps": []}))
    assert read(client)["checkpoints"]["steps"] == []
    client.put("/v1/jobs/demo", json=report_job(started_at=started + 50))
    assert read(client)["checkpoints"] is None, "another start has another run"


def test_what_an_older_launcher_does_not_say_is_unknown(service: Any, report_job: Callable[..., Any]) -> None:
    client, new = service.client(), {"quantized": None, "serves_recovery": None, "parity_bytes": 0}
    older = {name: value for name, value in STEP.items() if name not in new}
    report = {name: value for name, value in REPORT.items() if name != "upload_problems"}
    client.put("/v1/jobs/demo", json=report_job(checkpoints=report | {"steps": [older]}))
    assert read(client)["checkpoints"] == report | {"steps": [older | new], "upload_problems": []}
    for bound in ({"bits": 0, "absolute": 0.0, "relative": 0.0}, {"bits": 8, "absolute": -1.0, "relative": 0.0}, {}):
        said = report_job(checkpoints=REPORT | {"steps": [STEP | {"quantized": bound}]})
        assert client.put("/v1/jobs/demo", json=said).status_code == 422


def test_an_answer_that_has_not_changed_is_not_sent_again(service: Any, report_job: Callable[..., Any]) -> None:
    client = service.client()
    client.put("/v1/jobs/demo", json=report_job(checkpoints=REPORT))
    first = client.get("/v1/jobs/demo/checkpoints")
    again = client.get("/v1/jobs/demo/checkpoints", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code) == (200, 304)


def test_what_a_newer_launcher_reports_is_set_aside(service: Any, report_job: Callable[..., Any]) -> None:
    client = service.client()
    newer = STEP | {"state": "hydrated", "levels": ["local", "tape"], "color": "blue"}
    said = report_job(checkpoints=REPORT | {"steps": [newer], "cloud": 1})
    assert client.put("/v1/jobs/demo", json=said).status_code == 200
    assert read(client)["checkpoints"] == REPORT | {"steps": [STEP | {"state": "unknown", "levels": ["local"]}]}


@pytest.mark.parametrize(
    "wrong", [{"step": -1}, {"state": "Hydrated!"}, {"levels": "local"}, {"pinned": 1}, {"disk_bytes": "9"}]
)
def test_nonsense_is_refused(service: Any, report_job: Callable[..., Any], wrong: dict[str, Any]) -> None:
    said = report_job(checkpoints=REPORT | {"steps": [STEP | wrong]})
    answer = service.client().put("/v1/jobs/demo", json=said)
    assert answer.status_code == 422
    assert next(iter(wrong)) in answer.text
