"""Validation never disturbs work: what loads a node waits until no job runs on it, and is skipped if none leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from mainstay.probes.benchmarks.suites import BENCHMARKS
from mainstay.service.admission.node_facts import FactsQuery
from mainstay.service.admission.rules import AdmissionRequest
from mainstay.service.app import build_services, close_services
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report as say
from mainstay.service.jobs.schemas import JobReport
from mainstay.service.jobs.service import report as report_job
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation import node_tasks, sweeps
from mainstay.service.validation import service as validations
from mainstay.service.validation.models import NodeVerdictRow, ValidationRow
from mainstay.service.validation.schemas import ResultsIn, SweepCreate
from mainstay.service.validation.suites import is_exclusive, suites
from mainstay.service.validation.tasks import Tasks
from tests.fakes.clock import ManualClock

Json = dict[str, Any]
LIGHT = {"suite": "quick", "benchmarks": ["tcp"]}
WHY = "job llm runs on this node"


def job(*nodes: str, **changes: Any) -> Json:
    ranks = [
        {"rank": i, "dp": i, "pp": 0, "tp": 0, "node": node, "device": None, "pid": None, "state": "running"}
        for i, node in enumerate(nodes)
    ]
    return {
        "name": "llm", "state": "running", "generation": 1, "command": "t",
        "topology": {"dp": len(nodes), "pp": 1, "tp": 1, "world_size": len(nodes), "ranks": ranks},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": 9, "last_step": 1, "started_at": 1_700_000_000.0, "finished_at": None, **changes,
    }  # fmt: skip


OVER = {"state": "finished", "finished_at": 1_700_000_001.0}


def test_only_what_leaves_a_job_its_node_is_not_exclusive() -> None:
    assert [name for name, made in BENCHMARKS.items() if not made.exclusive] == ["tcp"]
    assert all(map(is_exclusive, suites())), "every suite multiplies matrices on all GPUs"
    assert not is_exclusive("quick", ["tcp"])
    assert is_exclusive("quick", ["tcp", "launch"])
    assert is_exclusive("of a newer release", ["tcp"]), "unknown is never harmless"


# over REST, with nodes that fetch


@pytest.fixture
def nodes(service: Any, admin: httpx.Client, enroll: Callable[..., Any]) -> tuple[Any, Any]:
    """A node with a running job, and one without."""
    made = enroll(service, "n1"), enroll(service, "n2")
    assert admin.put("/v1/jobs/llm", json=job("n1")).status_code == 200
    return made


def run_sweep(service: Any, admin: httpx.Client, **changes: Any) -> str:
    body = {"name": "nightly", "suite": "deep", **changes}
    sweep = admin.post("/v1/sweeps", json=body).json()["id"]
    run = admin.post(f"/v1/sweeps/{sweep}:run").json()["runs"][0]["id"]
    Tasks(service.services, lambda _: None).fan_out(run)
    return str(run)


def listed(admin: httpx.Client, run: str) -> dict[str, Json]:
    return {item["node"]: item for item in admin.get("/v1/validations", params={"run": run}).json()["items"]}


def fetched(node: Any) -> list[str]:
    return [order["suite"] for order in node.orders()]


def test_a_deep_sweep_reaches_a_node_when_its_job_has_ended(
    service: Any, admin: httpx.Client, nodes: tuple[Any, Any]
) -> None:
    occupied, free = nodes
    run = run_sweep(service, admin)
    assert (fetched(occupied), fetched(free)) == ([], ["deep"])
    waiting = listed(admin, run)["n1"]
    assert (waiting["state"], waiting["held"], waiting["reason"]) == ("queued", True, WHY)
    light = run_sweep(service, admin, name="light", **LIGHT)
    assert fetched(occupied) == ["quick"], "what loads nothing does not wait"
    assert not listed(admin, light)["n1"]["held"]
    tasks = Tasks(service.services, lambda _: None)
    tasks.tick()
    assert fetched(occupied) == []
    assert admin.put("/v1/jobs/llm", json=job("n1", **OVER)).status_code == 200
    tasks.tick()
    assert fetched(occupied) == ["deep"]
    assert listed(admin, run)["n1"]["reason"] == "the node has the order"


def test_a_person_may_disturb_a_job_and_has_to_say_so(admin: httpx.Client, nodes: tuple[Any, Any]) -> None:
    occupied, free = nodes
    refused = admin.post("/v1/validations", json={"node": "n1", "suite": "quick"})
    assert refused.status_code == 409, refused.text
    assert refused.json()["type"] == "urn:mainstay:problem:node-occupied"
    assert refused.json()["detail"].startswith(f"node n1: {WHY}.")
    assert admin.get("/v1/validations").json()["items"] == [], "nothing waits that was refused"
    allowed = admin.post("/v1/validations", json={"node": "n1", "suite": "deep", "allow_occupied": True})
    assert (allowed.status_code, allowed.json()["allow_occupied"]) == (202, True)
    assert fetched(occupied) == ["deep"]
    assert admin.post("/v1/validations", json={"node": "n1", **LIGHT}).status_code == 202
    assert fetched(occupied) == ["quick"]
    assert admin.post("/v1/validations", json={"node": "n2", "suite": "deep"}).status_code == 202
    assert fetched(free) == ["deep"]


def test_a_plan_waits_on_occupied_nodes_and_a_preflight_of_the_job_itself_does_not(
    admin: httpx.Client, nodes: tuple[Any, Any]
) -> None:
    occupied, free = nodes
    body = {"nodes": ["n1", "n2"], "job_hours": 1, "suite": "quick", "order": True}
    plan = admin.post("/v1/validation-plans", json=body)
    assert plan.status_code == 201, plan.text
    assert (fetched(occupied), fetched(free)) == ([], ["quick"])
    waiting = admin.get(f"/v1/validations/{plan.json()['validations']['n1']}").json()
    assert (waiting["held"], waiting["reason"]) == (True, WHY)
    asked = {"job": "llm", "nodes": ["n1"], "preflight": True}
    assert len(admin.post("/v1/admission", json=asked).json()["preflight"]) == 1
    assert fetched(occupied) == ["quick"], "the job that asks has only an earlier run there"


# on a clock that we hold


@pytest.fixture
def services(make_settings: Callable[..., Settings], database_url: str, report: Json) -> Iterator[Services]:
    made = build_services(make_settings(database_url=database_url), ManualClock(1_800_000_000.0))
    with made.database.session() as session:
        for name in ("n1", "n2", "n3"):
            say(session, name, NodeReportCreate.model_validate(report), now=made.clock.now())
    yield made
    close_services(made)


def put_job(services: Services, body: Json, name: str = "llm") -> None:
    with services.database.session() as session:
        report_job(session, name, JobReport.model_validate(body), now=services.clock.now())


def ticker(services: Services) -> Tasks:
    tasks = Tasks(services, lambda run_id: tasks.fan_out(run_id))  # noqa: PLW0108 - it does not exist yet
    return tasks


def sweep(services: Services, **changes: Any) -> str:
    body = SweepCreate.model_validate({"name": "s", "suite": "deep", "schedule": "every 3600s", **changes})
    with services.database.session() as session:
        made = sweeps.create(session, body, now=services.clock.now())
        sweeps.start(session, made, now=services.clock.now())
        sweep_id = made.id
    ticker(services).tick()
    return sweep_id


def order(services: Services, node: str = "n1", **options: Any) -> str:
    chosen = validations.ValidationOptions(**options)
    with services.database.session() as session:
        now = services.clock.now()
        return validations.order(session, services.settings, node=node, suite="deep", now=now, options=chosen).id


def runs(services: Services, sweep_id: str) -> list[Any]:
    with services.database.reading() as session:
        return sweeps.serialize_sweeps(session, [sweeps.require(session, sweep_id)], keep_runs=5)[0].runs


def claim(services: Services, *names: str) -> list[str]:
    """Nodes of these that get a validation now."""
    with services.database.session() as session:
        now, jobs = services.clock.now(), services.occupancy.by_node(session)
        return [
            name for name in names if node_tasks.claim_tasks(session, name, jobs, now=now, settings=services.settings)
        ]


def with_orders(services: Services, *names: str) -> set[str]:
    with services.database.reading() as session:
        return node_tasks.nodes_with_orders(session, names, services.clock.now())


def row(services: Services, validation: str) -> ValidationRow:
    with services.database.reading() as session:
        return validations.require(session, validation)


def pass_time(services: Services, seconds: float) -> None:
    services.clock.advance(seconds)  # type: ignore[attr-defined]


def test_a_job_that_begins_between_the_order_and_the_fetch_is_not_disturbed(services: Services) -> None:
    ordered = order(services)
    assert with_orders(services, "n1") == {"n1"}
    put_job(services, job("n1"))
    assert claim(services, "n1") == []
    assert with_orders(services, "n1") == set(), "its poll waits, without a transaction each time"
    assert row(services, ordered).reason == WHY
    put_job(services, job("n1", **OVER))
    ticker(services).tick()
    assert claim(services, "n1") == ["n1"]


def test_a_lost_order_does_not_come_again_beside_a_job(services: Services) -> None:
    ordered = order(services)
    assert claim(services, "n1") == ["n1"]
    put_job(services, job("n1"))
    pass_time(services, node_tasks.REDELIVER_SECONDS)
    assert claim(services, "n1") == []
    assert with_orders(services, "n1") == set()
    assert row(services, ordered).state == "taken", "the node may run it still"
    put_job(services, job("n1", **OVER))
    pass_time(services, node_tasks.REDELIVER_SECONDS)
    assert claim(services, "n1") == ["n1"]


def test_another_attempt_waits_too(services: Services, results: Any) -> None:
    ordered = order(services, retries=1)
    assert claim(services, "n1") == ["n1"]
    put_job(services, job("n1"))
    nothing = ResultsIn.model_validate(results("deep", error="torch is missing") | {"benchmarks": []})
    with services.database.session() as session:
        found = validations.require(session, ordered)
        validations.store_results(session, found, nothing, now=services.clock.now(), settings=services.settings)
    pass_time(services, validations.RETRY_SECONDS)
    assert claim(services, "n1") == []
    assert row(services, ordered).held


def test_occupied_nodes_do_not_take_the_place_of_others(services: Services) -> None:
    put_job(services, job("n1"))
    sweep(services, max_concurrent=1)
    assert claim(services, "n1", "n2", "n3") == ["n2"]


def test_a_sweep_that_is_due_again_skips_who_still_waits_and_runs_again(services: Services) -> None:
    with services.database.session() as session:
        passed = {"verdict": "pass", "power": 3, "suite": "deep", "validation_id": "v", "at": 1.0}
        session.add(NodeVerdictRow(node="n1", **passed))
    put_job(services, job("n1", "n2"))
    made = sweep(services, nodes=["n1", "n2"])
    pass_time(services, 3599)
    ticker(services).tick()
    (run,) = runs(services, made)
    assert (run.counts.pending, run.finished_at) == (2, None)
    pass_time(services, 1)
    ticker(services).tick()
    again, run = runs(services, made)
    assert (run.counts.skipped, run.counts.passed, run.counts.unknown, run.counts.pending) == (2, 0, 0, 0)
    assert run.finished_at == services.clock.now()
    assert again.counts.pending == 2
    with services.database.reading() as session:
        kept = session.get_one(NodeVerdictRow, "n1")
        assert (kept.verdict, kept.at) == ("pass", 1.0), "as old as the check that passed"
        assert session.get(NodeVerdictRow, "n2") is None, "it was never validated"
        skipped = session.query(ValidationRow).filter_by(run_id=run.id, node="n2").one()
        assert (skipped.state, skipped.verdict, skipped.reason) == ("expired", "unknown", f"skipped: {WHY}")


def test_no_order_waits_longer_than_the_setting(services: Services) -> None:
    by_hand = order(services)
    put_job(services, job("n1"))
    unscheduled = sweep(services, schedule=None, nodes=["n1"])
    assert claim(services, "n1") == []
    tasks = ticker(services)
    pass_time(services, 24 * 3600 - 1)
    tasks.tick()
    assert row(services, by_hand).state == "queued"
    assert runs(services, unscheduled)[0].finished_at is None
    pass_time(services, 1)
    tasks.tick()
    assert row(services, by_hand).reason == f"skipped: {WHY}"
    assert runs(services, unscheduled)[0].counts.skipped == 1


def test_a_deleted_sweep_holds_nothing(services: Services) -> None:
    put_job(services, job("n1"))
    made = sweep(services, nodes=["n1"])
    with services.database.session() as session:
        session.delete(sweeps.require(session, made))
    put_job(services, job("n1", **OVER))
    ticker(services).tick()
    assert claim(services, "n1") == ["n1"]


def test_what_waits_for_a_job_is_not_in_the_way_of_its_restart(services: Services) -> None:
    put_job(services, job("n1"))
    order(services)
    order(services, "n2")
    claim(services, "n1")
    request = AdmissionRequest(
        now=services.clock.now(), heartbeat_timeout_seconds=1.0, suite="quick", max_age_seconds=1.0
    )
    with services.database.session() as session:
        known = FactsQuery(session, services, ["n1", "n2"], request, "llm").notable()
        assert {name: facts.pending for name, facts in known.items() if facts} == {"n1": False, "n2": True}
        node_tasks.preempt(session, ["n1"], "job llm", now=services.clock.now(), settings=services.settings)
        assert session.get(NodeVerdictRow, "n1") is None, "what never began says nothing of the node"
