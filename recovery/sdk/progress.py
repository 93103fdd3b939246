"""What a rank is doing, told twice a second by a thread that does not wait for the training thread.

A rank that says nothing is stopped, or holds the interpreter lock in a call that never ends; one that says that it is
in no call computes, or sleeps; one that has long been in a call waits for a peer.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Final

from mainstay.recovery.protocol.worker_messages import ProgressReport
from mainstay.recovery.sdk.launcher_client import LauncherClient
from mainstay.recovery.sdk.meter import StepMeter

INTERVAL: Final = 0.5
"""Seconds. Two samples a second on a grid of one second: one may be late."""


class ProgressThread:
    """Sends ``ProgressReport``, and step records that a device delayed. Ends with the process or with ``stop``."""

    def __init__(self, link: LauncherClient, meter: StepMeter, where: Callable[[], tuple[int, int]]) -> None:
        """``where`` gives generation and steps committed."""
        self._link, self._meter, self._where = link, meter, where
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mainstay-progress", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # it asks groups for numbers, and they do not outlive the interpreter

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            for message in self._meter.collect():
                self._link.send_if_free(message)
            self._link.send_if_free(self.now())

    def now(self) -> ProgressReport:
        """One sample. The call is read once: it may end meanwhile."""
        generation, step = self._where()
        traffic = self._meter.traffic
        call = traffic.status()
        begun, ended = traffic.numbers()
        return ProgressReport(
            generation=generation,
            time_ns=time.time_ns(),
            step=step,
            phase=self._meter.phase,
            in_call=0.0 if call is None else max(0.0, time.perf_counter() - call.begun),
            call="" if call is None else str(call),
            enqueued=begun,
            completed=ended,
        )
