"""A worker that is dying has hung up before it is reaped: what is still sent to it is lost, and nothing else is."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mainstay.recovery.node.child_processes import ForkServerClient
from mainstay.recovery.node.process_control import ChildProcess
from mainstay.recovery.node.worker_output import OutputTail
from mainstay.recovery.node.workers import Worker, Workers
from mainstay.recovery.protocol.wire import encode
from mainstay.recovery.protocol.worker_messages import FenceRank, WorkerHello


def worker_on(sock: socket.socket) -> Worker:
    worker = Worker(cast("ChildProcess", SimpleNamespace(alive=True, pid=1)), OutputTail("rank 0"))
    worker.socket, worker.rank = sock, 0
    return worker


def test_a_message_to_a_socket_that_was_closed_is_dropped() -> None:
    async def scenario() -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = worker_on(near)
        far.close()
        near.close()
        worker.send(FenceRank(generation=2))
        worker.send(FenceRank(generation=3))

    asyncio.run(scenario())


def test_a_message_to_a_peer_that_has_gone_is_dropped() -> None:
    async def scenario() -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = worker_on(near)
        far.close()
        worker.send(FenceRank(generation=2))
        near.close()

    asyncio.run(scenario())


def test_a_excluded_device_is_the_last_to_be_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        nothing = lambda *_: None  # noqa: E731
        workers = Workers(
            tmp_path, "t", cast("ForkServerClient", None), on_message=nothing, on_exit=nothing, on_standby=nothing
        )
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for pid, (rank, slot) in enumerate(((10, 0), (11, 1))):
            worker = worker_on(near)
            worker.child = cast("ChildProcess", SimpleNamespace(alive=True, pid=pid, kill=_killed))
            worker.rank, worker.slot = rank, slot
            workers._all[pid] = worker
        assert workers.free_slot(3) == 2
        assert await workers.fence((11,), (11,)) == []
        del workers._all[1]
        assert workers.free_slot(3) == 2
        assert not caplog.records
        assert workers.free_slot(2) == 1  # better a bad device than none
        assert "computed wrongly" in caplog.text
        workers._all.clear()
        await workers.stop(0.0)
        near.close()
        far.close()

    asyncio.run(scenario())


def test_a_rank_that_is_ordered_twice_gets_one_process_and_one_that_is_fenced_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        greeted, given = asyncio.Event(), []
        nothing = {"on_message": lambda *_: None, "on_exit": lambda *_: None}
        workers = Workers(
            tmp_path, "t", cast("ForkServerClient", Warming()), **nothing, on_standby=lambda _: greeted.set()
        )
        workers.assign_rank(5, lambda _: given.append("first"))
        workers.assign_rank(6, lambda _: given.append("of another"))
        workers.assign_rank(5, lambda _: given.append("second"))
        await workers.fence((6,))
        worker = Worker(cast("ChildProcess", SimpleNamespace(alive=True, pid=os.getpid())), OutputTail("standby"))
        workers._all[os.getpid()] = worker
        for _ in range(2):  # two processes become warm
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.connect(str(tmp_path / "launcher.sock"))
                line.send(encode(WorkerHello(token="t", pid=os.getpid())))
                await greeted.wait()
                greeted.clear()
        assert given == ["second"]
        workers._all.clear()
        await workers.stop(0.0)

    asyncio.run(asyncio.wait_for(scenario(), 60.0))


class Warming:
    """A fork server whose processes take for ever."""

    async def fork_worker(self, *_: object) -> ChildProcess:
        await asyncio.Event().wait()
        raise AssertionError


async def _killed() -> bool:
    return True
