"""What a rank says of itself while its training thread does something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from mainstay.probes.core_types import StepPhase
from mainstay.recovery.protocol.wire import from_worker
from mainstay.recovery.protocol.worker_messages import ProgressReport, StepRecord
from mainstay.recovery.sdk.call_tracker import Call, CallCount
from mainstay.recovery.sdk.launcher_client import LauncherClient
from mainstay.recovery.sdk.meter import StepMeter
from mainstay.recovery.sdk.progress import ProgressThread


@pytest.fixture
def ends() -> Iterator[tuple[LauncherClient, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = LauncherClient(near)
    ended = threading.Event()
    link.on_orphaned = ended.set
    far.settimeout(10.0)
    yield link, far
    far.close()
    assert ended.wait(60.0)
    near.close()


def receive(far: socket.socket) -> object:
    return from_worker.decode(far.recv(65536))


def test_it_speaks_though_nobody_calls_it(ends: tuple[LauncherClient, socket.socket]) -> None:
    link, far = ends
    meter = StepMeter(torch.nn.Linear(2, 2))
    meter.traffic.enter({"world": [0, 1], "dp": [0, 1]})
    thread = ProgressThread(link, meter, lambda: (2, 7))
    first = receive(far)
    assert isinstance(first, ProgressReport)
    assert (first.generation, first.step, first.phase, first.in_call) == (2, 7, StepPhase.WARM_UP, 0.0)
    assert first.enqueued == first.completed == {"world": 0, "dp": 0}
    meter.traffic.current = Call("allreduce", "dp", None, 0.0, CallCount())
    said = receive(far)
    assert isinstance(said, ProgressReport)
    assert said.in_call > 0.0
    assert said.call == "allreduce dp"
    meter.begin_step(8)
    meter.end(2, 8, digests=False)
    assert isinstance(receive(far), StepRecord | ProgressReport)  # records that were held back leave with it
    thread.stop()
    meter.close()


def test_a_call_between_two_ranks_names_the_other() -> None:
    assert str(Call("recv", "pp", 3, 0.0, CallCount())) == "recv pp 3"
    assert str(Call("allreduce", None, None, 0.0, CallCount())) == "allreduce other"
