"""Workers of one cluster shared out among several jobs, with what a change costs them (Unicron, arXiv 2401.00134).

A job's value is its weight times the achieved FLOP/s of its workers. After an event the best allocation maximises
G = F(x') D_run - [changed or faulted] F(x) D_transition, summed over jobs: what they will achieve until the next event,
less what those lose that have to regroup. S(i, j) = max over k of S(i - 1, j - k) + G(i, k), O(jobs x workers^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One job of a cluster."""

    name: str
    workers: int
    """That it has now."""
    achieved: tuple[float, ...]
    """FLOP/s, or any measure of rate, by number of workers from 0; beyond the end more workers bring nothing."""
    transition_s: float
    """That a change of its workers costs it."""
    weight: float = 1.0
    faulted: bool = False
    """It has to regroup whatever it gets."""

    def __post_init__(self) -> None:
        if not self.achieved or min(self.achieved) < 0.0:
            raise ValueError(f"achieved of {self.name!r}: one rate of at least 0 for each number of workers from 0")
        if self.workers < 0 or self.transition_s < 0.0 or self.weight < 0.0:
            raise ValueError(f"workers, transition_s and weight of {self.name!r} are at least 0")

    def rate(self, workers: int) -> float:
        return self.achieved[min(workers, len(self.achieved) - 1)]

    def gain(self, workers: int, run_s: float) -> float:
        """G with so many workers until the next event."""
        changes = self.faulted or workers != self.workers
        paid = self.rate(self.workers) * self.transition_s if changes else 0.0
        return self.weight * (self.rate(workers) * run_s - paid)


def allocate(tenants: Sequence[Tenant], workers: int, run_s: float) -> tuple[float, tuple[int, ...]]:
    """The allocation of at most ``workers`` with the largest sum of gains.

    Args:
        tenants: the jobs, at least one.
        workers: that there are.
        run_s: expected seconds until the next event (mtbf of a worker / workers).

    Returns:
        The sum, and the workers of each job; among equals the one that gives the last jobs fewest.
    """
    best: NDArray[np.float64] = np.zeros(workers + 1)
    taken: list[NDArray[np.intp]] = []
    for tenant in tenants:
        gains = np.array([tenant.gain(k, run_s) for k in range(workers + 1)])
        following = np.full(workers + 1, -np.inf)
        choice = np.zeros(workers + 1, dtype=np.intp)
        for k in range(workers + 1):
            offered = best[: workers + 1 - k] + gains[k]
            better = offered > following[k:]
            following[k:][better] = offered[better]
            choice[k:][better] = k
        best = following
        taken.append(choice)
    shares, left = [], workers
    for choice in reversed(taken):
        shares.append(int(choice[left]))
        left -= shares[-1]
    return float(best[workers]), tuple(reversed(shares))


def cheapest_donor(tenants: Sequence[Tenant], wanted: int, run_s: float) -> tuple[Tenant, float] | None:
    """Who gives up ``wanted`` workers at the least loss of value, and that loss; None if nobody has as many.

    The O(jobs) question that a failure asks; ``allocate`` answers the whole one when there is time.
    """
    losses = [
        (tenant.gain(tenant.workers, run_s) - tenant.gain(tenant.workers - wanted, run_s), i)
        for i, tenant in enumerate(tenants)
        if tenant.workers >= wanted
    ]
    if not losses:
        return None
    loss, i = min(losses)
    return tenants[i], max(0.0, loss)
