"""When a snapshot's copy off a GPU may use the link: not while this rank sends or receives, as long as there is time.

A device's copies to its host and a pipeline's transfers share the same lanes. So a copy pauses between two chunks while
the rank is inside a call to its peers, and continues without pause once what is left of the step is only just enough:
the snapshot must be done when the next optimizer step comes, or the trainer waits for it. After the hierarchical
scheduling of REFT's second version (HASC; arXiv 2310.12670), with windows observed instead of planned.

Pure but for the clock and the sleep, which are given.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.8
"""Of a usual step, what a snapshot may take: the optimizer's own part is no time to copy in, and steps vary."""
POLL: Final = 0.001
"""Seconds between two looks: a chunk of 32 MiB takes about as long at 25 GB/s."""
_REMEMBERED: Final = 15
_LEAST: Final = 3
"""Steps, and chunks, before their median is believed; until then nothing pauses."""


class Pacer:
    """One rank's. ``begin`` belongs to the trainer's thread, the rest to the copying one.

    Args:
        busy: whether the rank is in a call to its peers now; asked from the copying thread.
        clock: seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        busy: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.paused = 0.0
        """Seconds in all that copies gave way."""
        self._busy, self._clock, self._sleep = busy, clock, sleep
        self._steps, self._rates = deque[float](maxlen=_REMEMBERED), deque[float](maxlen=_REMEMBERED)
        self._begun: float | None = None
        self._left = 0

    def begin_copy(self, nbytes: int) -> None:
        """A snapshot of which ``nbytes`` lie on the device begins; the one before it is over."""
        now = self._clock()
        if self._begun is not None:
            self._steps.append(now - self._begun)
        self._begun, self._left = now, nbytes

    def wait(self) -> float:
        """Before a chunk: pause while the rank is busy and there is time; seconds paused."""
        begun = self._clock()
        while self._busy() and self.slack() >= POLL:
            self._sleep(POLL)
        seconds = self._clock() - begun
        self.paused += seconds
        return seconds

    def copied(self, nbytes: int, seconds: float) -> None:
        """A chunk of ``nbytes`` took ``seconds``, without pauses."""
        self._left = max(0, self._left - nbytes)
        if seconds > 0.0:
            self._rates.append(nbytes / seconds)

    def slack(self) -> float:
        """Seconds that the copy can still afford to lose; 0.0 as long as steps or link are not known."""
        if self._begun is None or len(self._steps) < _LEAST or len(self._rates) < _LEAST:
            return 0.0
        end = self._begun + SHARE * statistics.median(self._steps)
        return end - self._clock() - self._left / statistics.median(self._rates)
