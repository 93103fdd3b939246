"""Validations that are cancelled, retried, held back or run in part: no GPU stays busy, no node counts as healthy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mainstay.service.app import build_services, close_services
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report as say
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation import limits, node_tasks, sweeps
from mainstay.service.validation import service as validations
from mainstay.service.validation.models import NodeVerdictRow
from mainstay.service.validation.schemas import ResultsIn, SweepCreate
from mainstay.service.validation.tasks import Tasks
from tests.fakes.clock import ManualClock

Json = dict[str, Any]
PROGRESS = {
    "index": 1,
    "total": 3,
    "benchmark": "copy",
    "device": "cpu",
    "state": "running",
    "done": ["gemm on cpu: ok"],
}


@pytest.fixture
def node(service: Any, enroll: Callable[..., Any]) -> Any:
    return enroll(service, "n1")


def order(admin: httpx.Client, **changes: Any) -> Json:
    answer = admin.post("/v1/validations", json={"node": "n1", "suite": "quick", **changes})
    assert answer.status_code == 202, answer.text
    made: Json = answer.json()
    return made


def read(admin: httpx.Client, made: Json) -> Json:
    found: Json = admin.get(f"/v1/validations/{made['id']}").json()
    return found


def cancel(admin: httpx.Client, made: Json) -> Json:
    answer = admin.post(f"/v1/validations/{made['id']}:cancel", json={"reason": "job 7"})
    assert answer.status_code == 202, answer.text
    found: Json = answer.json()
    return found


# over REST


def test_one_that_no_node_has_yet_ends_at_once(admin: httpx.Client, node: Any) -> None:
    made = order(admin)
    ended = cancel(admin, made)
    assert (ended["state"], ended["verdict"]) == ("done", "unknown")
    assert ended["reason"] == "cancelled before it began: job 7"
    assert node.orders() == []
    assert cancel(admin, made) == ended, "twice is once"


def test_one_that_runs_is_canceled_and_keeps_its_measurements(
    admin: httpx.Client, node: Any, criteria: Any, results: Any
) -> None:
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    made = order(admin)
    (taken,) = node.orders()
    cancel(admin, made)
    (ending,) = node.orders()
    assert (ending["kind"], ending["validation_id"], ending["reason"]) == ("cancel", made["id"], "job 7")
    assert node.orders() == [], "it was just told"
    body = results("quick", error="cancelled: job 7")
    for benchmark in body["benchmarks"][1:]:
        benchmark |= {"state": "preempted", "error": "job 7", "metrics": []}
    assert node.client.post(f"/v1/validations/{taken['validation_id']}/results", json=body).status_code == 200
    done = read(admin, made)
    assert (done["state"], done["verdict"]) == ("done", "unknown")
    verdicts = [result["verdict"] for result in done["results"]]
    assert verdicts[0] == "pass", "what was measured is judged"
    assert set(verdicts[1:]) == {"unknown"}, "what could not run never passes"


def test_whoever_wants_a_node_cancels_all_that_is_on_it(admin: httpx.Client, node: Any) -> None:
    first, second = order(admin), order(admin, suite="deep")
    node.orders()
    third = order(admin)
    answer = admin.post("/v1/validations:preempt", json={"nodes": ["n1", "n9"], "reason": "job 7"})
    assert answer.status_code == 202, answer.text
    assert [item["id"] for item in answer.json()["items"]] == [first["id"], second["id"], third["id"]]
    assert [one["kind"] for one in node.orders()] == ["cancel", "cancel"]
    assert read(admin, third)["state"] == "done"


def test_a_node_says_how_far_it_is(admin: httpx.Client, node: Any) -> None:
    made = order(admin)
    node.orders()
    answer = node.client.post(f"/v1/validations/{made['id']}/progress", json=PROGRESS)
    assert answer.status_code == 204, answer.text
    running = read(admin, made)
    assert (running["state"], running["progress"]) == ("running", PROGRESS)
    assert running["reason"] == "1 of 3 done, copy on cpu"
    assert running["started_at"] is not None
    assert node.obey({"suite": "quick", "validation_id": made["id"]}).status_code == 200
    node.client.post(f"/v1/validations/{made['id']}/progress", json=PROGRESS | {"index": 0})
    assert read(admin, made)["state"] == "done", "what has ended is not begun again"


def test_another_node_may_not_say_so(admin: httpx.Client, node: Any, service: Any) -> None:
    made = order(admin)
    assert node.client.post("/v1/validations/nothing/progress", json=PROGRESS).status_code == 404
    stranger = service.node_client("n2")
    assert stranger.post(f"/v1/validations/{made['id']}/progress", json=PROGRESS).status_code == 403


def test_a_part_of_a_suite_is_judged_by_its_part_and_proves_least(
    admin: httpx.Client, node: Any, criteria: Any, results: Any
) -> None:
    admin.put("/v1/criteria", json={"items": criteria("deep")})
    made = order(admin, suite="deep", benchmarks=["gemm", "copy"])
    assert made["benchmarks"] == ["copy", "gemm"]
    (taken,) = node.orders()
    assert taken["benchmarks"] == ["copy", "gemm"]
    body = results("deep")
    body["benchmarks"] = [b for b in body["benchmarks"] if b["benchmark"] in {"copy", "gemm"}]
    assert node.client.post(f"/v1/validations/{made['id']}/results", json=body).status_code == 200
    assert read(admin, made)["verdict"] == "pass"
    current_verdict = admin.get("/v1/nodes/n1").json()
    assert current_verdict["last_verdict"] == "pass"
    weaker = order(admin)
    assert node.obey(node.orders()[0], error="the daemon was stopped").status_code == 200
    assert read(admin, weaker)["verdict"] == "unknown"
    assert admin.get("/v1/nodes/n1").json()["last_verdict"] == "unknown"


@pytest.mark.parametrize("benchmarks", [["gemm", "gpu-burn"], [], [""]])
def test_a_part_that_the_suite_lacks_is_refused(admin: httpx.Client, node: Any, benchmarks: list[str]) -> None:
    del node
    answer = admin.post("/v1/validations", json={"node": "n1", "suite": "quick", "benchmarks": benchmarks})
    assert answer.status_code == 422, answer.text
    if "gpu-burn" in benchmarks:
        assert "no benchmark gpu-burn" in answer.json()["detail"]


# retries and limits, on a clock that we hold


@pytest.fixture
def services(make_settings: Callable[..., Settings], database_url: str) -> Any:
    made = build_services(make_settings(database_url=database_url), ManualClock(1_800_000_000.0))
    yield made
    close_services(made)


def add_node(services: Services, report: Json, name: str, **changes: Any) -> None:
    with services.database.session() as session:
        say(session, name, NodeReportCreate.model_validate(report | changes), now=services.clock.now())


def fetch_tasks(services: Services, *names: str) -> dict[str, list[str]]:
    """Node -> kinds of the orders that it gets now."""
    with services.database.session() as session:
        now, jobs = services.clock.now(), services.occupancy.by_node(session)
        return {
            name: [one.kind for one in node_tasks.claim_tasks(session, name, jobs, now=now, settings=services.settings)]
            for name in names
        }


def pass_time(services: Services, seconds: float) -> None:
    services.clock.advance(seconds)  # type: ignore[attr-defined]


def sweep(services: Services, **changes: Any) -> tuple[str, Tasks]:
    with services.database.session() as session:
        body = SweepCreate.model_validate({"name": "s", "suite": "quick", **changes})
        made = sweeps.create(session, body, now=services.clock.now())
        run = sweeps.start(session, made, now=services.clock.now())
        run_id = run.id
    tasks = Tasks(services, lambda run_id: tasks.fan_out(run_id))  # noqa: PLW0108 - it does not exist yet
    tasks.tick()
    return run_id, tasks


def end(services: Services, node: str, body: Json) -> str:
    """The node's pending validation gets this result; its state then."""
    from sqlalchemy import select

    from mainstay.service.validation.models import ValidationRow

    with services.database.session() as session:
        row = session.scalars(
            select(ValidationRow).where(ValidationRow.node == node, ValidationRow.state.in_(validations.PENDING))
        ).one()
        results = ResultsIn.model_validate(body)
        validations.store_results(session, row, results, now=services.clock.now(), settings=services.settings)
        return row.state


