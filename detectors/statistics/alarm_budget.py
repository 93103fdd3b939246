"""A budget of alarms that is kept when the data stop being like those that the threshold was learned from.

Adaptive conformal inference (Gibbs and Candes, NeurIPS 2021, equation 2: what is asked of the next sample falls with
each miss and grows while there is none), on the logarithm of the rate, because alarms are rare. It only tightens: where
the tail was fitted well, the threshold stays the fitted one. True alarms count as well: they cannot be told apart, so
the budget is one of all alarms, and bounds the false ones.
"""

from __future__ import annotations

from math import log

LOWEST = -8.0
"""The strictest: a threshold that healthy data of the past pass e^8 = 3,000 times less often than asked."""


class AlarmBudget:
    """Alarms in ``n`` samples are at most ``rate n + 1 - LOWEST / gain``, unless ``LOWEST`` is reached.

    Args:
        rate: alarms a sample that are asked for.
        gain: logarithm by which one alarm lowers the rate that is asked of the tail: 0.7 halves it. 0: not adapted.
    """

    def __init__(self, *, rate: float, gain: float = 0.7) -> None:
        self.rate, self.gain, self.shift = rate, gain, 0.0

    @property
    def log_rate(self) -> float:
        """Logarithm of the rate at which healthy samples may pass the next threshold."""
        return log(self.rate) + self.shift

    def pass_samples(self, count: float) -> None:
        """So many samples came since the last call."""
        self.shift = min(self.shift + self.gain * self.rate * count, 0.0)

    def note_alarm(self) -> None:
        self.shift = max(self.shift - self.gain, LOWEST)
