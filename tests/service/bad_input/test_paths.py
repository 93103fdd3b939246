"""Paths, lists, queries and methods that do not exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstay.service.fleet.models import DeviceRow
from tests.service.bad_input.input_bench import ABSENT, JOB, InputBench, nothing_stored
from tests.service.problems import assert_problem

PATHS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).resolve().parents[3] / "web" / "openapi.json").read_text()
)["paths"]
UNKNOWN: dict[str, tuple[str, str, Any, str]] = {
    "job": ("GET", "/v1/jobs/absent", None, "unknown-job"),
    "steps of a job": ("GET", "/v1/jobs/absent/steps", None, "unknown-job"),
    "recoveries of a job": ("GET", "/v1/jobs/absent/recoveries", None, "unknown-job"),
    "incident": ("GET", f"/v1/incidents/{ABSENT}", None, "unknown-incident"),
    "incident to close": ("POST", f"/v1/incidents/{ABSENT}:close", {"reason": "r"}, "unknown-incident"),
    "incident to acknowledge": ("POST", f"/v1/incidents/{ABSENT}:acknowledge", {"reason": "r"}, "unknown-incident"),
    "plan": ("GET", f"/v1/recovery-plans/{ABSENT}", None, "unknown-plan"),
    "node": ("GET", "/v1/nodes/absent", None, "unknown-node"),
    "orders of a node": ("GET", "/v1/nodes/absent/tasks?wait=20", None, "unknown-node"),
    "telemetry of a node": ("GET", "/v1/telemetry/query?node=absent&signal=load_1m", None, "unknown-node"),
    "node to validate": ("POST", "/v1/validations", {"node": "absent", "suite": "quick"}, "unknown-node"),
    "node to sweep": ("POST", "/v1/sweeps", {"name": "s", "suite": "quick", "nodes": ["absent"]}, "unknown-node"),
    "validation": ("GET", f"/v1/validations/{ABSENT}", None, "unknown-validation"),
    "results of a validation": (
        "POST", f"/v1/validations/{ABSENT}/results",
        {"suite": "quick", "started_at": 1, "finished_at": 2, "benchmarks": []}, "unknown-validation",
    ),
    "sweep": ("GET", f"/v1/sweeps/{ABSENT}", None, "unknown-sweep"),
    "sweep to change": ("PATCH", f"/v1/sweeps/{ABSENT}", {"version": 1, "enabled": False}, "unknown-sweep"),
    "sweep to run": ("POST", f"/v1/sweeps/{ABSENT}:run", None, "unknown-sweep"),
    "sweep to forget": ("DELETE", f"/v1/sweeps/{ABSENT}", None, "unknown-sweep"),
    "token to revoke": ("DELETE", f"/v1/auth/tokens/{ABSENT}", None, "unknown-token"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_does_not_exist_is_named(bench: InputBench, what: str) -> None:
    method, path, body, slug = UNKNOWN[what]
    name = "absent" if "absent" in f"{path}{body}" else ABSENT
    with nothing_stored(bench):
        assert_problem(bench.admin.request(method, path, json=body, headers={"Idempotency-Key": what}), 404, slug, name)


@pytest.mark.parametrize(
    "path", ["/v1/jobs/a%00b", "/v1/jobs/%ff", "/v1/nodes/..%2F..", "/v1/incidents/a%20b", "/v1/x"]
)
def test_unknown_paths_are_refused(bench: InputBench, path: str) -> None:
    with nothing_stored(bench):
        answer = bench.admin.get(path)
        assert answer.status_code in {404, 422}
        assert answer.headers["content-type"] == "application/problem+json"


# lists and queries


LISTS = [path for path, found in PATHS.items()
         if any(parameter["name"] == "cursor" for parameter in found.get("get", {}).get("parameters", ()))]  # fmt: skip


def a_list(bench: InputBench, path: str) -> str:
    """A path of a list that is there."""
    if "{id}" in path:
        assert bench.admin.put("/v1/jobs/lasting", json=JOB | {"state": "finished", "finished_at": 2.0}).is_success
    if "{device}" in path:
        device = DeviceRow(
            node="n1", id="lasting", index=0, kind="gpu", model="", present=True, first_seen_at=1.0, last_seen_at=1.0
        )
        with bench.service.services.database.session() as session:
            session.merge(device)
    return path.replace("{id}", "lasting").replace("{device}", "lasting").replace("{name}", "n1")


@pytest.mark.parametrize("path", LISTS)
def test_a_bad_page_of_any_list_is_named(bench: InputBench, path: str) -> None:
    url = a_list(bench, path)
    with nothing_stored(bench):
        for cursor in ("x", "%00", "%ff", "W251bGxd", "bnVsbA", "A" * 500):
            assert_problem(bench.admin.get(f"{url}?cursor={cursor}"), 422, "invalid-cursor", "cursor")
        assert_problem(bench.admin.get(f"{url}?cursor={'A' * 501}"), 422, "invalid", "query.cursor")
        for limit in ("0", "-1", "501", "9" * 30, "1.5", "nan", "many", ""):
            assert_problem(bench.admin.get(f"{url}?limit={limit}"), 422, "invalid", "query.limit")


QUERIES = {
    "/v1/telemetry/query?node=n1": "query.signal",
    "/v1/telemetry/query?signal=load_1m": "query.node",
    "/v1/telemetry/query?node=n1&signal=happiness": "happiness",
    "/v1/telemetry/query?node=n1&signal=load_1m&from=nan": "query.from",
    "/v1/telemetry/query?node=n1&signal=load_1m&to=inf": "query.to",
    "/v1/telemetry/query?node=n1&signal=load_1m&to=1e999": "query.to",
    "/v1/telemetry/query?node=n1&signal=load_1m&from=2&to=1": "from must be earlier",
    "/v1/telemetry/query?node=n1&signal=load_1m&points=0": "query.points",
    "/v1/telemetry/query?node=n1&signal=load_1m&points=4001": "query.points",
    "/v1/events?since=-1": "query.since",
    "/v1/events?since=nan": "query.since",
    "/v1/events?kind=love": "query.kind",
    "/v1/nodes?state=happy": "query.state",
    "/v1/nodes?q=%00": "query.q",
    "/v1/incidents?node=a%20b": "query.node",
    "/v1/nodes/n1/tasks?wait=26": "query.wait",
    "/v1/nodes/n1/tasks?wait=nan": "query.wait",
    "/v1/fleet/heatmap?signal=happiness": "happiness",
    "/v1/watch?topics=love": "love",
}


@pytest.mark.parametrize("url", QUERIES)
def test_a_bad_query_is_named(bench: InputBench, url: str) -> None:
    with nothing_stored(bench):
        answer = bench.admin.get(url)
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert QUERIES[url] in answer.json()["detail"]


def wrong_method(path: str) -> str:
    """One that the path has not, nor the thing whose verb it is: ``PATCH x:run`` is about a thing called ``x:run``."""
    taken = {*PATHS[path], *PATHS.get(path.rpartition(":")[0], ())}
    return next(method for method in ("PATCH", "PUT", "DELETE") if method.lower() not in taken)


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_method_is_answered_with_the_right_ones(bench: InputBench, path: str) -> None:
    with nothing_stored(bench):
        wrong = wrong_method(path)
        answer = bench.admin.request(wrong, path.replace("{", "").replace("}", ""), json={})
        assert_problem(answer, 405, "method-not-allowed", wrong)
        assert {method.upper() for method in PATHS[path]} <= set(answer.headers["allow"].split(", "))