def test_what_could_not_run_is_tried_again(services: Services, report: Json, results: Any) -> None:
    add_node(services, report, "n1")
    sweep(services, retries=1)
    nothing = results("quick", error="torch is missing") | {"benchmarks": []}
    assert fetch_tasks(services, "n1") == {"n1": ["validate"]}
    assert end(services, "n1", nothing) == "queued"
    assert fetch_tasks(services, "n1") == {"n1": []}, "not at once"
    pass_time(services, validations.RETRY_SECONDS)
    assert fetch_tasks(services, "n1") == {"n1": ["validate"]}
    assert end(services, "n1", nothing) == "done"
    with services.database.reading() as session:
        assert session.get_one(NodeVerdictRow, "n1").verdict == "unknown"


def test_one_that_the_node_never_fetched_is_tried_again_then_unknown(services: Services, report: Json) -> None:
    add_node(services, report, "n1")
    run_id, tasks = sweep(services, retries=1, timeout_seconds=60)
    pass_time(services, 61)
    tasks.tick()
    with services.database.reading() as session:
        assert session.get(NodeVerdictRow, "n1") is None
    pass_time(services, validations.RETRY_SECONDS + 61)
    tasks.tick()
    with services.database.reading() as session:
        assert session.get_one(NodeVerdictRow, "n1").verdict == "unknown"
        run = session.get(sweeps.SweepRunRow, run_id)
        assert run is not None
        assert run.finished_at is not None


