"""Real ranks over gloo, forked from the test: each runs a function and sends back what it returns."""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from mainstay.recovery.protocol.worker_messages import StepRecord, Transfers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(work: Callable[..., Any], world: int, *arguments: Any, seconds: float = 60.0) -> list[Any]:
    """What ``work(rank, *arguments)`` returned in each of ``world`` processes that have met.

    Raises:
        AssertionError: one of them failed; carries its traceback.
    """
    port = free_port()
    ends = [Pipe() for _ in range(world)]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    pids = [
        _fork(partial(work, rank, *arguments), meeting | {"RANK": str(rank)}, ends[rank][1]) for rank in range(world)
    ]
    try:
        answers = [_hear(near, seconds) for near, _ in ends]
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    for ok, answer in answers:
        assert ok, answer
    return [answer for _, answer in answers]


def _hear(end: Connection, seconds: float) -> tuple[bool, Any]:
    if not end.poll(seconds):
        return False, "no word from a rank"
    found: tuple[bool, Any] = end.recv()
    return found


def _fork(work: Callable[[], Any], environment: dict[str, str], end: Connection) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        torch.set_num_threads(1)
        os.environ |= environment
        dist.init_process_group("gloo")
        end.send((True, work()))
        dist.barrier()  # no rank leaves while others are in their last call
    except BaseException:  # noqa: BLE001 - told to the test
        end.send((False, traceback.format_exc()))
    finally:
        os._exit(0)


def records(found: list[Any]) -> list[StepRecord]:
    return [message for message in found if isinstance(message, StepRecord)]


def transfers(found: list[Any]) -> list[Transfers]:
    return [message for message in found if isinstance(message, Transfers)]


class Peer:
    """A rank in a process of its own, forked: it does what it is given and says how it went."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        near, far = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                torch.set_num_threads(1)
                work(far, *arguments)
            except BaseException as error:  # noqa: BLE001 - told to the test
                far.send(f"{type(error).__name__}: {error}")
            finally:
                os._exit(0)
        far.close()
        self.says = near

    def receive(self, seconds: float = 30.0) -> Any:
        assert self.says.poll(seconds), "no word from the peer"
        return self.says.recv()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def end(self) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            self.kill()
        self.says.close()
