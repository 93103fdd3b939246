"""Clocks of the training thread: wall time, the time that its core ran somebody else, and garbage collection."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from typing import Any, Final

_NANOSECOND: Final = 1e-9


class ThreadClock:
    """Seconds of the thread that made it. ``own`` stands still while the thread is ready to run but has no core.

    A busy neighbour makes a thread wait for its core; that is the node's trouble and no slowness of the rank. So all
    sections and waits are measured on ``own``, and what it leaves out is reported as ``run_delay_seconds``.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):  # a kernel without scheduler statistics: unknown, and ``own`` is wall time
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def knows_delay(self) -> bool:
        return self._file is not None

    def delay(self) -> float:
        """Seconds that the thread has waited for a core since it began; 0.0 where the kernel does not say."""
        if self._file is None:
            return 0.0
        # "on-cpu-ns run-delay-ns timeslices". Costs a microsecond.
        return int(os.pread(self._file, 64, 0).split()[1]) * _NANOSECOND

    def own(self) -> float:
        """Wall time less run delay, from an arbitrary origin."""
        return time.perf_counter() - self.delay()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


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
