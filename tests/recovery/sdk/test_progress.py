"""What a rank says of itself while its training thread does something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from probes.words import StepPhase
from recovery.launcher.wire import from_worker
from recovery.launcher.worker_messages import Progress, StepRecord
from recovery.sdk.link import Link
from recovery.sdk.meter import StepMeter
from recovery.sdk.progress import ProgressThread
from recovery.sdk.traffic import Call


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = Link(near)
    ended = threading.Event()
    link.on_orphaned = ended.set
    far.settimeout(10.0)
    yield link, far
    far.close()
    assert ended.wait(60.0)
    near.close()


def hear(far: socket.socket) -> object:
    return from_worker.decode(far.recv(65536))


def test_it_speaks_though_nobody_calls_it(ends: tuple[Link, socket.socket]) -> None:
    link, far = ends
    meter = StepMeter(torch.nn.Linear(2, 2))
    meter.traffic.enter(0, {"world": [0, 1], "dp": [0, 1]})
    thread = ProgressThread(link, meter, lambda: (2, 7))
    first = hear(far)
    assert isinstance(first, Progress)
    assert (first.generation, first.step, first.phase, first.in_call) == (2, 7, StepPhase.WARM_UP, 0.0)
    assert first.enqueued == first.completed == {"world": 0, "dp": 0}
    meter.traffic.current = Call("allreduce", "dp", None, 0.0)
    said = hear(far)
    assert isinstance(said, Progress)
    assert said.in_call > 0.0
    assert said.call == "allreduce dp"
    meter.begin(8)
    meter.end(2, 8, digests=False)
    assert isinstance(hear(far), StepRecord | Progress)  # records that were held back leave with it
    thread.stop()
    meter.close()


def test_a_call_between_two_ranks_names_the_other() -> None:
    assert str(Call("recv", "pp", 3, 0.0)) == "recv pp 3"
    assert str(Call("allreduce", None, None, 0.0)) == "allreduce other"
