"""Two ``mainstay serve`` on one PostgreSQL: one detects, and when it is killed or stopped the other continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstay.service.demo.client import ApiClient
from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.postgres, pytest.mark.timeout(240)]
NODE = "node-1"
REPORT = {
    "hostname": "h", "os": "Debian 12", "kernel": "6.1", "version": "0.1.0", "boot_id": "b", "cohort": "cpu",
    "cpu_count": 2, "memory_bytes": 2**30, "started_at": 1_700_000_000.0, "catalog": {"narrow": [], "wide": []},
    "devices": [
        {"id": "host", "index": 0, "kind": "host", "model": "EPYC", "serial": None, "uuid": None, "memory_bytes": None}
    ],
}  # fmt: skip


class Pair:
    """Two services on one database, and the clients of each."""

    def __init__(self, directory: Path, url: str, free_port: Callable[[], int]) -> None:
        self.url = url
        env = {"MAINSTAY_DATABASE_URL": url, "MAINSTAY_CLUSTER__LEASE_SECONDS": "2"}
        self.stacks = [Stack(directory / name, free_port(), env) for name in ("a", "b")]
        a, b = self.stacks
        a.start_service("serve", "--migrate")
        # The second finds an administrator in the database, and makes none.
        place = ["--port", str(b.port), "--data-dir", str(b.data_dir), "--config", str(directory / "none.toml")]
        (directory / "none.toml").touch()
        b.children.start("service", mainstay_command("serve", *place), b.env)
        b.until(b.api.ready, 60.0, "the second service", vital=("service",))
        b.api = ApiClient(b.api.url, a.token)

    def pid(self, number: int) -> int:
        return self.stacks[number].children.running["service"].pid

    def holder(self, number: int = 1, lease: str = "detection") -> str | None:
        """The URL of the process that does this work, as service ``number`` tells it."""
        told = self.stacks[number].api.get("/cluster")
        by_id = {one["id"]: one["url"] for one in told["processes"]}
        held = {one["name"]: one["holder"] for one in told["leases"]}
        return by_id.get(held.get(lease) or "")

    def xid(self, number: int, code: int, device: str) -> str:
        """An event that a node's kernel reported; its ID."""
        event: dict[str, Any] = {"kind": "xid", "node": NODE, "device": device, "data": {"code": code}}
        event |= {"id": f"00000000-0000-7000-8000-{code:012d}", "time": time.time()}
        self.stacks[number].api.post("/events", {"items": [event]})
        return str(event["id"])

    def found(self, number: int) -> dict[str, bool]:
        """ID → whether it is active, of every finding."""
        incidents = self.stacks[number].api.get("/incidents")["items"]
        detail = [self.stacks[number].api.get(f"/incidents/{one['id']}") for one in incidents]
        return {finding["id"]: finding["active"] for one in detail for finding in one["findings"]}


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str, free_port: Callable[[], int]) -> Iterator[Pair]:
    made = Pair(tmp_path, postgres_url, free_port)
    yield made
    for number, stack in enumerate(made.stacks):
        if stack.children.exit_code("service") is None:
            os.kill(made.pid(number), signal.SIGCONT)
        stack.close()


def test_the_other_process_continues_when_one_is_killed_or_stopped(pair: Pair) -> None:
    a, b = pair.stacks
    b.until(lambda: pair.holder() == a.api.url, 30.0, "the first to hold the lease")
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


def test_a_node_works_through_a_gateway(tmp_path: Path, postgres_url: str, free_port: Callable[[], int]) -> None:
    stack = Stack(tmp_path, free_port(), {"MAINSTAY_DATABASE_URL": postgres_url})
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
        asked = people.post("/validations", {"node": NODE, "suite": "quick"})
        result = f"/validations/{asked['id']}"
        stack.until(lambda: people.get(result)["state"] == "done", 120.0, "the result of a validation", vital=vital)
    finally:
        stack.close()
