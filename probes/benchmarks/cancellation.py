"""A suite that is asked to give the machine back.

Invariant: asking is one write to a descriptor, so a signal handler or any thread may do it, and whoever waits in
``select`` wakes at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class CancelSignal:
    """Any thread sets it once; nothing clears it."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.reason = ""
        """The reason; empty until it is set."""

    def set(self, reason: str) -> None:
        """Ask. The first reason stands."""
        self.reason = self.reason or reason
        os.eventfd_write(self._descriptor, 1)

    def __bool__(self) -> bool:
        return bool(self.reason)

    def fileno(self) -> int:
        """Readable, for ``select``, from the moment it is set."""
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def cancel_on_signals() -> Iterator[CancelSignal]:
    """An interrupt that SIGTERM and SIGINT set, from the main thread; a second SIGINT ends the process as usual."""
    interrupt = CancelSignal()

    def request_cancellation(number: int, _: FrameType | None) -> None:
        interrupt.set(f"ended by {signal.Signals(number).name}")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, request_cancellation) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        interrupt.close()
