"""Sweeps: by schedule, by hand, once however many beats there are, and to a verdict through a real Celery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstay.service.app import build_services, close_services
from mainstay.service.celery_app import embedded, make_app
from mainstay.service.common.db import WriteSession
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation import node_tasks, sweeps
from mainstay.service.validation import service as validations
from mainstay.service.validation.models import NodeVerdictRow
from mainstay.service.validation.schemas import SweepCreate
from mainstay.service.validation.tasks import Tasks
from tests.fakes.clock import ManualClock

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]


def problem(answer: httpx.Response, status: int, slug: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == f"urn:mainstay:problem:{slug}"


def create(client: httpx.Client, **changes: Any) -> Json:
    answer = client.post("/v1/sweeps", json={"name": "nightly", "suite": "quick", **changes})
    assert answer.status_code == 201, answer.text
    made: Json = answer.json()
    return made


# over REST


def test_a_sweep_is_made_read_and_forgotten(admin: httpx.Client) -> None:
    made = create(admin, schedule="0 3 * * *")
    assert made["next_run_at"] > made["created_at"]
    assert (made["last_run_at"], made["runs"], made["nodes"]) == (None, [], None)
    assert admin.get(f"/v1/sweeps/{made['id']}").json() == made
    assert admin.get("/v1/sweeps").json()["items"] == [made]
    assert admin.delete(f"/v1/sweeps/{made['id']}").status_code == 204
    problem(admin.get(f"/v1/sweeps/{made['id']}"), 404, "unknown-sweep")


def test_a_sweep_is_changed_in_part_by_one_editor_at_a_time(admin: httpx.Client) -> None:
    made = create(admin, schedule="every 60s", max_concurrent=2, benchmarks=["gemm"])
    create(admin, name="other")
    path = f"/v1/sweeps/{made['id']}"
    off = admin.patch(path, json={"version": 1, "enabled": False}).json()
    assert off == made | {"version": 2, "enabled": False, "next_run_at": None}
    problem(admin.patch(path, json={"version": 1, "max_concurrent": 3}), 409, "sweep-changed")
    problem(admin.patch(path, json={"version": 2, "name": "other"}), 409, "name-conflict")
    problem(admin.patch(path, json={"version": 2, "nodes": ["absent"]}), 404, "unknown-node")
    problem(admin.patch(path, json={"version": 2, "benchmarks": ["nonsense"]}), 422, "unknown-benchmark")
    for bad in ({"name": None}, {"retries": None}, {"enabled": 1}, {"schedule": "now"}, {"next_run_at": 0}):
        problem(admin.patch(path, json={"version": 2, **bad}), 422, "invalid")
    assert admin.get(path).json() == off
    on = {"enabled": True, "schedule": "every 3600s", "max_concurrent": None, "benchmarks": None, "retries": 2}
    changed = admin.patch(path, json={"version": 2, **on}).json()
    assert changed == made | on | {"version": 3, "next_run_at": changed["next_run_at"]}
    assert 3000 < changed["next_run_at"] - changed["created_at"] < 3700


def test_a_disabled_sweep_and_one_without_schedule_are_not_due(admin: httpx.Client) -> None:
    assert create(admin, schedule="every 60s", enabled=False)["next_run_at"] is None
    assert create(admin, name="by hand")["next_run_at"] is None


@pytest.mark.parametrize(
    ("change", "status", "slug"),
    [
        ({"schedule": "whenever"}, 422, "invalid"),
        ({"schedule": "0 0 31 2 *"}, 422, "invalid"),
        ({"suite": "slow"}, 422, "unknown-suite"),
        ({"nodes": ["absent"]}, 404, "unknown-node"),
        ({"name": ""}, 422, "invalid"),
    ],
)
def test_a_bad_sweep_is_refused(admin: httpx.Client, change: Json, status: int, slug: str) -> None:
    problem(admin.post("/v1/sweeps", json={"name": "n", "suite": "quick", **change}), status, slug)
    assert admin.get("/v1/sweeps").json()["items"] == []


def test_a_name_is_taken_once(admin: httpx.Client) -> None:
    create(admin)
    problem(admin.post("/v1/sweeps", json={"name": "nightly", "suite": "quick"}), 409, "name-conflict")


# the tick, without a broker


@pytest.fixture
def services(make_settings: Callable[..., Settings], database_url: str) -> Any:
    made = build_services(make_settings(database_url=database_url), ManualClock(1_800_000_000.0))
    yield made
    close_services(made)


def add_nodes(services: Services, report: Json, *names: str) -> None:
    from mainstay.service.fleet.schemas import NodeReportCreate
    from mainstay.service.fleet.service import report as say

    with services.database.session() as session:
        for name in names:
            say(session, name, NodeReportCreate.model_validate(report), now=services.clock.now())


def make(services: Services, **changes: Any) -> str:
    with services.database.session() as session:
        body = SweepCreate.model_validate({"name": "s", "suite": "quick", "schedule": "every 60s", **changes})
        return sweeps.create(session, body, now=services.clock.now()).id


def read(services: Services, sweep_id: str) -> Any:
    with services.database.reading() as session:
        return sweeps.serialize_sweeps(session, [sweeps.require(session, sweep_id)], keep_runs=5)[0]


def claim(services: Services, session: WriteSession, node: str) -> list[Any]:
    now, jobs = services.clock.now(), services.occupancy.by_node(session)
    return list(node_tasks.claim_tasks(session, node, jobs, now=now, settings=services.settings))


def ticker(services: Services) -> Tasks:
    """Tasks that do at once what a broker would deliver."""

    def deliver(run_id: str) -> None:
        tasks.fan_out(run_id)

    tasks = Tasks(services, deliver)
    return tasks


def test_a_due_sweep_reaches_every_node_once(services: Services, report: Json) -> None:
    add_nodes(services, report, "n1", "n2")
    sweep, tasks = make(services), ticker(services)
    tasks.tick()
    assert read(services, sweep).runs == []
    services.clock.advance(61)  # type: ignore[attr-defined]
    tasks.tick()
    tasks.tick()
    (run,) = read(services, sweep).runs
    assert (run.counts.pending, run.finished_at) == (2, None)
    with services.database.session() as session:
        taken = [claim(services, session, node) for node in ("n1", "n2", "n3")]
    assert [len(one) for one in taken] == [1, 1, 0]


def test_two_beats_start_one_run(services: Services, report: Json) -> None:
    """Both have read the same deadline; one compare-and-set wins."""
    add_nodes(services, report, "n1")
    sweep = make(services)
    services.clock.advance(61)  # type: ignore[attr-defined]
    barrier, failures = threading.Barrier(4), []

    def beat() -> None:
        barrier.wait()
        try:
            ticker(services).tick()
        except Exception as error:  # noqa: BLE001 - told to the test's thread
            failures.append(error)

    threads = [threading.Thread(target=beat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    (run,) = read(services, sweep).runs
    assert run.counts.pending == 1


def test_a_sweep_does_not_overtake_itself(services: Services, report: Json) -> None:
    add_nodes(services, report, "n1")
    sweep, tasks = make(services), ticker(services)
    for _ in range(4):
        services.clock.advance(61)  # type: ignore[attr-defined]
        tasks.tick()
    after = read(services, sweep)
    assert len(after.runs) == 1
    assert after.next_run_at > services.clock.now()


def test_a_lost_task_is_sent_again(services: Services, report: Json) -> None:
    add_nodes(services, report, "n1")
    sweep = make(services)
    services.clock.advance(61)  # type: ignore[attr-defined]
    Tasks(services, lambda _run: None).tick()
    assert read(services, sweep).runs[0].counts.pending == 0
    ticker(services).tick()
    assert read(services, sweep).runs[0].counts.pending == 1


def test_what_no_node_fetches_expires_as_unknown(services: Services, report: Json) -> None:
    add_nodes(services, report, "n1")
    sweep, tasks = make(services, schedule="every 5000s"), ticker(services)
    services.clock.advance(5001)  # type: ignore[attr-defined]
    tasks.tick()
    services.clock.advance(301)  # type: ignore[attr-defined]
    tasks.tick()
    (run,) = read(services, sweep).runs
    assert (run.counts.unknown, run.counts.pending) == (1, 0)
    assert run.finished_at is not None
    with services.database.reading() as session:
        assert session.get_one(NodeVerdictRow, "n1").verdict == "unknown"


def test_an_order_that_was_lost_on_its_way_comes_again(services: Services, report: Json) -> None:
    add_nodes(services, report, "n1")
    with services.database.session() as session:
        validations.order(session, services.settings, node="n1", suite="quick", now=services.clock.now())
    for seconds, expected in ((0, 1), (5, 0), (node_tasks.REDELIVER_SECONDS, 1)):
        services.clock.advance(seconds)  # type: ignore[attr-defined]
        with services.database.session() as session:
            assert len(claim(services, session, "n1")) == expected


def test_messages_are_json_and_nothing_else(make_settings: Callable[..., Settings]) -> None:
    conf = make_app(make_settings().celery).conf
    assert (conf.task_serializer, conf.accept_content) == ("json", ["json"])


# through Celery


@pytest.mark.slow
def test_embedded_celery_runs_a_sweep_to_a_verdict(
    start: Callable[..., Any], enroll: Callable[..., Any], criteria: Any, eventually: Any
) -> None:
    running = start(celery={"tick_seconds": 0.3})
    admin = running.client()
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    good, slow = enroll(running, "n1"), enroll(running, "n2", scale=0.5)
    made = create(admin, schedule="every 1s")
    with embedded(running.services), good.working(), slow.working():
        runs = eventually(lambda: [r for r in _runs(admin, made) if r["finished_at"] is not None])
    assert runs[-1]["counts"] == {"pass": 1, "warn": 0, "fail": 1, "unknown": 0, "skipped": 0, "pending": 0}
    listed = admin.get("/v1/validations", params={"sweep": made["id"]}).json()["items"]
    assert {(item["node"], item["verdict"]) for item in listed if item["state"] == "done"} == {
        ("n1", "pass"),
        ("n2", "fail"),
    }


@pytest.mark.slow
def test_run_now_does_not_wait_for_the_beat(
    start: Callable[..., Any], enroll: Callable[..., Any], eventually: Any
) -> None:
    running = start(celery={"tick_seconds": 3600.0})
    admin, node = running.client(), enroll(running, "n1")
    made = create(admin)
    with embedded(running.services), node.working():
        answer = admin.post(f"/v1/sweeps/{made['id']}:run")
        assert answer.status_code == 202, answer.text
        assert len(answer.json()["runs"]) == 1
        runs = eventually(lambda: [r for r in _runs(admin, made) if r["finished_at"] is not None])
    assert runs[0]["counts"]["unknown"] == 1, "no criteria: unknown, never pass"


def test_a_running_sweep_is_not_run_again(admin: httpx.Client, service: Any, enroll: Callable[..., Any]) -> None:
    enroll(service, "n1")
    made = create(admin)
    assert admin.post(f"/v1/sweeps/{made['id']}:run").status_code == 202
    problem(admin.post(f"/v1/sweeps/{made['id']}:run"), 409, "sweep-running")


def _runs(client: httpx.Client, sweep: Json) -> list[Json]:
    runs: list[Json] = client.get(f"/v1/sweeps/{sweep['id']}").json()["runs"]
    return runs


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.processes
def test_a_worker_process_on_redis_runs_a_sweep_to_a_verdict(
    start: Callable[..., Any], enroll: Callable[..., Any], redis_url: str, criteria: Any, eventually: Any
) -> None:
    running = start(celery={"broker_url": redis_url, "tick_seconds": 0.5})
    admin, node = running.client(), enroll(running, "n1")
    admin.put("/v1/criteria", json={"items": criteria("quick")})
    made = create(admin, schedule="every 1s")
    data = str(running.settings.data_dir)
    command = [sys.executable, "-m", "mainstay", "worker", "--beat", "--broker-url", redis_url, "--data-dir", data]
    environment = os.environ | {"MAINSTAY_CELERY__TICK_SECONDS": "0.5"}
    worker = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert "ready" in worker.stdout.readline()
        with node.working():
            runs = eventually(lambda: [r for r in _runs(admin, made) if r["finished_at"] is not None], 60.0)
        assert runs[-1]["counts"]["pass"] == 1
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        worker.stdout.close()
