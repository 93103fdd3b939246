"""The shape of docker-compose.yml without containers: the same processes, real PostgreSQL, real Redis, one sweep, and
frames of a node through a relay to two services.

Service, Celery worker and beat are processes of their own; beat schedules the sweep, a task fans it out, the node
daemon runs the benchmarks, and the service judges: without criteria the verdict is UNKNOWN, never PASS.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import yaml

from mainstay.service.demo.client import ApiClient
from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack
from tests.scenarios.pair import Pair

NODE = "node-1"
COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"


@pytest.fixture
def stack(
    tmp_path: Path, postgres_url: str, redis_url: str, free_port: Callable[[], int],
    service_stack: Callable[..., Stack],
) -> Iterator[Stack]:  # fmt: skip
    env = {"MAINSTAY_DATABASE_URL": postgres_url, "MAINSTAY_CELERY__BROKER_URL": redis_url}
    running = service_stack(tmp_path, free_port(), env)
    yield running
    running.close()


@pytest.fixture
def pair(
    tmp_path: Path, postgres_url: str, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> Iterator[Pair]:
    made = Pair(tmp_path, postgres_url, free_port, service_stack)
    yield made
    made.close()


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
    off = {"enabled": False, "version": stack.api.get(path)["version"]}
    stack.api.json("PATCH", path, off)  # the node need not run the suite again and again
    run = stack.api.get(path)["runs"][-1]
    stack.until(lambda: _finished(stack, path, run["id"]) is not None, 120.0, "a verdict", vital=vital)
    counts = _finished(stack, path, run["id"])
    assert counts is not None
    assert counts["unknown"] == 1, "no criteria are known: never PASS"
    assert counts["pass"] == 0

    (validation,) = stack.api.get("/validations", node=NODE, run=run["id"])["items"]
    detail = stack.api.get(f"/validations/{validation['id']}")
    assert {r["benchmark"] for r in detail["results"]} == {b["name"] for b in suites["quick"]["benchmarks"]}
    measured = [r["value"] for r in detail["results"] if r["value"] is not None]
    assert measured
    assert stack.api.get(f"/nodes/{NODE}")["last_verdict"] == "unknown"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.postgres
@pytest.mark.timeout(240)
def test_frames_of_a_node_pass_the_relay(pair: Pair, free_port: Callable[[], int]) -> None:
    a, port = pair.stacks[0], free_port()
    relay = yaml.safe_load(COMPOSE.read_text())["services"]["relay"]["command"]
    here = {relay[relay.index("--service") + 1]: a.api.url, "0.0.0.0": "127.0.0.1"}
    token = mainstay_command("token", "relay", "--name", "relay-1", "--all-racks", "--quiet")
    issued = subprocess.run(token, env={**os.environ, **a.env}, capture_output=True, text=True, check=True, timeout=60)
    env = {"MAINSTAY_TOKEN": issued.stdout.strip(), "MAINSTAY_RELAY_DATA": str(a.directory / "relay")}
    command = mainstay_command(*(here.get(word, word) for word in relay), "--port", str(port))
    a.children.start("relay", command, {**a.env, **env})
    url = f"http://127.0.0.1:{port}"
    a.until(ApiClient(url).ready, 30.0, "the relay", vital=("relay",))
    a.env = {**a.env, "MAINSTAY_RELAY": url}
    a.start_node(NODE)

    def stored() -> int:
        with psycopg.connect(pair.url.replace("+psycopg", "")) as connection:
            (row,) = connection.execute("SELECT count(*) FROM blocks WHERE kind = 'bundle'").fetchall()
        return int(row[0])

    a.until(lambda: stored() > 1, 60.0, "bundles", vital=("relay", f"node-{NODE}"))
    query = {"node": NODE, "signal": "load_1m", "from": int(time.time()) - 60}
    for stack in pair.stacks:  # the other reads them from PostgreSQL
        stack.until(lambda s=stack: bool(s.api.get("/telemetry/query", **query)["series"]), 30.0, "the chart")


def _finished(stack: Stack, path: str, run: str) -> dict[str, int] | None:
    (found,) = [r for r in stack.api.get(path)["runs"] if r["id"] == run]
    counts: dict[str, int] = found["counts"]
    return counts if found["finished_at"] is not None else None
