"""A launcher's store process: started where the coordinator is, replaced by an empty one when it is asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from mainstay.recovery.node.child_processes import ForkServerClient, ForkServerError
from mainstay.recovery.node.process_control import ChildProcess, ExitStatus
from mainstay.recovery.node.worker_output import OutputTail


class StoreHost:
    """One a launcher; it has a process only once ``open`` was called. ``ended`` is called when that ends on its own."""

    def __init__(self, fork_server: ForkServerClient, ended: Callable[[ExitStatus], None]) -> None:
        self._fork_server = fork_server
        self._ended = ended
        self._child: ChildProcess | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def open(self, host: str) -> tuple[str, int]:
        """An empty store on ``host``, in the place of the one before: bound at once, served as soon as it is warm.

        Raises:
            OSError: this node cannot listen there.
        """
        listener = socket.create_server((host, 0), backlog=1024)
        address = listener.getsockname()
        task = asyncio.get_running_loop().create_task(self._keep(listener))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._child is not None:
            await self._child.kill()

    async def _keep(self, listener: socket.socket) -> None:
        before, self._child = self._child, None
        if before is not None:
            await before.kill()
        try:
            store = self._child = await self._fork_server.fork_worker("store", {}, OutputTail("store"), listener)
        except ForkServerError:
            return  # the launcher watches the fork server itself
        finally:
            listener.close()
        status = await asyncio.shield(store.exit)
        if store is self._child and not self._closing:
            self._ended(status)
