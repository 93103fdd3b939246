"""A launcher answers each check, also if the process that carries it out hangs, ends early, or sends garbage."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from mainstay.detectors.localize.model import DeviceCheck
from mainstay.probes.benchmarks.pair_protocol import PAIR, PairTask, Role, bandwidths
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState
from mainstay.recovery.node import node_check
from mainstay.recovery.node.child_processes import ForkServerClient
from mainstay.recovery.node.node_check import NodeChecker
from mainstay.recovery.node.node_check_process import serve
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import CheckNode, NodeChecked
from mainstay.recovery.protocol.node_check_messages import CheckAnswer, CheckOrder, decode_answer, decode_order, encode

LATE = DeviceCheck(device="cuda:0", problem="it gave no result")
GOOD = DeviceCheck(device="cuda:0", cohort="H100", digest="a")
TASK = PairTask(
    id="preflight-1", kind="pair", validation_id="", benchmark=PAIR, role=Role.LISTEN, peer="b", address="127.0.0.1",
    port=0, sizes=(4096,), seconds=20.0, deadline_at=1.0,
)  # fmt: skip
RESULT = BenchmarkResult(
    benchmark=PAIR, state=BenchmarkState.TIMEOUT, error="b never came", seconds=1.0, device="host", metrics=()
)
Process = Callable[[socket.socket, CheckOrder], None]


class Child:
    """A process that was forked; it counts how often it was killed."""

    pid = 7
    kills = 0

    async def kill(self) -> bool:
        """End it."""
        self.kills += 1
        return True


class PretendedForkServer:
    """It forks a thread that behaves as told, and keeps the other end of its socket open while ``hangs``."""

    def __init__(self, process: Process, *, hangs: bool = False) -> None:
        self.child = Child()
        self._process, self._hangs = process, hangs
        self._line: socket.socket | None = None

    async def fork_worker(self, role: str, environment: Any, tail: Any, extra: socket.socket) -> Child:
        """Start the thread."""
        assert role == "check"
        line = self._line = extra.dup()

        def run() -> None:
            self._process(line, decode_order(line.recv(65536)))
            if not self._hangs:
                line.close()

        threading.Thread(target=run).start()
        return self.child

    def close(self) -> None:
        """End a process that hangs."""
        if self._line is not None:
            self._line.close()


def checked(
    options: RunOptions, process: Process, pair: PairTask | None = None, *, hangs: bool = False
) -> list[NodeChecked]:
    """What the launcher answers."""
    answers: list[NodeChecked] = []

    async def work() -> None:
        server = PretendedForkServer(process, hangs=hangs)
        checker = NodeChecker(options, cast("ForkServerClient", server), cast("Any", answers.append))
        await checker.run(CheckNode(request=3, pair=pair))
        assert server.child.kills == 1
        server.close()

    asyncio.run(work())
    assert {answer.request for answer in answers} == {3}
    return answers


def says(*parts: CheckAnswer) -> Process:
    def process(line: socket.socket, order: CheckOrder) -> None:
        for part in parts:
            line.send(encode(part))

    return process


def test_a_result_replaces_the_announcement_of_its_device(options: RunOptions) -> None:
    other = DeviceCheck(device="cuda:1", problem="it gave no result")
    (answer,) = checked(options, says(CheckAnswer(devices=(LATE, other)), CheckAnswer(devices=(GOOD,))))
    assert answer.devices == (GOOD, other)


def test_a_process_that_hangs_is_ended_and_the_device_named(options: RunOptions, monkeypatch: Any) -> None:
    monkeypatch.setattr(node_check, "DEVICE_SECONDS", 0.1)
    monkeypatch.setattr(node_check, "GRACE_SECONDS", 0.1)
    (answer,) = checked(options, says(CheckAnswer(devices=(LATE,))), hangs=True)
    assert answer.devices == (LATE,)
    assert answer.problem == "the check has no result after 0.2 s"


@pytest.mark.parametrize("pair", [None, TASK])
def test_a_process_that_ends_early_or_sends_garbage_gives_a_reason(options: RunOptions, pair: PairTask | None) -> None:
    (answer,) = checked(options, says(), pair)
    assert answer.problem == "the process that checks the node ended"
    (answer,) = checked(options, lambda line, _: cast("None", line.send(b"garbage")), pair)
    assert answer.problem.startswith("the process that checks the node ended: ")


def test_a_side_of_a_pair_announces_its_port_and_then_its_result(options: RunOptions) -> None:
    first, second = checked(options, says(CheckAnswer(port=9), CheckAnswer(pair=RESULT)), TASK)
    assert (first.port, first.pair) == (9, None)
    assert second.pair == RESULT


def test_the_process_knows_the_node_and_how_many_gpus_ranks_may_get(options: RunOptions, monkeypatch: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    seen: list[CheckOrder] = []
    checked(dataclasses.replace(options, nproc=2, spares=1), lambda _, order: seen.append(order))
    assert [(order.node, order.devices) for order in seen] == [("node-0", 3)]


# The process


def started(order: CheckOrder) -> tuple[socket.socket, threading.Thread]:
    """The process of a check as a thread, and the launcher's end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=serve, args=(theirs.detach(),))
    thread.start()
    ours.send(encode(order))
    return ours, thread


def parts(line: socket.socket) -> list[CheckAnswer]:
    return [decode_answer(body) for body in iter(lambda: line.recv(65536), b"")]


def test_a_processor_repeats_its_bits(monkeypatch: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    line, thread = started(CheckOrder(node="a", devices=1, seconds=1.0))
    with line:
        announced, result = parts(line)
        thread.join()
    assert announced.devices == (DeviceCheck(device="cpu", problem="it gave no result"),)
    (device,) = result.devices
    assert device.digest
    assert device.cohort
    assert device.repeats
    assert not device.problem


def test_two_sides_meet_on_the_port_that_one_announces_though_their_clocks_differ() -> None:
    listening, one = started(CheckOrder(node="a", devices=1, seconds=20.0, pair=TASK))
    with listening:
        port = decode_answer(listening.recv(65536)).port
        task = msgspec.structs.replace(TASK, role=Role.CONNECT, peer="a", port=port)
        connecting, other = started(CheckOrder(node="b", devices=1, seconds=20.0, pair=task))
        with connecting:
            results = [part.pair for line in (listening, connecting) for part in parts(line)]
            one.join()
            other.join()
    assert [result.state for result in results if result] == [BenchmarkState.OK] * 2
    assert all(bandwidths(result)[4096] > 0 for result in results if result)


def test_a_peer_that_does_not_come_is_a_result_too() -> None:
    line, thread = started(CheckOrder(node="a", devices=1, seconds=0.2, pair=TASK))
    with line:
        _, answer = parts(line)
        thread.join()
    assert answer.pair is not None
    assert answer.pair.state is BenchmarkState.TIMEOUT
    assert "b never came" in str(answer.pair.error)
