"""The processes that are, or may become, ranks of this node: started warm, connected, given a rank, watched.

Invariant: a rank has at most one process here, and a process at most one rank; a process that is fenced is reaped
before its end is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.node.child_processes import ForkServerClient, ForkServerError
from mainstay.recovery.node.process_control import ChildProcess, ExitStatus
from mainstay.recovery.node.worker_output import OutputTail
from mainstay.recovery.protocol.wire import encode, from_worker
from mainstay.recovery.protocol.worker_messages import Assign, FromWorker, WorkerHello, WorkerMessage

log = logging.getLogger("mainstay.launcher")

_RECEIVE_BYTES: Final = 256 * 1024
_UCRED: Final = struct.Struct("3i")


class Worker:
    """One worker process: warming, waiting, or holding a rank."""

    def __init__(self, child: ChildProcess, tail: OutputTail) -> None:
        self.child = child
        self.tail = tail
        self.rank: int | None = None
        self.slot: int | None = None
        """Its LOCAL_RANK."""
        self.socket: socket.socket | None = None
        self.ended_by_us = False
        self.dying = False
        """Another program is ending it, and that was reported."""
        self._outbox: deque[bytes] = deque()

    @property
    def ready(self) -> bool:
        return self.socket is not None and self.rank is None and self.child.alive

    def send(self, message: WorkerMessage) -> None:
        """Queue for the worker. A worker that does not listen holds back its own messages only."""
        self._outbox.append(encode(message))
        self.flush()

    def flush(self) -> None:
        """Send what is queued as far as the socket takes it."""
        loop = asyncio.get_running_loop()
        sock = self.socket
        while sock is not None and self._outbox:
            try:
                sock.send(self._outbox[0])
            except BlockingIOError:
                loop.add_writer(sock, self.flush)
                return
            except OSError:  # it is dying; its exit tells the rest
                self._outbox.clear()
                break
            self._outbox.popleft()
        if sock is not None and sock.fileno() >= 0:  # a process that is dying may have hung up already
            loop.remove_writer(sock)


@dataclass(eq=False)
class Workers:
    """All worker processes of one launcher. Belongs to the running event loop."""

    _directory: Path
    _token: str
    _fork_server: ForkServerClient
    _: KW_ONLY
    on_message: Callable[[Worker, FromWorker], None]
    """Called with each message of a worker that holds a rank."""
    on_exit: Callable[[Worker, ExitStatus], None]
    """Called when a worker has been reaped."""
    on_standby: Callable[[int], None]
    """Called when the number of ready standbys changed."""

    def __post_init__(self) -> None:
        self._path = self._directory / "launcher.sock"
        self._all: dict[int, Worker] = {}
        self._early: dict[int, socket.socket] = {}
        """Connections of processes whose birth the fork server has not announced yet."""
        self._forking = 0
        self._excluded: set[int] = set()
        """LOCAL_RANKs whose device computes wrongly."""
        self._wanted: dict[int, Callable[[Worker], None]] = {}
        """Rank -> who is to have the next process that is warm; in the order in which they asked."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.closing = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._accept)

    # Asking

    def of_rank(self, rank: int) -> Worker | None:
        """The living process that holds ``rank``."""
        return next((w for w in self._all.values() if w.rank == rank and w.child.alive), None)

    def holders(self) -> list[Worker]:
        """Every living process that holds a rank."""
        return [w for w in self._all.values() if w.rank is not None and w.child.alive]

    @property
    def standbys(self) -> int:
        return sum(w.ready for w in self._all.values())

    def free_slot(self, places: int) -> int:
        """The lowest free LOCAL_RANK; one with an excluded device only if all ``places`` are taken."""
        taken = {w.slot for w in self.holders()}
        free = [n for n in range(max(places, len(taken) + 1)) if n not in taken]
        sound = [n for n in free if n not in self._excluded]
        if not sound:
            log.warning("DEGRADED local rank %d computed wrongly and is used again: there is no other place", free[0])
        return (sound or free)[0]

    # Doing

    def keep(self, idle: int) -> None:
        """Start as many processes as are missing for ``idle`` standbys."""
        waiting = sum(w.rank is None and w.child.alive for w in self._all.values()) + self._forking
        for _ in range(idle + len(self._wanted) - waiting):
            self._forking += 1
            task = self._loop.create_task(self._fork_worker())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def assign_rank(self, rank: int, give: Callable[[Worker], None]) -> None:
        """Call ``give`` with a ready standby for ``rank``: at once if there is one, else when the next is warm.

        Who asks again before that takes the place of who asked first, or the rank would get two processes.
        """
        standby = next((w for w in self._all.values() if w.ready), None)
        if standby is None:
            self._wanted[rank] = give
            self.keep(0)
            return
        give(standby)
        self.on_standby(self.standbys)

    def assign(self, worker: Worker, order: Assign, slot: int) -> None:
        worker.rank, worker.slot = order.rank, slot
        worker.tail.label = f"rank {order.rank}"
        worker.send(order)

    async def fence(self, ranks: tuple[int, ...], exclude: tuple[int, ...] = ()) -> list[int]:
        """SIGKILL and reap the processes of ``ranks``; the ranks that could not be reaped in time.

        The devices of those in ``exclude`` are not used again while there are others.
        """
        self._excluded |= {w.slot for w in self.holders() if w.rank in exclude and w.slot is not None}
        for rank in ranks:
            self._wanted.pop(rank, None)
        doomed = [w for w in self.holders() if w.rank in ranks]
        for worker in doomed:
            worker.ended_by_us = True
        results = await asyncio.gather(*(w.child.kill() for w in doomed))
        return [w.rank for w, gone in zip(doomed, results, strict=True) if not gone and w.rank is not None]

    async def stop(self, patience: float) -> None:
        """End every worker; ranks get ``patience`` seconds after SIGTERM."""
        self.closing = True
        for task in self._tasks:
            task.cancel()
        living = [w for w in self._all.values() if w.child.alive]
        for worker in living:
            worker.ended_by_us = True
        await asyncio.gather(*(w.child.stop(patience if w.rank is not None else 0.0) for w in living))
        self._loop.remove_reader(self._listener)
        self._listener.close()

    # Life of a worker

    async def _fork_worker(self) -> None:
        tail = OutputTail("standby")
        environment = {"MAINSTAY_LAUNCHER_SOCKET": str(self._path), "MAINSTAY_LAUNCHER_TOKEN": self._token}
        try:
            child = await self._fork_server.fork_worker("worker", environment, tail)
        except ForkServerError:
            return  # the launcher watches the fork server itself
        finally:
            self._forking -= 1
        worker = Worker(child, tail)
        self._all[child.pid] = worker
        child.exit.add_done_callback(lambda done: self._gone(worker, done.result()))
        early = self._early.pop(child.pid, None)
        if early is not None:
            self._greet(early, child.pid)

    def _gone(self, worker: Worker, status: ExitStatus) -> None:
        del self._all[worker.child.pid]
        if worker.socket is not None:
            self.read_rest(worker)
            self._forget(worker.socket)
            worker.socket = None
        self.on_exit(worker, status)

    def read_rest(self, worker: Worker) -> None:
        """What it said before it died is heard before its death is: a script's error explains the exit."""
        while worker.socket is not None and self._receive(worker, worker.socket):
            pass

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            pid, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            self._loop.add_reader(connection, self._greet, connection, pid)

    def _greet(self, connection: socket.socket, pid: int) -> None:
        """The first message must be a hello of one of our own processes."""
        self._loop.remove_reader(connection)
        worker = self._all.get(pid)
        if worker is None and self._forking:
            self._early[pid] = connection
            return
        try:
            hello = from_worker.decode(connection.recv(_RECEIVE_BYTES))
        except (OSError, *UNREADABLE):
            hello = None
        if worker is None or not isinstance(hello, WorkerHello) or hello.token != self._token:
            connection.close()
            return
        worker.socket = connection
        self._loop.add_reader(connection, self._receive, worker, connection)
        if self._wanted:
            self._wanted.pop(next(iter(self._wanted)))(worker)
        self.on_standby(self.standbys)

    def _receive(self, worker: Worker, connection: socket.socket) -> bool:
        """Handle one message; False when there is none."""
        try:
            body = connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            body = b""
        if not body:
            self._forget(connection)
            return False
        try:
            message = from_worker.decode(body)
        except UNREADABLE:  # the script has got hold of our socket: nothing it says can be believed
            worker.child.signal(9)
            return False
        if worker.rank is not None:
            self.on_message(worker, message)
        return True

    def _forget(self, connection: socket.socket) -> None:
        if connection.fileno() >= 0:
            self._loop.remove_reader(connection)
            self._loop.remove_writer(connection)
            connection.close()
