"""SIGKILL of a node daemon that beats twice a second → ``node_lost`` in the API: live, many daemons on one machine.

``python -m bench.node_lost [--json FILE]``
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from bench.report import Row, publish, target_file
from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack, free_port

NODES = 6
ROUNDS = 4
BEAT_SECONDS = 0.5
JUDGE_SECONDS = 0.25
"""How often the detection loop checks heartbeats; 1 s by default."""
_RHYTHM_SECONDS = 12.0
"""Longer than the detector listens before it trusts a rhythm."""
_WAIT_SECONDS = 20.0


def rows() -> list[Row]:
    """Measure; a node that is never missed counts as the longest wait."""
    with tempfile.TemporaryDirectory() as place:
        stack = Stack(
            Path(place), free_port(), env={"MAINSTAY_INCIDENTS__DETECTION_INTERVAL_SECONDS": str(JUDGE_SECONDS)}
        )
        try:
            stack.start_service("serve")
            delays = [delay for number in range(ROUNDS) for delay in _round(stack, number)]
        finally:
            stack.close()
    p95 = statistics.quantiles(delays, n=20, method="inclusive")[-1]
    note = f"median {statistics.median(delays):.2f} s; the detection loop runs every {JUDGE_SECONDS} s"
    return [
        Row(
            claim="node lost → finding in the API, p95", figure=p95, unit="s", target="<= 2", holds=p95 <= 2.0,
            kind="live", baseline="Unicron 5.6 s, ByteRobust's inspection 2 s (reported)", n=len(delays), note=note,
        )
    ]  # fmt: skip


def _round(stack: Stack, number: int) -> list[float]:
    """Start daemons under new names, let them beat, kill one after the other."""
    names = [f"lost-{number}-{n}" for n in range(NODES)]
    for name in names:
        _start(stack, name)
    for name in names:
        stack.until(lambda n=name: _heard(stack, n), 60.0, f"{name} to be heard")  # type: ignore[misc]
    time.sleep(_RHYTHM_SECONDS)
    return [_kill(stack, name) for name in names]


def _start(stack: Stack, name: str) -> None:
    join = stack.api.post("/auth/tokens", {"name": f"join {name}", "kind": "join", "scopes": ["report"]})["token"]
    options = ["--service", stack.api.url, "--name", name, "--join-token", join]
    options += ["--data-dir", str(stack.directory / name), "--interval", str(BEAT_SECONDS), "--batch", "1"]
    stack.children.start(f"node-{name}", mainstay_command("node", *options), stack.env)


def _heard(stack: Stack, name: str) -> bool:
    found = [node for node in stack.api.get("/nodes", limit=200)["items"] if node["name"] == name]
    return bool(found) and found[0]["age_seconds"] is not None


def _kill(stack: Stack, name: str) -> float:
    """SIGKILL to the daemon; its sampler child ends with its pipe."""
    daemon = stack.children.running[f"node-{name}"]
    began = time.monotonic()
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait()
    while time.monotonic() - began < _WAIT_SECONDS:
        found = stack.api.get("/findings", node=name, limit=20)["items"]
        if any(f["kind"] == "node_lost" and f["active"] for f in found):
            return time.monotonic() - began
        time.sleep(0.02)
    return _WAIT_SECONDS


if __name__ == "__main__":
    file = target_file("node_lost")
    publish("node_lost", rows(), file)
