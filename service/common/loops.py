"""Background loops: a name, an interval and a function; each runs in its own thread until the service stops.

A failing turn is logged, counted in ``/metrics`` and tried again: this is one of the named boundaries that may catch
``Exception``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from mainstay.service.common.histogram import Histogram

_log: Final = logging.getLogger(__name__)


@dataclass
class Loop:
    """One background loop. ``wake()`` starts the next turn at once."""

    name: str
    interval: float
    """Seconds between the end of a turn and the start of the next."""
    turn: Callable[[], None]
    turns: int = field(default=0, init=False)
    failures: int = field(default=0, init=False)
    last_seconds: float = field(default=0.0, init=False)
    durations: Histogram = field(default_factory=Histogram, init=False)
    """Of all turns, also those that failed."""
    last_turn_at: float = field(default=0.0, init=False)
    """``time.monotonic()`` at the end of the last turn that went well; 0 before the first."""
    started_at: float = field(default=0.0, init=False)
    """``time.monotonic()`` when its thread began; 0 before."""
    last_error: str = field(default="", init=False)
    """Why the last turn failed; empty when it went well."""
    _wake: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _stop: bool = field(default=False, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)

    def wake(self) -> None:
        self._wake.set()

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def late_seconds(self) -> float:
        """How long a turn is overdue: it lasts, or it fails."""
        last = max(self.last_turn_at, self.started_at)
        return max(0.0, time.monotonic() - last - self.interval) if last else 0.0

    def start(self) -> None:
        self.started_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"loop-{self.name}", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop = True
        self._wake.set()

    def stop(self, timeout: float = 10.0) -> None:
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop:
            self.run_once()
            self._wake.wait(self.interval)
            self._wake.clear()

    def run_once(self) -> None:
        """One turn, guarded."""
        started = time.monotonic()
        try:
            self.turn()
        except Exception as error:  # noqa: BLE001 - named boundary: a loop outlives its faults
            self.failures += 1
            last, self.last_error = self.last_error, type(error).__name__
            # While a database is away, all loops fail each second: the same trace again says nothing new.
            told = "loop %s failed (%d times so far), %s; trying again"
            _log.error(told, self.name, self.failures, self.last_error, exc_info=self.last_error != last)
        else:
            self.turns += 1
            self.last_error = ""
            self.last_turn_at = time.monotonic()
        self.last_seconds = time.monotonic() - started
        self.durations.observe(self.last_seconds)


class Loops:
    """The loops of one process."""

    def __init__(self, loops: Iterable[Loop] = ()) -> None:
        self._loops = {loop.name: loop for loop in loops}

    def __iter__(self) -> Iterator[Loop]:
        return iter(self._loops.values())

    def start(self) -> None:
        for loop in self._loops.values():
            loop.start()

    def stop(self) -> None:
        for loop in self._loops.values():  # all at once: what ends takes as long as the longest turn, not as their sum
            loop.ask_to_stop()
        for loop in self._loops.values():
            loop.stop()
