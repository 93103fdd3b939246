"""How ranks' processes end, told to the coordinator: at the first sign that one is killed, and how once it is reaped.

The kernel takes a process's memory apart before it reports (by pidfd, SIGCHLD, its sockets) that the process has
ended: 0.1 s for some hundred MB, and the more the larger a rank is. But from the first instant ``/proc`` shows that its
main thread is leaving (PF_EXITING) and by which signal, which is looked at fifty times a second. Others can leave their
collectives meanwhile; no rank learns the next generation before the process is reaped (``workers``).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

from mainstay.recovery.node.oom_count import OutOfMemoryCount
from mainstay.recovery.node.process_control import ExitStatus
from mainstay.recovery.node.rank_report_cache import RankReportCache
from mainstay.recovery.node.worker_output import LAST_WORDS_SECONDS
from mainstay.recovery.node.workers import Worker, Workers
from mainstay.recovery.protocol.messages import Dying, Exited, FromLauncher

LOOK_SECONDS: Final = 0.02
_PF_EXITING: Final = 0x4
_FLAGS: Final = 6
"""Place of a task's flags in /proc/PID/stat, counted behind its name (field 9 of proc(5))."""
_EXIT_CODE: Final = 49
"""Likewise of its exit code (field 52), as ``wait`` would tell it; 0 where we may not know it."""
_SIGNAL: Final = 0x7F


def ending_signal(pid: int) -> int | None:
    """The signal that is ending ``pid``'s main thread, or has; None: it lives, exits normally, or nothing is known.

    Args:
        pid: of a child that is not reaped, so that the number is still its own.
    """
    try:
        file = os.open(f"/proc/{pid}/task/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        fields = os.read(file, 4096).rpartition(b")")[2].split()
    except OSError:  # reaped in between
        return None
    finally:
        os.close(file)
    if len(fields) <= _EXIT_CODE or not int(fields[_FLAGS]) & _PF_EXITING:
        return None
    return int(fields[_EXIT_CODE]) & _SIGNAL or None


class ExitWatcher:
    """One a launcher."""

    def __init__(self, book: RankReportCache, tell: Callable[[FromLauncher], None]) -> None:
        self._book = book
        self._tell = tell
        self._ooms = OutOfMemoryCount()

    async def watch(self, workers: Workers) -> None:
        """Report each rank's process that is being killed, once, unless we do it."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for worker in workers.holders():
                if worker.ended_by_us or worker.dying or worker.rank is None:
                    continue
                number = ending_signal(worker.child.pid)
                if number is not None:
                    worker.dying = True
                    workers.read_rest(worker)
                    self._tell(Dying(rank=worker.rank, pid=worker.child.pid, signal=number, time=time.time()))

    async def report_exit(self, worker: Worker, rank: int, status: ExitStatus) -> None:
        """``worker`` held ``rank`` and is reaped."""
        ours = worker.ended_by_us and not worker.dying
        if not ours or status.code:  # with a code of its own: it was faster than our signal
            await worker.tail.ended(LAST_WORDS_SECONDS)
        exited = Exited(
            rank=rank,
            pid=worker.child.pid,
            exit_code=status.code,
            signal=status.signal,
            expected=ours,
            time=status.time,
            tail=tuple(worker.tail.lines),
            stderr=tuple(worker.tail.errors),
            out_of_memory=not ours and self._ooms.explains(status.signal),
            peak_bytes=status.peak_bytes,
        )
        self._book.ended(exited)
        self._tell(exited)
