"""Whatever the OpenAPI document allows, and what it does not, is answered as it says: never by a 5xx.

Half of the calls aim at things that exist, so that they reach beyond the 404. At the end the service still works.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

Json = dict[str, Any]
SKIPPED = {
    "/v1/watch",  # never ends by itself
    "/v1/telemetry/frames",  # binary: has property tests of its own
}
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


def some_things(service: Any, report: Json) -> dict[str, list[str]]:
    """Path parameter → ids of things that exist, by the start of the path."""
    client: httpx.Client = service.client()
    node = service.node_client("n1")
    assert node.put("/v1/nodes/n1", json=report).status_code == 200
    ranks = [{"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": "n1", "device": None, "pid": 1, "state": "running"}]
    job = {
        "name": "demo", "state": "running", "generation": 1, "command": "train.py",
        "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": ranks},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": None, "last_step": 1, "started_at": 1_700_000_000.0, "finished_at": None,
    }  # fmt: skip
    assert client.put("/v1/jobs/demo", json=job).status_code == 200
    validation = client.post("/v1/validations", json={"node": "n1", "suite": "quick"}).json()["id"]
    sweep = client.post("/v1/sweeps", json={"name": "s", "suite": "quick"}).json()["id"]
    exit_event = {"id": "0197f9e4-1c2d-7abc-8def-0123456789ab", "time": 1_700_000_100.0, "kind": "process_exit"}
    exit_event |= {"job": "demo", "rank": 0, "node": "n1", "data": {"signal": 9}}
    assert client.post("/v1/events", json={"items": [exit_event]}).status_code == 200
    for _ in range(2000):
        if items := client.get("/v1/incidents").json()["items"]:
            break
    return {
        "/v1/jobs": ["demo"], "/v1/nodes": ["n1"], "/v1/validations": [validation], "/v1/sweeps": [sweep],
        "/v1/incidents": [items[0]["id"]], "/v1/plans": ["p"],
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_call_breaks_the_service(service: Any, report: Json) -> None:
    things = some_things(service, report)
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    headers = {"Authorization": f"Bearer {service.admin_token}"}
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 40
    for operation in operations:
        if operation.path not in SKIPPED:
            _fuzz(
                operation, headers, next((ids for start, ids in things.items() if operation.path.startswith(start)), [])
            )
    assert httpx.get(f"{service.url}/readyz").status_code == 200
    assert service.client().get("/v1/overview").status_code == 200
    assert not any(loop.failures for loop in service.app.state.loops)


def _fuzz(operation: Any, headers: dict[str, str], known: list[str]) -> None:
    @settings(max_examples=8, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(), aimed=st.booleans())
    def call(case: Any, aimed: bool) -> None:
        if aimed and known and case.path_parameters:
            case.path_parameters = dict.fromkeys(case.path_parameters, known[0])
        if "wait" in (case.query or {}):
            case.query["wait"] = 0
        response = case.call(headers=headers, timeout=30)
        case.validate_response(response, checks=CHECKS)

    call()
