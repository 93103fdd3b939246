"""The few Linux process calls that Python lacks, and children watched by pidfd.

A pidfd names one process for ever: waiting on it takes no polling, and a signal through it never reaches a stranger who
got the same number later.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)
_watched: set[int] = set()
"""Children with a ``ChildProcess``: it alone reaps them."""


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(parent: int) -> None:
    """SIGKILL this process as soon as ``parent`` (its parent) is gone; leave at once if it already is."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Descendants whose parent ends become this process's own children, so that it can wait for them and end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wait_for_parent(parent: int, seconds: float = 5.0) -> None:
    """After a double fork: return once this process belongs to ``parent``; leave if that never happens."""
    deadline = time.monotonic() + seconds
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0002)


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: by ``code`` or by ``signal``."""

    code: int | None
    signal: int | None
    time: float
    """Unix seconds at which it was reaped."""
    peak_bytes: int | None = None
    """The most memory that it, or a process that it waited for, had resident."""

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class ChildProcess:
    """A child process of this one, reaped the moment it ends. Belongs to the running event loop.

    The child leads a process group of its own: what it started and left behind ends with it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(pid)
        _watched.add(pid)
        self.exit: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    def start(cls, command: Sequence[str], **how: Any) -> ChildProcess:
        """Run a program in a process group of its own.

        Args:
            command: the program and its arguments.
            how: other arguments of ``subprocess.Popen``.

        Raises:
            OSError: it cannot be started.
        """
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, **how)
        process.returncode = 0  # the pidfd reaps it; Popen must not try to
        return cls(process.pid)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # while it is not reaped, no other process can have its number
        try:
            _, status, usage = os.wait4(self.pid, 0)  # its number is its own until here; pidfds tell no memory
        except ChildProcessError:  # another part of the program reaped it: it is gone
            found = ExitStatus(None, None, time.time())
        else:
            code = os.waitstatus_to_exitcode(status)
            peak = usage.ru_maxrss * 1024
            found = ExitStatus(code if code >= 0 else None, -code if code < 0 else None, time.time(), peak)
        _watched.discard(self.pid)
        os.close(self._pidfd)
        self._pidfd = -1
        self.exit.set_result(found)

    @property
    def alive(self) -> bool:
        return not self.exit.done()

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it still is."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def kill(self, seconds: float = 5.0) -> bool:
        """SIGKILL and reap. False if the kernel could not end it in time (a process stuck in a driver)."""
        self.signal(signal.SIGKILL)
        return await self.wait(seconds)

    async def wait(self, seconds: float) -> bool:
        """Whether it ended within ``seconds``."""
        await asyncio.wait({self.exit}, timeout=seconds)
        return self.exit.done()

    async def stop(self, patience: float) -> None:
        """SIGTERM, then SIGKILL for one that does not listen within ``patience`` seconds."""
        self.signal(signal.SIGTERM)
        if not await self.wait(patience):
            await self.kill()


def reap_orphans() -> None:
    """Reap adopted descendants that have ended; children with a ``ChildProcess`` are left to it."""
    while True:
        try:
            result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if result is None or result.si_pid in _watched:
            return
        os.waitpid(result.si_pid, os.WNOHANG)
