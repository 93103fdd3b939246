"""Two ``mainstay serve`` on one PostgreSQL: one detects, and when it is killed or stopped the other continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstay.service.demo.client import ApiClient
from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack
from tests.scenarios.pair import NODE, REPORT, Pair

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.postgres, pytest.mark.timeout(240)]


@pytest.fixture
def pair(
    tmp_path: Path, postgres_url: str, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> Iterator[Pair]:
    made = Pair(tmp_path, postgres_url, free_port, service_stack)
    yield made
    made.close()


def test_the_other_process_continues_when_one_is_killed_or_stopped(pair: Pair) -> None:
    a, b = pair.stacks
    b.until(lambda: pair.holder() == a.api.url, 30.0, "the first to hold the lease")
    b.until(lambda: pair.holder(lease="detection-3") == b.api.url, 60.0, "the second to get its share of detection")
    assert pair.holder() == a.api.url
    a.api.put(f"/nodes/{NODE}", REPORT)
    pair.xid(1, 79, "GPU-1")  # to the process that does not detect
    b.until(lambda: bool(pair.found(0)), 30.0, "an incident")
    before = pair.found(1)
    assert all(before.values())

    os.kill(pair.pid(0), signal.SIGSTOP)
    b.until(lambda: pair.holder() == b.api.url, 30.0, "the second to take over from a stopped process")
    pair.xid(1, 48, "GPU-2")
    b.until(lambda: len(pair.found(1)) > len(before), 30.0, "the second to detect")
    os.kill(pair.pid(0), signal.SIGCONT)
    b.until(lambda: _seen(a) < 1.0, 30.0, "the first to report again")
    both = pair.found(1)
    assert all(both.values()), "the process that was stopped cleared nothing"
    assert pair.holder() == b.api.url

    os.kill(pair.pid(1), signal.SIGKILL)
    a.until(lambda: pair.holder(0) == a.api.url, 30.0, "the first to take over from a killed process")
    pair.xid(0, 63, "GPU-3")
    a.until(lambda: len(pair.found(0)) > len(both), 30.0, "the first to detect")
    assert all(pair.found(0).values())
    told = _status(pair.url)
    assert [one["state"] for one in told["processes"]] == ["running", "silent"]
    assert {one["name"] for one in told["leases"]} >= {"detection", "remediation", "housekeeping"}


def _seen(stack: Stack) -> float:
    mine = [one for one in stack.api.get("/cluster")["processes"] if one["url"] == stack.api.url]
    return float(mine[0]["seen_seconds"])


def _status(url: str) -> dict[str, Any]:
    line = mainstay_command("cluster", "status", "--database-url", url, "--json")
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_node_works_through_a_gateway(
    tmp_path: Path, postgres_url: str, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> None:
    stack = service_stack(tmp_path, free_port(), {"MAINSTAY_DATABASE_URL": postgres_url})
    try:
        stack.start_service("serve", "--migrate")
        port, config = str(free_port()), str(tmp_path / "mainstay.toml")
        line = ["serve", "--role", "gateway", "--port", port, "--data-dir", str(tmp_path / "gateway")]
        stack.children.start("gateway", mainstay_command(*line, "--config", config), stack.env)
        people, gateway = stack.api, ApiClient(f"http://127.0.0.1:{port}")
        stack.until(gateway.ready, 60.0, "the gateway", vital=("gateway",))
        join = people.post("/auth/tokens", {"name": "join", "kind": "join", "scopes": ["report"]})["token"]
        line = ["node", "--service", gateway.url, "--name", NODE, "--data-dir", str(tmp_path / NODE)]
        stack.children.start("node", mainstay_command(*line, "--join-token", join), stack.env)

        vital, chart = ("gateway", "node"), f"/telemetry/query?node={NODE}&signal=cpu_utilization_ratio"
        stack.until(lambda: bool(people.get("/nodes")["items"]), 60.0, "the node", vital=vital)
        stack.until(lambda: bool(people.get(chart)["series"]), 60.0, "its samples", vital=vital)
        asked = people.post("/validations", {"node": NODE, "suite": "quick", "benchmarks": ["copy"]})
        result = f"/validations/{asked['id']}"
        stack.until(lambda: people.get(result)["state"] == "done", 120.0, "the result of a validation", vital=vital)
    finally:
        stack.close()
