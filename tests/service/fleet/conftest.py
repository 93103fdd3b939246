"""What the tests of a node's life share: enrolled nodes, operators, jobs, and loops that a test turns by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from mainstay.service.app import build_services, close_services
from mainstay.service.services import Services
from mainstay.service.settings import Settings

Json = dict[str, Any]


def gpu_of(index: int, **changes: object) -> Json:
    return {
        "id": f"gpu{index}", "index": index, "kind": "gpu", "model": "H100", "serial": f"S{index}",
        "uuid": f"GPU-{index}", "memory_bytes": 80 * 2**30, **changes,
    }  # fmt: skip


@pytest.fixture
def gpu() -> Callable[..., Json]:
    return gpu_of


@pytest.fixture
def run_loops() -> Callable[..., None]:
    """Wait until loops of a running service have looked once more at everything that is there now."""

    def wait(service: Any, *names: str) -> None:
        for name in names:
            loop = next(loop for loop in service.app.state.loops if loop.name == name)
            seen, failures, deadline = loop.turns, loop.failures, time.monotonic() + 60
            while loop.turns < seen + 2:  # the first may have begun before we came
                assert loop.failures == failures, f"{name} failed: see the log"
                assert time.monotonic() < deadline, f"{name} does not turn"
                loop.wake()
                time.sleep(0.001)

    return wait


@pytest.fixture
def enrolled(report: Json) -> Callable[..., httpx.Client]:
    """A node that has reported; the client speaks for it."""

    def make(service: Any, name: str = "n1", **changes: Any) -> httpx.Client:
        node: httpx.Client = service.node_client(name)
        assert node.put(f"/v1/nodes/{name}", json={**report, **changes}).status_code == 200
        return node

    return make


@pytest.fixture
def operator() -> Callable[..., httpx.Client]:
    """A person with the scope to act."""

    def make(service: Any, name: str = "alice", scope: str = "act") -> httpx.Client:
        body = {"name": name, "kind": "user", "scopes": [scope]}
        client: httpx.Client = service.client(service.client().post("/v1/auth/tokens", json=body).json()["token"])
        return client

    return make


@pytest.fixture
def run_job() -> Callable[..., None]:
    """A job with ``dp`` ranks, spread over nodes in turn."""

    def run(service: Any, *nodes: str, job: str = "demo", dp: int = 1, **changes: Any) -> None:
        ranks = [
            {"rank": r, "dp": r, "pp": 0, "tp": 0, "node": nodes[r % len(nodes)], "device": None, "pid": 1,
             "state": "running"}
            for r in range(dp)
        ]  # fmt: skip
        body = {
            "name": job, "state": "running", "generation": 1, "command": "train.py",
            "topology": {"dp": dp, "pp": 1, "tp": 1, "world_size": dp, "ranks": ranks},
            "protection": {
                "slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []
            },
            "steps_total": None, "last_step": 1, "started_at": time.time() - 60, "finished_at": None, **changes,
        }  # fmt: skip
        answer = service.client().put(f"/v1/jobs/{job}", json=body)
        assert answer.status_code == 200, answer.text

    return run


@pytest.fixture
def services(make_settings: Callable[..., Settings], database_url: str) -> Iterator[Services]:
    """The parts of a service without its loops, on each database."""
    made = build_services(make_settings(database_url=database_url))
    yield made
    close_services(made)
