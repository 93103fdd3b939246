"""A worker's line to its launcher, and the thread that listens to it while the script trains.

The listening thread never waits for the training thread: a fence must reach a rank that is stuck in a collective.
Without a launcher there is no link, and the SDK does what plain torch would.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.protocol.wire import encode, to_worker
from mainstay.recovery.protocol.worker_messages import (
    AgentRestarted,
    Assign,
    DumpFlightRecorder,
    FenceRank,
    MeasureSpeed,
    Regroup,
    ToWorker,
    WorkerMessage,
)
from mainstay.recovery.sdk import flight_recorder

_RECEIVE_BYTES = 256 * 1024
_EXIT_ORPHANED = 75
"""The launcher has gone: no launcher fences, restores or counts this rank any more, so it must not train on."""


class LauncherClientError(RuntimeError):
    """The launcher could not be reached or said something unexpected."""


class LauncherClient:
    """Messages to and from the launcher. Use ``LauncherClient.connect``."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._assignments: queue.SimpleQueue[Assign] = queue.SimpleQueue()
        self._news = threading.Condition()
        self.fence = 0
        """Generations below this number are over."""
        self._regroup: Regroup | None = None
        self.assignment: Assign | None = None
        self.on_fence: Callable[[int], object] = lambda _: None
        """Called in the listening thread, at once. Before there is a mesh there is nothing to leave."""
        self.on_orphaned: Callable[[], None] = lambda: os._exit(_EXIT_ORPHANED)
        """Called in the listening thread when the launcher has gone; the thread ends then, if anything still lives."""
        self.agent_back = threading.Event()
        """Set when the node has another agent than at the start."""
        self._speed_request = 0
        self.dropped = 0
        """Step records that the launcher was too busy to take."""
        threading.Thread(target=self._listen, name="mainstay-control", daemon=True).start()

    @classmethod
    def connect(cls, path: Path) -> LauncherClient:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(str(path))
        except OSError as error:
            sock.close()
            raise LauncherClientError(f"no launcher listens at {path}: {error}") from error
        return cls(sock)

    def send(self, message: WorkerMessage) -> None:
        """Send; a launcher that has gone is noticed by the listening thread."""
        try:
            self._socket.send(encode(message))
        except OSError as error:
            raise LauncherClientError(f"the launcher does not take messages any more: {error}") from error

    def send_if_free(self, message: WorkerMessage) -> None:
        """Send, or count and forget: a busy launcher must not slow a step."""
        try:
            self._socket.send(encode(message), socket.MSG_DONTWAIT)
        except OSError:
            self.dropped += 1

    def take_speed_request(self) -> int:
        """Number of the request to measure this rank's speed, once; 0: there is none."""
        request, self._speed_request = self._speed_request, 0
        return request

    def wait_assignment(self) -> Assign:
        self.assignment = self._assignments.get()
        return self.assignment

    def wait_fence(self, above: int, seconds: float | None) -> int:
        """The fence, once it is above ``above``; 0 if that does not happen in time."""
        with self._news:
            happened = self._news.wait_for(lambda: self.fence > above, seconds)
        return self.fence if happened else 0

    def wait_regroup(self, generation: int) -> Regroup | None:
        """The order to form ``generation``; None: a higher fence makes it pointless."""
        with self._news:
            self._news.wait_for(lambda: self.fence > generation or self._formed(generation))
            return None if self.fence > generation else self._regroup

    def _formed(self, generation: int) -> bool:
        return self._regroup is not None and self._regroup.generation >= generation

    def _listen(self) -> None:
        while True:
            try:
                body = self._socket.recv(_RECEIVE_BYTES)
            except OSError:
                body = b""
            if not body:
                return self.on_orphaned()
            try:
                self._take(to_worker.decode(body))
            except UNREADABLE as error:
                print(f"mainstay: the launcher sent something that is no message: {error}")  # noqa: T201 - evidence
                os._exit(_EXIT_ORPHANED)

    def _take(self, message: ToWorker) -> None:
        match message:
            case Assign():
                self._assignments.put(message)
            case AgentRestarted():
                self.agent_back.set()
            case MeasureSpeed():
                self._speed_request = message.request
            case DumpFlightRecorder(request=number):
                # Not in this thread: a fence must be heard even if torch takes long.
                threading.Thread(target=lambda: self.send_if_free(flight_recorder.dump(number)), daemon=True).start()
            case FenceRank():
                with self._news:
                    self.fence = max(self.fence, message.generation)
                    self._news.notify_all()
                self.on_fence(message.generation)
            case Regroup():
                with self._news:
                    self._regroup = message
                    self._news.notify_all()


_installed: LauncherClient | None = None


def install(link: LauncherClient) -> None:
    """Make ``link`` the one that ``mainstay.init`` finds."""
    global _installed  # noqa: PLW0603 - a process has one launcher
    _installed = link


def installed() -> LauncherClient | None:
    return _installed
