"""A backup is taken while the service runs; the service is killed, and another one continues from the backup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mainstay.probes.ids import uuid7
from mainstay.service.demo.client import ApiClient
from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack

REPORT = {
    "hostname": "n1", "os": "Debian 12", "kernel": "6.1", "version": "0.1.0", "boot_id": "b", "cohort": "cpu",
    "cpu_count": 2, "memory_bytes": 2**33, "started_at": 1_700_000_000.0, "devices": [],
    "catalog": {"narrow": [], "wide": []},
}  # fmt: skip


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def new_url(request: pytest.FixtureRequest) -> Iterator[Callable[[], str | None]]:
    """The database URL of one more service; None: SQLite in its data directory."""
    if request.param == "sqlite":
        yield lambda: None
        return
    databases, made = request.getfixturevalue("databases"), list[str]()

    def make() -> str:
        made.append(databases.make())
        return made[-1]

    yield make
    for url in made:
        databases.drop(url)


def command(name: str, place: Path, stack: Stack, *options: str) -> Any:
    """What ``mainstay backup`` or ``restore`` reports as JSON."""
    line = mainstay_command(name, str(place), "--data-dir", str(stack.data_dir), "--json", *options)
    done = subprocess.run(
        line, env={**os.environ, **stack.env}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def state(api: ApiClient) -> dict[str, Any]:
    """What must be the same before and after."""
    incidents = [{k: found[k] for k in ("id", "title", "opened_at")} for found in api.get("/incidents")["items"]]
    nodes = [found["name"] for found in api.get("/nodes")["items"]]
    return {"nodes": sorted(nodes), "incidents": incidents}


def fill(stack: Stack) -> str:
    """Make nodes, an incident, and a token; returns the token."""
    for name in ("n1", "n2"):
        stack.api.put(f"/nodes/{name}", REPORT)
    xid = {"id": uuid7(), "time": time.time(), "kind": "xid", "node": "n1", "device": "gpu0", "data": {"code": 79}}
    stack.api.post("/events", {"items": [xid]})
    stack.until(lambda: bool(stack.api.get("/incidents")["items"]), 60.0, "the incident", vital=("service",))
    token: str = stack.api.post("/auth/tokens", {"name": "reader", "kind": "user", "scopes": ["read"]})["token"]
    return token


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize("form", ["copy", "copy.tar"])
def test_a_killed_service_continues_from_its_backup(
    tmp_path: Path,
    free_port: Callable[[], int],
    new_url: Callable[[], str | None],
    service_stack: Callable[..., Stack],
    form: str,
) -> None:
    def stack_of(name: str) -> Stack:
        url = new_url()
        env = {} if url is None else {"MAINSTAY_DATABASE_URL": url}
        return service_stack(tmp_path / name, free_port(), env)

    place = tmp_path / form
    with closing(stack_of("first")) as first:
        first.start_service("serve", "--migrate")
        token = fill(first)
        before = state(first.api)
        manifest = command("backup", place, first)
        assert place.stat().st_mode & 0o077 == 0
        first.children.running["service"].send_signal(signal.SIGKILL)
    assert {"admin-token"} < {file["name"] for file in manifest["files"]}
    with closing(stack_of("second")) as second:
        command("restore", place, second)
        second.start_service("serve", "--migrate")
        assert second.token == first.token
        for api in (second.api, ApiClient(second.api.url, token)):
            after = state(api)
            assert after["nodes"] == before["nodes"]
            # The nodes send no frames, which is an incident of its own once it has lasted long enough.
            assert [found for found in after["incidents"] if found in before["incidents"]] == before["incidents"]
