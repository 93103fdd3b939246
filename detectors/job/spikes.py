"""One series of a training run (loss, gradient norm) that jumps or runs away, at any sign and scale."""

from __future__ import annotations

import statistics
from collections import deque

import numpy as np

from mainstay.detectors.entity_state import NORMAL_MAD

WINDOW, NEAR = 32, 9
"""Samples of the running level, for slow rises; and of the near one, for jumps, which a falling loss leaves sooner."""
LEARN = 20
"""Samples before the first finding: the first steps of training are no level."""
JUMP = 4.0
"""ByteRobust's rule (SOSP'25) is five times what it was; the step that is multiplied may lie below the running level,
by a fifth while the loss falls fast."""
STANDS_OUT, STANDS_OUT_LOG = 10.0, 6.0
"""And so many deviations: near zero four times is nothing. Of logarithms fewer, since they hold no zero."""
CLIP, DRIFT, BEGIN = 4.0, 1.5, 20.0
"""Of the CUSUM on a detrended series: eight samples at the clip. Losses are correlated from step to step, so that
theory for independent ones does not hold: twice the height that it asks for (k = 1.5: 1e10 samples at h = 7)."""
SHOWN = 5
"""Last samples whose median has to stand out before a slow rise is reported."""
CALM = 5
"""Samples back at the level after which it is over."""
ACCEPT = 200
"""Samples after which the new level is taken as such."""


class SpikeDetectorState:
    """Feed it one value a step; it says when a spike or a rise begins and ends.

    The level is the running median, frozen while one holds. A fall, as at the start of training, is no spike.

    Args:
        multiplies: the values are logarithms, so that four times is a difference of log 4.
    """

    def __init__(self, *, multiplies: bool = False) -> None:
        self._multiplies = multiplies
        self._level: deque[float] = deque(maxlen=WINDOW)
        self._apart: deque[float] = deque(maxlen=2 * WINDOW)
        """Departures from the near level: what is left when the trend is gone."""
        self._far_apart: deque[float] = deque(maxlen=2 * WINDOW)
        self._last: deque[float] = deque(maxlen=SHOWN)
        self._score, self._lasted = 0.0, 0
        self.calm = 0
        """Last values in a row that were at the level again, while it is on."""
        self.on = False
        self.rising = False
        """It began as a slow rise, not as a jump."""
        self._far = self._far_noise = float("nan")
        self.level = float("nan")
        """The near level."""
        self.noise = float("nan")
        """Spread about it."""

    def add_value(self, x: float) -> bool:
        """Take a value (NaN: none); returns whether ``on`` changed."""
        if not np.isfinite(x):
            return False
        self._last.append(x)
        if len(self._level) < LEARN:
            self._accept(x)
            return False
        return self._watch_end(x) if self.on else self._watch_begin(x)

    def _watch_begin(self, x: float) -> bool:
        z = (x - self._far) / self._far_noise
        self._score = max(0.0, self._score + min(max(z, -CLIP), CLIP) - DRIFT)
        jumped = self._jumped(x)
        rising = self._score >= BEGIN and statistics.median(self._last) - self._far >= self._least()
        if jumped or rising:
            self.on, self.rising, self.calm, self._lasted = True, not jumped, 0, 0
            if not jumped:
                self.level = self._far
            return True
        if self._score < BEGIN / 2:
            self._accept(x)
        return False

    def _jumped(self, x: float) -> bool:
        above = x - self.level
        if above < (STANDS_OUT_LOG if self._multiplies else STANDS_OUT) * self.noise:
            return False
        if self._multiplies:
            return bool(above >= np.log(JUMP))
        span = max(self._level) - min(self._level)
        return above >= (JUMP - 1) * abs(self.level) and x >= max(self._level) + span

    def _least(self) -> float:
        """How far a slow rise must have come: half as far again, or half a logarithm."""
        return 0.5 if self._multiplies else max(5 * self._far_noise, 0.5 * abs(self._far))

    def _watch_end(self, x: float) -> bool:
        self._lasted += 1
        near = self.level + max(3 * self.noise, self._least() / 2)
        self.calm = self.calm + 1 if x <= near else 0
        if self.calm < CALM and self._lasted < ACCEPT:
            return False
        if self._lasted >= ACCEPT:
            self._level.clear()
            self._apart.clear()
            self._far_apart.clear()
        self.on, self._score = False, 0.0
        return True

    def _accept(self, x: float) -> None:
        if self._level:
            self._apart.append(x - self.level)
            self._far_apart.append(x - self._far)
        self._level.append(x)
        self._far, self.level = statistics.median(self._level), statistics.median(list(self._level)[-NEAR:])
        if self._apart:
            self.noise = self._spread(self._apart, self.level)
            self._far_noise = self._spread(self._far_apart, self._far)

    def _spread(self, apart: deque[float], level: float) -> float:
        floor = 1e-3 if self._multiplies else 1e-3 * abs(level)  # a thousandth: curves are printed to that
        return max(NORMAL_MAD * statistics.median(map(abs, apart)), floor, 1e-12)
