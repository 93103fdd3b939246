"""Every operation keeps to the committed OpenAPI document, for any input.

Schemathesis makes requests that the document allows and requests that it does not, in an order that is always the
same. None is answered by a 5xx; what is refused is refused by a problem with a status that the document names; what
is answered has the declared shape. Half of the allowed requests aim at things that exist, to get beyond the 404.
"""

from __future__ import annotations

import functools
import json
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from schemathesis.generation.meta import CoverageScenario
from schemathesis.specs.openapi import checks

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).resolve().parents[2] / "web" / "openapi.json").read_text())
PATHS: dict[str, dict[str, Any]] = DOCUMENT["paths"]
LONGEST_LINE = 60_000
"""Bytes of a value beyond which the HTTP parser refuses the request before the service sees it (64 KiB a line): as many
characters, each a byte, fit."""
ENDLESS = "/v1/watch"  # a stream that ends after ten minutes
FIRST_EVENT = "0197f9e4-1c2d-7abc-8def-0123456789ab"
PROBLEM_FIELDS = {"type", "title", "status", "detail", "instance", "errors"}


ALWAYS_THE_SAME = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@functools.cache
def operations() -> dict[str, Any]:
    """Label → operation. Credentials are never drawn: authentication would reject them."""
    generation = GenerationConfig(deterministic=True, with_security_parameters=False)
    config = schemathesis.Config(seed=1, projects=ProjectsConfig(default=ProjectConfig(generation=generation)))
    schema = schemathesis.openapi.from_dict(DOCUMENT, config=config).exclude(path=ENDLESS)
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.label: operation for operation in found}


LABELS = [f"{method.upper()} {path}" for path, found in PATHS.items() for method in found if path != ENDLESS]


def draw(label: str, check: Callable[[Any], None], *, examples: int, bounds: bool) -> None:
    """Requests to one operation: ``examples`` drawn ones and, with ``bounds``, one at every bound of every field."""
    operation = operations()[label]
    modes = [HypothesisTestMode.FUZZING, *([HypothesisTestMode.COVERAGE] if bounds else [])]
    settings = hypothesis.settings(max_examples=examples, **ALWAYS_THE_SAME)
    config = HypothesisTestConfig(project=operation.schema.config, modes=modes, settings=settings)
    create_test(operation=operation, test_func=check, config=config)()


@schemathesis.serializer("application/msgpack")
def as_it_is(_context: Any, body: Any) -> Any:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@dataclass
class Target:
    """A service with one of everything in it, and how to aim at that."""

    service: Any
    ids: dict[str, str] = field(default_factory=dict)
    """Start of a path → id of a thing that exists."""
    session: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        self.session.trust_env = False  # it would look for proxies in the whole environment at each request

    def aim(self, case: Any) -> None:
        """Let an allowed request be about something that exists."""
        known = next((id_ for start, id_ in self.ids.items() if case.path.startswith(start)), None)
        if known is not None and case.path_parameters:
            case.path_parameters = dict.fromkeys(case.path_parameters, known)
        if "node" in (case.query or {}):
            case.query["node"] = "n1"
        operation = case.operation.definition.raw["operationId"]
        if operation == "create_validation":
            case.body = {"node": "n1", "suite": "quick"}
        if operation == "run_simulation":
            # What is drawn seldom fits together.
            case.body = {"seeds": 2, "days": 1, "sweep": {"over": "spares", "values": [0, 1]}}
        if operation == "query_telemetry":
            case.query |= {"signal": ["load_1m", "disk_read_bytes_total"]}
        if operation == "get_job_signals":
            case.query |= {"names": "step_time_seconds,loss", "ranks": "0"}

    def token(self, case: Any) -> str:
        """The admin token, except for the one operation that it may not call."""
        if case.operation.definition.raw["operationId"] != "enroll_node":
            return str(self.service.admin_token)
        made = self.service.client().post("/v1/auth/tokens", json={"name": "join", "kind": "join"})
        return str(made.json()["token"])

    def unharmed(self) -> bool:
        app = self.service.app
        return app.state.services.ingest.writer.healthy() and not any(loop.failures for loop in app.state.loops)


