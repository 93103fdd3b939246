"""A worker that is dying has hung up before it is reaped: what is still sent to it is lost, and nothing else is."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from recovery.launcher.children import Nursery
from recovery.launcher.output import Tail
from recovery.launcher.proc import Child
from recovery.launcher.worker_messages import Fence
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


async def _killed() -> bool:
    return True
