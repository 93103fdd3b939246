"""A launcher's store process: started where the coordinator is, replaced by an empty one when it is asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from recovery.launcher.children import Nursery, NurseryError
from recovery.launcher.output import Tail
from recovery.launcher.proc import Child, ExitStatus


class StoreHost:
    """One a launcher; it has a process only once ``open`` was called. ``ended`` is called when that ends by itself."""

    def __init__(self, nursery: Nursery, ended: Callable[[ExitStatus], None]) -> None:
        self._nursery = nursery
        self._ended = ended
        self._child: Child | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def pids(self) -> set[int]:
        return {self._child.pid} if self._child is not None else set()

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
            store = self._child = await self._nursery.hatch("store", {}, Tail("store"), listener)
        except NurseryError:
            return  # the launcher watches the nursery itself
        finally:
            listener.close()
        status = await asyncio.shield(store.exit)
        if store is self._child and not self._closing:
            self._ended(status)
