"""A worker that is dying has hung up before it is reaped: what is still sent to it is lost, and nothing else is."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import cast

from recovery.launcher.messages import Fence
from recovery.launcher.output import Tail
from recovery.launcher.proc import Child
from recovery.launcher.workers import Worker


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
