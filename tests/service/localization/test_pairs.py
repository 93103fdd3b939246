"""A fault localization without simulation: the real service, four nodes' real control loops, and each pair two real
processes that measure each other over TCP; one node's path is slow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.probes.identity import NodeReport
from mainstay.probes.node_tasks import ResultOutbox, TaskLoop
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from mainstay.probes.validation_tasks import ValidationProcess
from mainstay.service.localization import service as localization_service

pytestmark = [pytest.mark.slow, pytest.mark.processes]

Json = dict[str, Any]
_PATH = """
import sys, time
from mainstay.probes.benchmarks import pair

class Path:
    def __init__(self, connection):
        self.connection = connection
        self.recv_into = connection.recv_into
    def sendall(self, data):
        time.sleep({late} if len(data) > {above} else {usual})
        self.connection.sendall(data)

pair.BUDGET_SECONDS = 0.0
pair.main(sys.argv[1], Path)
"""
USUAL = 0.05
"""Seconds that a path holds every message up: so much more than a busy test machine does that good paths look alike."""
SIZES = (512, 65_536)
"""Without the largest, whose bytes a busy machine moves in anything from 3 to 30 ms."""


@contextmanager
def at_work(service: Any, report: Json, directory: Path, late: dict[str, tuple[float, int]]) -> Iterator[None]:
    """Nodes' control loops; node → how long its path holds up messages above so many bytes."""
    with ExitStack() as stack:
        loops = []
        for name, (seconds, above) in late.items():
            client = service.node_client(name)
            assert client.put(f"/v1/nodes/{name}", json=report).status_code == 200
            transport = Transport(service.url, client.headers["Authorization"].removeprefix("Bearer "))
            outbox = ResultOutbox(stack.enter_context(Spool(directory / name)), transport)
            stack.enter_context(outbox)
            code = _PATH.format(late=seconds, above=above, usual=USUAL)
            loop = TaskLoop(name, transport, ValidationProcess(), outbox, pair_command=(sys.executable, "-c", code))
            loop.report(msgspec.convert(report, NodeReport))
            loops.append(loop)
        for loop in loops:
            loop.start()
        try:
            for loop in loops:
                assert loop.reported.wait(30)
            yield
        finally:
            for loop in loops:
                loop.stop()


def test_a_node_that_is_slow_above_a_kilobyte_only_is_named(
    service: Any, report: Json, tmp_path: Path, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(localization_service, "SIZES", SIZES)
    admin = service.client()
    nodes = [f"n{number}" for number in range(4)]
    late = dict.fromkeys(nodes, (USUAL, 0)) | {"n2": (5 * USUAL, 1024)}
    with at_work(service, report, tmp_path, late):
        addresses = dict.fromkeys(nodes, "127.0.0.1")
        made = admin.post(
            "/v1/fault-localizations", json={"nodes": nodes, "reason": "job 7 is slow", "addresses": addresses}
        )
        assert made.status_code == 202, made.text
        path = f"/v1/fault-localizations/{made.json()['id']}"
        done = eventually(lambda: (r := admin.get(path).json())["state"] == "done" and r, 100)
    verdict = done["verdict"]
    assert [(c["kind"], c["nodes"]) for c in verdict["culprits"]] == [("node", ["n2"])], done
    assert verdict["culprits"][0]["speed"] < 0.5
    assert verdict["culprits"][0]["sizes"] == [65_536]
    assert "n2" not in verdict["good"]
    assert all(pair["state"] == "ok" for r in done["rounds"] for pair in r["pairs"])