def test_what_was_canceled_is_not_tried_again(services: Services, report: Json, results: Any) -> None:
    add_node(services, report, "n1")
    sweep(services, retries=5)
    fetch_tasks(services, "n1")
    with services.database.session() as session:
        node_tasks.preempt(session, ["n1"], "job 7", now=services.clock.now(), settings=services.settings)
    assert fetch_tasks(services, "n1") == {"n1": ["cancel"]}
    pass_time(services, node_tasks.RETELL_SECONDS)
    assert fetch_tasks(services, "n1") == {"n1": ["cancel"]}, "the task repeats until a result comes"
    assert end(services, "n1", results("quick", error="cancelled: job 7") | {"benchmarks": []}) == "done"
    assert fetch_tasks(services, "n1") == {"n1": []}


def test_nodes_under_one_switch_take_turns(services: Services, report: Json, results: Any) -> None:
    for name, switches in {"a1": ["leaf1", "spine"], "a2": ["leaf1", "spine"], "b1": ["leaf2", "spine"]}.items():
        add_node(services, report, name, switches=switches)
    _, tasks = sweep(services, max_per_switch=1)
    assert fetch_tasks(services, "a1", "a2", "b1") == {"a1": ["validate"], "a2": [], "b1": ["validate"]}
    pass_time(services, 3 * 24 * 3600)  # who is held back does not expire
    with services.database.session() as session:
        (run,) = limits.holding_runs(session)
        assert limits.release(session, run, {}, now=services.clock.now(), settings=services.settings) == 0
    end(services, "b1", results("quick"))
    tasks.tick()
    assert fetch_tasks(services, "a2") == {"a2": ["validate"]}, "a1 expired: its place is free"


def test_no_more_at_once_than_the_sweep_says(services: Services, report: Json, results: Any) -> None:
    names = [f"n{i}" for i in range(5)]
    for name in names:
        add_node(services, report, name)
    _, tasks = sweep(services, max_concurrent=2)
    busy: set[str] = set()
    done: set[str] = set()
    while len(done) < len(names):
        busy |= {name for name, kinds in fetch_tasks(services, *names).items() if kinds}
        assert len(busy - done) == min(2, len(names) - len(done))
        one = min(busy - done)
        end(services, one, results("quick"))
        done.add(one)
        tasks.tick()


def test_only_nodes_of_the_cohort(services: Services, report: Json) -> None:
    add_node(services, report, "n1", cohort="h100")
    add_node(services, report, "n2", cohort="a100")
    sweep(services, cohort="a100")
    assert fetch_tasks(services, "n1", "n2") == {"n1": [], "n2": ["validate"]}


def test_the_nearest_switch_is_shared_else_the_rack() -> None:
    assert limits.above("n1", ["leaf1", "spine1"], "r1") == limits.above("n2", ["leaf1", "spine2"], "r2")
    assert limits.above("n1", [], "r1") == limits.above("n2", None, "r1")
    assert limits.above("n1", [], "") != limits.above("n2", [], "")
