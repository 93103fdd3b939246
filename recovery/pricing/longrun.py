"""What share of the time a long run keeps: exact for exponential failures, and the interval between saves that is best.

ETTR (effective training time ratio) is the share of wall time that became training which was never repeated. Failures
come with a mean time between failures ``mtbf_s``; a save takes ``save_s`` of training, a restart ``restart_s``, and a
failure during a save or a restart begins that restart anew (Daly, FGCS 2006, section 3: the complete cost function).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

ENOUGH = 1e-12
"""Newton's relative step at which a double holds no more: reached in at most six rounds for any save / mtbf."""
ROUNDS = 64
"""Far beyond what Newton needs, so that a loop always ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How a run saves and restarts. All in seconds."""

    interval_s: float
    """Training between saves."""
    save_s: float
    """That training stands still for one save."""
    restart_s: float
    """From a failure until training goes on."""

    def __post_init__(self) -> None:
        if not self.interval_s > 0.0 or self.save_s < 0.0 or self.restart_s < 0.0:
            raise ValueError(f"interval above 0 s, save and restart at least 0 s, not {self}")


def exact_ettr(cadence: Cadence, mtbf_s: float) -> float:
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


def first_order_ettr(cadence: Cadence, mtbf_s: float) -> float:
    """The same to first order in 1 / mtbf: tau/(tau + C) (1 - (R + (tau + C)/2) / M), at least 0; 0.5-2 % too low."""
    _above_zero(mtbf_s)
    period = cadence.interval_s + cadence.save_s
    return max(0.0, cadence.interval_s / period * (1.0 - (cadence.restart_s + period / 2.0) / mtbf_s))


def best_interval(save_s: float, mtbf_s: float) -> float:
    """The interval in seconds at which ``exact_ettr`` is largest, whatever a restart takes.

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
        step = (1.0 - x - math.exp(-x - c)) / (math.exp(-x - c) - 1.0)
        x -= step
        if abs(step) <= ENOUGH * x:
            break
    return x * mtbf_s


def goodput(rate: float, overhead: float, losses: tuple[tuple[float, float], ...]) -> float:
    """Share of the fault-free rate that a run keeps to first order: rho0 (1 - o) (1 - sum of rate x loss), at least 0.

    Args:
        rate: of the healthy job against the ideal one, 0..1.
        overhead: share of the time that saving takes, 0..1.
        losses: per kind of failure how often it comes (per second) and what it costs (full-rate seconds).
    """
    return max(0.0, rate * (1.0 - overhead) * (1.0 - sum(often * cost for often, cost in losses)))


def _above_zero(mtbf_s: float) -> None:
    if not mtbf_s > 0.0:
        raise ValueError(f"failures are more than 0 s apart, not {mtbf_s}")


def falling_throughput(rates: tuple[float, ...], period_s: float, regroup_s: float, samples_per_step: float) -> float:
    """Samples per second of a job that loses one node each ``period_s`` and regroups, without an event loop.

    Each period but the first begins with a regroup; half a step is lost at the end of each (the running one).
    (1 / k T) x sum of s (T - R - S / 2 s); Oobleck's Table 2 in closed form.

    Args:
        rates: samples per second in each period, the first on all nodes.
        period_s: between losses.
        regroup_s: from a loss until training goes on.
        samples_per_step: the global batch.
    """
    kept = sum(s * (period_s - (regroup_s if i else 0.0)) - samples_per_step / 2.0 for i, s in enumerate(rates))
    return kept / (len(rates) * period_s)


def average_rate(rate: Callable[[int], float], period_s: float, horizon_s: float, back_after_s: float) -> float:
    """Time average of a rate that depends on how many workers are lost: one goes a period, each comes back.

    Args:
        rate: by the number of lost workers, 0..1.
        period_s: between losses; the first comes after one period.
        horizon_s: of the average.
        back_after_s: from a loss until that worker is back; inf for never.
    """
    losses = [i * period_s for i in range(1, math.ceil(horizon_s / period_s))]
    edges = sorted({0.0, horizon_s, *losses, *(at + back_after_s for at in losses if at + back_after_s < horizon_s)})
    total = 0.0
    for begin, end in pairwise(edges):
        middle = (begin + end) / 2.0
        total += (end - begin) * rate(sum(at <= middle < at + back_after_s for at in losses))
    return total / horizon_s
