"""Workers of one cluster shared out among several jobs, with what a change costs them (Unicron, arXiv 2401.00134).

A job's value is its weight times the achieved FLOP/s of its workers. After an event the best allocation maximizes
G = F(x') D_run - [changed or faulted] F(x) D_transition, summed over jobs: what they will achieve until the next event,
less what those lose that have to regroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    """It has to regroup in any case."""

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


def donor_loss(tenants: Sequence[Tenant], wanted: int, run_s: float) -> float | None:
    """The least loss of value at which some job gives up ``wanted`` workers; None if no job has as many.

    The O(jobs) question that a failure asks; ``bench.lib_allocation`` answers the whole one.
    """
    able = [tenant for tenant in tenants if tenant.workers >= wanted]
    losses = (each.gain(each.workers, run_s) - each.gain(each.workers - wanted, run_s) for each in able)
    return max(0.0, min(losses)) if able else None
