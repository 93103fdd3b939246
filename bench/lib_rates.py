"""Rates of jobs that lose one node each period, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise


def falling_throughput(rates: tuple[float, ...], period_s: float, regroup_s: float, samples_per_step: float) -> float:
    """Samples per second of a job that loses one node each ``period_s`` and regroups, without an event loop.

    Each period but the first begins with a regroup; half a step is lost at the end of each (the running one).
    (1 / k T) x sum of s (T - R - S / 2 s); Oobleck's Table 2 in closed form.

    Args:
        rates: samples per second in each period, the first on all nodes.
        period_s: between losses.
        regroup_s: from a loss until training continues.
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
