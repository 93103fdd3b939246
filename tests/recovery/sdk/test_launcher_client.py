"""A worker's line to its launcher: a fence is heard while the script is busy, and a busy launcher slows no step."""

from __future__ import annotations

import json
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstay.recovery.protocol.wire import encode, from_worker
from mainstay.recovery.protocol.worker_messages import (
    DumpFlightRecorder,
    FenceRank,
    FlightRecorderDump,
    Regroup,
    StepRecord,
    WorkerHello,
)
from mainstay.recovery.sdk.launcher_client import LauncherClient, LauncherClientError


@pytest.fixture
def ends() -> Iterator[tuple[LauncherClient, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = LauncherClient(near)
    ended = threading.Event()
    link.on_orphaned = ended.set
    yield link, far
    far.close()
    assert ended.wait(60.0)
    near.close()


def order(generation: int) -> Regroup:
    return Regroup(generation=generation, store_host="127.0.0.1", store_port=1)


def test_a_fence_is_heard_at_once(ends: tuple[LauncherClient, socket.socket]) -> None:
    link, launcher = ends
    heard = threading.Event()
    link.on_fence = lambda _: heard.set()
    launcher.send(encode(FenceRank(generation=3)))
    assert heard.wait(60.0)
    assert link.fence == 3
    assert link.wait_fence(2, 5.0) == 3
    assert link.wait_fence(3, 0.0) == 0
    launcher.send(encode(FenceRank(generation=2)))  # late: a fence never goes back
    launcher.send(encode(order(3)))
    assert link.wait_regroup(3) == order(3)
    assert link.fence == 3


def test_a_higher_fence_ends_the_wait_for_an_order(ends: tuple[LauncherClient, socket.socket]) -> None:
    link, launcher = ends
    launcher.send(encode(order(4)))
    launcher.send(encode(FenceRank(generation=5)))
    assert link.wait_fence(4, 5.0) == 5
    assert link.wait_regroup(4) is None


def test_what_torch_has_recorded_is_sent_on_request(ends: tuple[LauncherClient, socket.socket]) -> None:
    _, launcher = ends
    launcher.send(encode(DumpFlightRecorder(request=4)))
    sent = from_worker.decode(launcher.recv(65536))
    assert isinstance(sent, FlightRecorderDump)
    assert (sent.request, sent.problem) == (4, "")
    assert json.loads(zlib.decompress(sent.content))["version"]


def test_step_records_are_dropped_rather_than_waited_for(ends: tuple[LauncherClient, socket.socket]) -> None:
    link, launcher = ends
    record = StepRecord(generation=1, epoch=1, step_time=0.1, compute_time=0.1, snapshot_blocked=0.0, end_ns=1)
    for _ in range(10_000):
        link.send_if_free(record)
    assert link.dropped > 0
    assert from_worker.decode(launcher.recv(4096)) == record


def test_no_launcher(tmp_path: Path) -> None:
    with pytest.raises(LauncherClientError, match="no launcher listens"):
        LauncherClient.connect(tmp_path / "nothing.sock")


def test_a_launcher_that_has_gone_is_said(ends: tuple[LauncherClient, socket.socket]) -> None:
    link, launcher = ends
    launcher.close()
    with pytest.raises(LauncherClientError, match="does not take messages"):
        link.send(WorkerHello(token="t", pid=1))
    link.send_if_free(WorkerHello(token="t", pid=1))
