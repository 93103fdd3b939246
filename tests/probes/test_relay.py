"""The relay as it is run: real processes, a real kill, nodes that go directly and come back, a service that is away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.lib_receiver import Receiver
from mainstay.probes import frame_route
from mainstay.probes.spool import Spool
from mainstay.probes.transport import RetryableError, Transport
from tests.commands import run_here
from tests.probes.relay_process import ROOT, RelayedNode, running_nodes, running_relay
from tests.service.certificates import Authority

pytestmark = [pytest.mark.processes, pytest.mark.slow]
TOKENS = {f"token-{k}": f"node-{k}" for k in range(8)}


@pytest.fixture
def service() -> Iterator[Receiver]:
    """A stand-in for the service that knows eight nodes and the relay."""
    receiver = Receiver()
    receiver.token, receiver.node_tokens = "relay-token", TOKENS
    with receiver:
        yield receiver


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _all_arrived(service: Receiver, node: RelayedNode, last: int) -> bool:
    return sorted(service.frames[node.name, node.spool.stream]) == list(range(1, last + 1))


def test_frames_of_many_nodes_arrive_in_bundles(service: Receiver, tmp_path: Path) -> None:
    with (
        running_relay(service.url, tmp_path / "relay") as relay,
        running_nodes(TOKENS, tmp_path, relay.url, service.url) as nodes,
    ):
        for last in range(1, 11):
            for node in nodes:
                node.put()
            service.wait(lambda _, last=last: all(_all_arrived(service, node, last) for node in nodes), 60)
        assert max(map(len, service.bundles.values())) > 1, "frames of different nodes share a bundle"
        assert {key[0] for key in service.bundles} == {"r1"}
        assert service.duplicates == 0
        assert relay.metric("frames_accepted_total") == 80
        assert relay.metric("bundles_sent_total") == len(service.bundles)
        _until(lambda: relay.metric("spool_entries") == 0)
        assert '"status":"ok"' in relay.get("/healthz")
        assert '"status":"ok"' in relay.get("/readyz")
        assert relay.stop() == 0


def test_a_killed_relay_loses_nothing_and_nodes_go_directly_and_come_back(
    service: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_route, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(frame_route, "PROBE_SECONDS", 1.0)
    with (
        running_relay(service.url, tmp_path / "relay") as relay,
        running_nodes(TOKENS, tmp_path, relay.url, service.url) as nodes,
    ):
        ended = threading.Event()
        writer = threading.Thread(target=_put_until, args=(nodes, ended))
        writer.start()
        for _ in range(3):
            before = len(service.bundles)
            service.wait(lambda r, least=before + 3: len(r.bundles) >= least, 60)
            relay.kill()
            direct = len(service.arrived)
            service.wait(lambda r, least=direct + 40: len(r.arrived) >= least, 60)  # without a relay
            relay.start()
            back = len(service.bundles)
            service.wait(lambda r, least=back + 3: len(r.bundles) >= least, 60)
        ended.set()
        writer.join()
        for node in nodes:
            assert node.spool.wait_empty(60)
        _until(lambda: relay.metric("spool_entries") == 0)
        for node in nodes:
            assert _all_arrived(service, node, node.put() - 1), "everything arrived, whichever way"
            assert node.spool.dropped == node.spool.rejected == 0


def _put_until(nodes: list[RelayedNode], ended: threading.Event) -> None:
    while not ended.wait(0.05):
        for node in nodes:
            node.put()


def test_frames_wait_in_the_relay_while_the_service_is_away(service: Receiver, tmp_path: Path) -> None:
    with (
        running_relay(service.url, tmp_path / "relay") as relay,
        running_nodes(TOKENS, tmp_path, relay.url, service.url) as nodes,
    ):
        for node in nodes:
            node.put()
        service.wait(lambda _: all(_all_arrived(service, node, 1) for node in nodes))
        service.away()
        for _ in range(5):
            for node in nodes:
                node.put()
        for node in nodes:
            assert node.spool.wait_empty(60), "the relay takes them"
        assert relay.metric("spool_entries") == 40
        relay.kill()
        relay.start()
        assert relay.metric("spool_entries") == 40, "they are on disk"
        service.start()
        service.wait(lambda _: all(_all_arrived(service, node, 6) for node in nodes), 60)


def test_a_node_sends_its_own_frames_only(service: Receiver, tmp_path: Path) -> None:
    strangers = {"unknown": "node-9", "token-0": "node-1", "relay-token": "node-2"}
    with running_relay(service.url, tmp_path / "relay") as relay:
        for token, name in strangers.items():
            with running_nodes({token: name}, tmp_path / token, relay.url, relay.url) as nodes:
                nodes[0].put()
                _until(lambda node=nodes[0]: bool(node.sender.trouble) or node.spool.rejected == 1)
        text = relay.get("/metrics")
        assert "frames_accepted_total 0" in text
        assert 'requests_refused_total{reason="unauthorized"}' in text
        assert 'requests_refused_total{reason="wrong-node"}' in text
        with pytest.raises(RetryableError, match="401 this token is not the credential of a node"):
            Transport(relay.url, "unknown").send_frame(b"")
        with pytest.raises(RetryableError, match="404 a relay has no PUT /v1/nodes/x: ask the service"):
            Transport(relay.url, "token-0").json("PUT", "/nodes/x", {})
    assert not service.all_frames


def test_a_second_relay_on_the_same_directory_is_refused(service: Receiver, tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir(mode=0o700)
    with (
        Spool(tmp_path / "relay" / "frames"),
        pytest.raises(AssertionError, match="in use by another process"),
        running_relay(service.url, tmp_path / "relay"),
    ):
        pass


def test_the_node_daemon_sends_frames_through_the_relay_and_all_else_directly(
    service: Receiver, tmp_path: Path
) -> None:
    certificate, key = (authority := Authority(tmp_path / "authority")).issue("relay")
    tls = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with running_relay(service.url, tmp_path / "relay", "relay-token", *tls) as relay:
        command = [sys.executable, "-m", "mainstay", "node", "--service", service.url, "--name", "node-1"]
        command += ["--relay", relay.url, "--ca-file", str(authority.file), "--data-dir", str(tmp_path / "node")]
        command += ["--interval", "0.1", "--kernel-log", "off"]
        with (tmp_path / "node.log").open("w") as log:
            child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "MAINSTAY_TOKEN": "token-1"}, stderr=log)
        try:
            service.wait(lambda r: len(r.bundles) >= 3 and "node-1" in r.reports and len(r.events) >= 1, 60)
        finally:
            child.terminate()
            assert child.wait(60) == 0
    with Spool(tmp_path / "node" / "frames") as spool:
        assert len(spool) == spool.rejected == 0
    assert {key[0] for key in service.bundles} == {"r1"}
    assert {frame.subject for frame in service.all_frames} == {"node-1"}
    assert (tmp_path / "relay").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("relay",), "no token: pass --token-file"),
        (("relay", "--token", "t", "--host", "0.0.0.0"), "not a loopback address"),
        (("relay", "--token", "t", "--tls-key", "x"), "TLS needs both"),
        (("relay", "--token", "t", "--gather", "11"), "--gather 11.0 must be from 0 to 10 s"),
        (("relay", "--token", "t", "--spool-bytes", "9"), "--spool-bytes 9 must be at least 16777216"),
        (("relay", "--token", "t", "--name", "a b"), "--name 'a b' is not a legal id"),
        (("relay", "--token", "t", "--service", "x"), "service URL 'x' must look like"),
        (("relay", "--token", "t", "--ca-file", "nothing.pem"), "nothing.pem is not a file"),
        (("node", "--token", "t", "--relay", "x"), "--relay: service URL 'x' must look like"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run_here(*arguments, "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
