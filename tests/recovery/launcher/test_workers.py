"""A worker that is dying has hung up before it is reaped: what is still sent to it is lost, and nothing else is."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from recovery.launcher.children import Nursery
from recovery.launcher.output import Tail
from recovery.launcher.proc import Child
from recovery.launcher.wire import encode
from recovery.launcher.worker_messages import Fence, WorkerHello
from recovery.launcher.workers import Worker, Workers


def worker_on(sock: socket.socket) -> Worker:
    worker = Worker(cast("Child", SimpleNamespace(alive=True, pid=1)), Tail("rank 0"))
    worker.socket, worker.rank = sock, 0
    return worker


def test_a_message_to_a_socket_that_was_closed_is_dropped() -> None:
    async def story() -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = worker_on(near)
        far.close()
        near.close()
        worker.send(Fence(generation=2))
        worker.send(Fence(generation=3))

    asyncio.run(story())


def test_a_message_to_a_peer_that_has_gone_is_dropped() -> None:
    async def story() -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = worker_on(near)
        far.close()
        worker.send(Fence(generation=2))
        near.close()

    asyncio.run(story())


def test_a_shunned_device_is_the_last_to_be_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        nothing = lambda *_: None  # noqa: E731
        workers = Workers(tmp_path, "t", cast("Nursery", None), on_message=nothing, on_exit=nothing, on_standby=nothing)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for pid, (rank, slot) in enumerate(((10, 0), (11, 1))):
            worker = worker_on(near)
            worker.child = cast("Child", SimpleNamespace(alive=True, pid=pid, kill=_killed))
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

    asyncio.run(story())


def test_a_rank_that_is_ordered_twice_gets_one_process_and_one_that_is_fenced_none(tmp_path: Path) -> None:
    async def story() -> None:
        greeted, given = asyncio.Event(), []
        nothing = {"on_message": lambda *_: None, "on_exit": lambda *_: None}
        workers = Workers(tmp_path, "t", cast("Nursery", Warming()), **nothing, on_standby=lambda _: greeted.set())
        workers.take(5, lambda _: given.append("first"))
        workers.take(6, lambda _: given.append("of another"))
        workers.take(5, lambda _: given.append("second"))
        await workers.fence((6,))
        worker = Worker(cast("Child", SimpleNamespace(alive=True, pid=os.getpid())), Tail("standby"))
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

    asyncio.run(asyncio.wait_for(story(), 60.0))


class Warming:
    """A nursery whose processes take for ever."""

    async def hatch(self, *_: object) -> Child:
        await asyncio.Event().wait()
        raise AssertionError


async def _killed() -> bool:
    return True