def furnish(service: Any, report: dict[str, Any]) -> dict[str, str]:
    """One node, job, validation, sweep, incident and plan."""
    client: httpx.Client = service.client()
    assert service.node_client("n1").put("/v1/nodes/n1", json=report).status_code == 200
    ranks = [{"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": "n1", "device": None, "pid": 1, "state": "running"}]
    job = {
        "name": "demo", "state": "running", "generation": 1, "command": "train.py",
        "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": ranks},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": None, "last_step": 1, "started_at": 1_700_000_000.0, "finished_at": None,
    }  # fmt: skip
    assert client.put("/v1/jobs/demo", json=job).status_code == 200
    order = {"node": "n1", "suite": "quick", "allow_occupied": True}
    validation = client.post("/v1/validations", json=order).json()["id"]
    sweep = client.post("/v1/sweeps", json={"name": "s", "suite": "quick"}).json()["id"]
    died = {"id": FIRST_EVENT, "time": time.time(), "kind": "process_exit", "job": "demo", "rank": 0, "node": "n1"}
    assert client.post("/v1/events", json={"items": [died | {"data": {"signal": 9}}]}).status_code == 200
    deadline = time.monotonic() + 30
    while not (incidents := client.get("/v1/incidents").json()["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return {
        "/v1/jobs": "demo", "/v1/nodes": "n1", "/v1/validations": validation, "/v1/sweeps": sweep,
        "/v1/incidents": incidents[0]["id"], "/v1/recovery-plans": "p1",
    }  # fmt: skip


@pytest.fixture(scope="module")
def target(lasting_service: Any, any_report: dict[str, Any]) -> Any:
    made = Target(lasting_service, furnish(lasting_service, any_report))
    yield made
    made.session.close()


def shorten(case: Any) -> None:
    """Let a simulation be of one day where its days are no bound that is tried: the usual 54 days say no more."""
    if case.operation.definition.raw["operationId"] == "run_simulation" and isinstance(case.body, dict):
        usual = DOCUMENT["components"]["schemas"]["SimulationIn"]["properties"]["days"]["default"]
        if case.body.get("days") == usual:
            case.body = case.body | {"days": 1}


def refusals_are_documented_problems(_context: Any, response: Any, case: Any) -> None:
    """A refusal is a problem document whose status the operation declares by name (any path may be asked wrongly)."""
    status = response.status_code
    if status < 400:
        return
    assert response.headers["content-type"] == ["application/problem+json"]
    problem = response.json()
    assert set(problem) == PROBLEM_FIELDS
    assert problem["status"] == status
    assert problem["type"].startswith("urn:mainstay:problem:")
    assert problem["title"]
    assert problem["detail"]
    assert status == 405 or str(status) in case.operation.definition.raw["responses"], f"{status} is not declared"


CHECKS = [
    not_a_server_error,
    refusals_are_documented_problems,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.missing_required_header,
    checks.unsupported_method,
]


@dataclass
class Repeats:
    """Finds what says nothing new: a field's third wrong type, and a method by which its path was asked before."""

    wrong_types: Counter[str] = field(default_factory=Counter)
    methods: set[tuple[str, str]] = field(default_factory=set)

    def __contains__(self, case: Any) -> bool:
        """A field is sent the first of about five wrong types, and one that its name chooses: each has its turn."""
        tried = case.meta.phase.data
        scenario = getattr(tried, "scenario", None)
        if scenario == CoverageScenario.UNSPECIFIED_HTTP_METHOD:
            asked = (case.operation.path, case.method)
            known = asked in self.methods
            self.methods.add(asked)
            return known
        if scenario != CoverageScenario.INCORRECT_TYPE:
            return False
        where = f"{case.operation.label} {tried.parameter} {tried.location}"
        self.wrong_types[where] += 1
        return self.wrong_types[where] not in {1, 2 + zlib.crc32(where.encode()) % 4}


@pytest.fixture(scope="module")
def repeats() -> Repeats:
    return Repeats()


@pytest.fixture
def check(target: Target, repeats: Repeats) -> Callable[[Any], None]:
    """Send a case, compare the answer with the document, and see whether the service stands."""

    def send(case: Any) -> None:
        if case in repeats:
            return
        shorten(case)
        allowed = case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE
        if allowed and zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode("utf-8", "replace")) % 2:
            target.aim(case)
        if "wait" in (case.query or {}):
            case.query["wait"] = "0"
        for name, value in (case.query or {}).items():
            if isinstance(value, str) and len(quote(value, errors="replace")) > LONGEST_LINE:
                case.query[name] = "9" * len(value)
        headers = {"Authorization": f"Bearer {target.token(case)}"}
        case.call_and_validate(target.service.url, session=target.session, headers=headers, checks=CHECKS, timeout=120)
        assert target.unharmed()

    return send


@pytest.mark.timeout(300)
@pytest.mark.parametrize("label", LABELS)
def test_every_operation_keeps_to_the_document(
    check: Callable[[Any], None], label: str, request: pytest.FixtureRequest
) -> None:
    """In the fast lane, two drawn requests to each operation."""
    fast = "not slow" in request.config.option.markexpr
    draw(label, check, examples=2 if fast else 6, bounds=not fast)


def test_every_operation_wants_a_token_but_the_ones_that_say_so(lasting_service: Any) -> None:
    stranger = lasting_service.client("")
    public = set()
    for path, found in PATHS.items():
        for method, operation in found.items():
            answer = stranger.request(method, path.replace("{", "").replace("}", ""))
            if operation["security"]:
                assert (answer.status_code, answer.json()["type"]) == (401, "urn:mainstay:problem:unauthorized"), path
            else:
                public.add(operation["operationId"])
                assert answer.status_code not in {401, 403}, path
    assert public == {
        "acknowledge_by_link", "begin_openid_sign_in", "finish_openid_sign_in", "get_shared_incident",
        "get_sign_in_options", "sign_in",
    }  # fmt: skip
