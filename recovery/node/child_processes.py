"""How a launcher starts processes: workers and the store from the fork server, the agent as a program of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from mainstay.recovery.memory.slot_copy import COPY_ENVIRONMENT
from mainstay.recovery.node.fork_server import ForkRequest, decode_reply, encode
from mainstay.recovery.node.process_control import ChildProcess
from mainstay.recovery.node.worker_output import OutputPump, OutputTail


class ForkServerError(RuntimeError):
    """The fork server is gone; its last messages are in the output."""


class ForkServerClient:
    """The launcher's side of ``mainstay.recovery.node.fork_server``. Belongs to the running event loop."""

    def __init__(self, pump: OutputPump, modules: tuple[str, ...] = ()) -> None:
        self._pump = pump
        self._loop = asyncio.get_running_loop()
        self.warm: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[ChildProcess]] = {}
        self._next = 1
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            self.child = start(
                ["-m", "mainstay.recovery.node.fork_server", str(theirs.fileno()), str(os.getpid()), *modules],
                OutputTail("fork_server"),
                pump,
                pass_fds=(theirs.fileno(),),
                environment=_quiet_single_thread(),
            )
        self._loop.add_reader(self._socket, self._hear)

    @property
    def forking(self) -> bool:
        """A process may exist that has no ``ChildProcess`` yet."""
        return bool(self._waiting)

    async def fork_worker(
        self, role: str, environment: Mapping[str, str], tail: OutputTail, extra: socket.socket | None = None
    ) -> ChildProcess:
        """A new process, warm from its first instant.

        Raises:
            ForkServerError: the fork server has died.
        """
        await asyncio.shield(self.warm)
        number, self._next = self._next, self._next + 1
        order = encode(ForkRequest(number=number, role=role, environment=dict(environment)))
        with self._pump.open(tail) as (out, err):
            handed = [out, err] if extra is None else [out, err, extra.fileno()]
            try:
                socket.send_fds(self._socket, [order], handed)
            except OSError as error:
                raise ForkServerError(f"the fork server is gone: {error}") from error
        reply: asyncio.Future[ChildProcess] = self._loop.create_future()
        self._waiting[number] = reply
        return await reply

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _hear(self) -> None:
        try:
            body = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            body = b""
        if not body:
            self._gone()
            return
        reply = decode_reply(body)
        if reply.number == 0:
            self.warm.set_result(None)
        elif not (waiting := self._waiting.pop(reply.number)).done():
            waiting.set_result(ChildProcess(reply.pid))  # a caller that was canceled: it ends with the fork server

    def _gone(self) -> None:
        self._loop.remove_reader(self._socket)
        error = ForkServerError("the fork server ended before it was asked to")
        futures: list[asyncio.Future[Any]] = [self.warm, *self._waiting.values()]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # only a waiting caller receives it
        self._waiting.clear()


def start(
    arguments: list[str],
    tail: OutputTail,
    pump: OutputPump,
    *,
    pass_fds: tuple[int, ...] = (),
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> ChildProcess:
    """Run this interpreter with ``arguments`` in a process group of its own, its output going through ``pump``.

    ``stdout`` is a descriptor to use for its stdout instead.
    """
    with pump.open(tail) as (out, err):
        return ChildProcess.start(
            [sys.executable, *arguments],
            stdout=out if stdout is None else stdout,
            stderr=err,
            pass_fds=pass_fds,
            env={**os.environ, **(environment or {})},
        )


def _quiet_single_thread() -> dict[str, str]:
    """One thread a rank unless the user says otherwise, as torchrun does; snapshots copied past the caches.

    And no page of C++ frames for each connection that breaks: here that is nothing special.
    """
    wanted = COPY_ENVIRONMENT | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}
