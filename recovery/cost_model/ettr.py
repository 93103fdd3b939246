"""What share of the time a long run keeps: exact for exponential failures, and the interval between saves that is best.

ETTR (effective training time ratio) is the share of wall time that became training which was never repeated. Failures
come with a mean time between failures ``mtbf_s``; a save takes ``save_s`` of training, a restart ``restart_s``, and a
failure during a save or a restart begins that restart again (Daly, FGCS 2006, section 3: the complete cost function).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ENOUGH = 1e-12
"""Newton's relative step at which a double holds no more: reached in at most six rounds for any save / mtbf."""
ROUNDS = 64
"""Far beyond what Newton needs, so that a loop always ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSchedule:
    """How a run saves and restarts. All in seconds."""

    interval_s: float
    """Training between saves."""
    save_s: float
    """That training stands still for one save."""
    restart_s: float
    """From a failure until training continues."""

    def __post_init__(self) -> None:
        if not self.interval_s > 0.0 or self.save_s < 0.0 or self.restart_s < 0.0:
            raise ValueError(f"interval above 0 s, save and restart at least 0 s, not {self}")


def exact_ettr(cadence: SaveSchedule, mtbf_s: float) -> float:
    """Daly's exact share of useful time under exponential failures.

    tau / (M e^(R/M) (e^((tau + C)/M) - 1)): the expected wall time of tau useful seconds is the denominator.

    Raises:
        ValueError: ``mtbf_s`` is not above 0.
    """
    _above_zero(mtbf_s)
    # Beyond e^700 a double overflows; a segment of 700 mtbf never ends.
    if (cadence.interval_s + cadence.save_s + cadence.restart_s) / mtbf_s > 700.0:
        return 0.0
    stretch = math.exp(cadence.restart_s / mtbf_s) * math.expm1((cadence.interval_s + cadence.save_s) / mtbf_s)
    return cadence.interval_s / (mtbf_s * stretch)


def best_interval(save_s: float, mtbf_s: float) -> float:
    """The interval in seconds at which ``exact_ettr`` is largest, for any duration of a restart.

    It solves 1 - x = e^-(x + c) with x = tau/M and c = C/M (the derivative of the exact formula set to zero), by Newton
    from Young's sqrt(2 c), which lies above the root. 0 where a save costs nothing.

    Raises:
        ValueError: a save below 0 s, or ``mtbf_s`` not above 0.
    """
    _above_zero(mtbf_s)
    if save_s < 0.0:
        raise ValueError(f"a save costs at least 0 s, not {save_s}")
    c = save_s / mtbf_s
    x = min(1.0, math.sqrt(2.0 * c))
    for _ in range(ROUNDS):
        if x <= 0.0:
            return 0.0
        fall = math.expm1(-x - c)  # not exp: for a small c all digits would cancel
        step = (-x - fall) / fall
        x -= step
        if abs(step) <= ENOUGH * x:
            break
    return x * mtbf_s


def _above_zero(mtbf_s: float) -> None:
    if not mtbf_s > 0.0:
        raise ValueError(f"failures are more than 0 s apart, not {mtbf_s}")
