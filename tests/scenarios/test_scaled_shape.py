"""The shape of docker-compose.yml without containers: the same processes, real PostgreSQL, real Redis, one sweep.

Service, Celery worker and beat are processes of their own; beat schedules the sweep, a task fans it out, the node
daemon runs the benchmarks, and the service judges: without criteria the verdict is UNKNOWN, never PASS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack

NODE = "node-1"


@pytest.fixture
def stack(tmp_path: Path, postgres_url: str, redis_url: str, free_port: Callable[[], int]) -> Iterator[Stack]:
    env = {"MAINSTAY_DATABASE_URL": postgres_url, "MAINSTAY_CELERY__BROKER_URL": redis_url}
    running = Stack(tmp_path, free_port(), env)
    yield running
    running.close()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.timeout(240)
def test_one_sweep_through_to_a_verdict(stack: Stack) -> None:
    stack.start_service("serve", "--migrate")
    stack.children.start("worker", mainstay_command("worker"), stack.env)
    stack.children.start("beat", mainstay_command("worker", "--beat-only"), stack.env)
    stack.start_node(NODE)
    vital = ("service", "worker", "beat", f"node-{NODE}")
    stack.until(lambda: bool(stack.api.get("/nodes")["items"]), 30.0, "the node", vital=vital)
    suites = {suite["name"]: suite for suite in stack.api.get("/suites")["items"]}
    assert "quick" in suites

    sweep = stack.api.post("/sweeps", {"name": "often", "suite": "quick", "schedule": "every 2s", "enabled": True})
    path = f"/sweeps/{sweep['id']}"
    stack.until(lambda: bool(stack.api.get(path)["runs"]), 60.0, "beat to start a run", vital=vital)
    run = stack.api.get(path)["runs"][-1]
    stack.until(lambda: _finished(stack, path, run["id"]) is not None, 120.0, "a verdict", vital=vital)
    counts = _finished(stack, path, run["id"])
    assert counts is not None
    assert counts["unknown"] == 1, "no criteria are known: never PASS"
    assert counts["pass"] == 0

    (validation, *_) = stack.api.get("/validations", node=NODE)["items"]
    detail = stack.api.get(f"/validations/{validation['id']}")
    assert {r["benchmark"] for r in detail["results"]} == {b["name"] for b in suites["quick"]["benchmarks"]}
    measured = [r["value"] for r in detail["results"] if r["value"] is not None]
    assert measured
    assert stack.api.get(f"/nodes/{NODE}")["last_verdict"] == "unknown"


def _finished(stack: Stack, path: str, run: str) -> dict[str, int] | None:
    (found,) = [r for r in stack.api.get(path)["runs"] if r["id"] == run]
    counts: dict[str, int] = found["counts"]
    return counts if found["finished_at"] is not None else None
