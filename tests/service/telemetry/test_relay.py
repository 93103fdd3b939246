"""Nodes, a relay, and the service, each as it is run: every frame is stored whichever way it comes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from mainstay.probes import frame_route
from tests.probes.relay_process import RelayedNode, running_nodes, running_relay

pytestmark = [pytest.mark.processes, pytest.mark.slow]
NODES = [f"node-{k}" for k in range(8)]


@contextmanager
def serving(data_dir: Path) -> Iterator[httpx.Client]:
    """``mainstay serve``; an admin's client of it."""
    command = [sys.executable, "-m", "mainstay", "serve", "--port", "0", "--data-dir", str(data_dir)]
    with data_dir.with_suffix(".log").open("w") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert child.stdout is not None
        with child.stdout:
            url = child.stdout.readline().split("ready on ")[1].split()[0]
            bearer = {"Authorization": f"Bearer {(data_dir / 'admin-token').read_text().strip()}"}
            with httpx.Client(base_url=url, headers=bearer, timeout=30) as client:
                yield client
    finally:
        child.terminate()
        child.wait(60)


def token(client: httpx.Client, **body: object) -> str:
    made = client.post("/v1/auth/tokens", json={"name": "t", **body})
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


def enroll(client: httpx.Client, name: str, rack: str, report: dict[str, object]) -> str:
    """The credential of a node that has reported its rack."""
    bearer = {"Authorization": f"Bearer {token(client, kind='join')}"}
    credential = str(client.post("/v1/nodes:enroll", json={"name": name}, headers=bearer).json()["token"])
    body = report | {"hostname": name, "rack": rack}
    answer = client.put(f"/v1/nodes/{name}", json=body, headers={"Authorization": f"Bearer {credential}"})
    assert answer.status_code == 200, answer.text
    return credential


def stored_times(client: httpx.Client, node: str) -> list[float]:
    """Times at which the service has a sample of the node."""
    query = {"node": node, "signal": "load_1m", "from": 0.0, "to": time.time() + 10}
    query["from"] = query["to"] - 3600
    answer = client.get("/v1/telemetry/query", params=query | {"points": 4000})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return [t for line in found["series"] for t, mean in zip(found["t"], line["mean"], strict=True) if mean is not None]


def _until(condition, what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_everything_arrives_through_a_relay_that_is_killed(
    tmp_path: Path, report: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_route, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(frame_route, "PROBE_SECONDS", 1.0)
    with serving(tmp_path / "service") as client:
        tokens = {enroll(client, name, "rack-1", report): name for name in NODES}
        relay_token = token(client, kind="relay", racks=["rack-1"])
        service = str(client.base_url)
        with (
            running_relay(service, tmp_path / "relay", relay_token) as relay,
            running_nodes(tokens, tmp_path, relay.url, service) as nodes,
        ):
            first = int(time.time()) - 3500
            _put(nodes, range(first, first + 10))
            _until(lambda: relay.metric("bundles_sent_total") >= 1, "bundles go to the service")
            ended = threading.Event()
            writer = threading.Thread(target=_put_slowly, args=(nodes, range(first + 10, first + 3400), ended))
            writer.start()
            relay.kill()
            before = [node.sender.delivered for node in nodes]
            _until(
                lambda: all(n.sender.delivered >= b + 3 for n, b in zip(nodes, before, strict=True)),
                "the nodes send directly",
            )
            relay.start()
            _until(lambda: relay.metric("frames_accepted_total") >= len(nodes), "they come back")
            ended.set()
            writer.join()
            last = first + 3400
            _put(nodes, range(last, last + 1))
            for node in nodes:
                assert node.spool.wait_empty(60)
            _until(lambda: relay.metric("spool_entries") == 0, "the relay delivers what it has")
            for node in nodes:
                times = [t for t in stored_times(client, node.name) if t >= first]
                assert times == sorted(set(times))
                assert set(range(first, first + 10)) <= set(times), "what was sent before"
                assert last in times
                assert len(times) == node.sent, "each frame once"
                assert node.spool.rejected == node.spool.dropped == 0
            assert "frames_refused_total{" not in relay.get("/metrics")


def _put(nodes: list[RelayedNode], times: range) -> None:
    for t0 in times:
        for node in nodes:
            node.put(float(t0))


def _put_slowly(nodes: list[RelayedNode], times: range, ended: threading.Event) -> None:
    for t0 in times:
        _put(nodes, range(t0, t0 + 1))
        if ended.wait(0.1):
            return


def test_a_relay_of_another_rack_is_passed_by(
    tmp_path: Path, report: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_route, "GRACE_SECONDS", 0.5)
    with serving(tmp_path / "service") as client:
        tokens = {enroll(client, "node-1", "rack-1", report): "node-1"}
        relay_token = token(client, kind="relay", racks=["rack-2"])
        service = str(client.base_url)
        with (
            running_relay(service, tmp_path / "relay", relay_token) as relay,
            running_nodes(tokens, tmp_path, relay.url, service) as nodes,
        ):
            now = int(time.time()) - 5
            _put(nodes, range(now, now + 2))
            _until(lambda: now + 1 in stored_times(client, "node-1"), "both go directly")
            assert 'reason="wrong-rack"' in relay.get("/metrics")
            assert relay.metric("frames_accepted_total") == 0
