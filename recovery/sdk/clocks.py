"""Clocks of the training thread: wall time, the time that its core ran another thread, and garbage collection."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import threading
import time
from typing import Any, Final

_NANOSECOND: Final = 1e-9
_UNSEEN: Final = 10e-6
"""Seconds off a core that are not looked into: interrupts, and the clocks' own disagreement."""
_TRIES: Final = 4
"""Looks, until the thread kept its core from one to the next."""


class ThreadClock:
    """Seconds of the thread that made it. ``own`` stands still while the thread is ready to run but has no core.

    A busy neighbor makes a thread wait for its core; that is the node's trouble and no slowness of the rank. So all
    sections and waits are measured on ``own``, and what it leaves out is reported as ``run_delay_seconds``.

    The kernel's file is expensive to read when the step's work has emptied the caches: twenty times as in a loop.
    A thread that was on its core all the time has waited for none, and the processor clock says that for a fifth.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._processor = time.pthread_getcpuclockid(threading.get_ident())
        self._away, self._delay = -math.inf, 0.0
        """When the file was last read: seconds that the thread had been off its core, and how many it had waited."""
        with contextlib.suppress(OSError):  # a kernel without scheduler statistics: unknown, and ``own`` is wall time
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self.knows_delay = self._file is not None

    def own(self) -> float:
        """Wall time less run delay, from an arbitrary origin."""
        now, delay = self.read()
        return now - delay

    def read(self) -> tuple[float, float]:
        """Wall time (``time.perf_counter``), and the seconds that the thread has waited for a core until then.

        These are 0.0 where the kernel does not say.
        """
        now = time.perf_counter()
        for _ in range(_TRIES if self._file is not None else 0):
            away = now - time.clock_gettime(self._processor)
            if away - self._away <= _UNSEEN:
                break
            # "on-cpu-ns run-delay-ns timeslices"
            self._delay = int(os.pread(self._file, 64, 0).split()[1]) * _NANOSECOND  # type: ignore[arg-type]
            self._away = away
            now = time.perf_counter()  # the thread may have lost its core since the last look: then look again
        return now, self._delay


class Collections:
    """Seconds of Python garbage collection. It stops every thread, so it counts whichever thread set it off."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun: float | None = None

    def install(self) -> None:
        if self._heard not in gc.callbacks:
            gc.callbacks.append(self._heard)

    def remove(self) -> None:
        if self._heard in gc.callbacks:
            gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        elif self._begun is not None:
            self.seconds += time.perf_counter() - self._begun
            self._begun = None
