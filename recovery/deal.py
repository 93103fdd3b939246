"""The deal of one generation: which replicas take part, and which micro-batches of a step each of them computes. Pure.

The global batch is always the same: whoever is away, each micro-batch of a step is computed once, by somebody. A
replica keeps as many of its own as its share allows; what is left over goes to those that have too few, in order.
Coordinator and ranks compute the same deal from the same words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec


class OnLoss(StrEnum):
    """What the others do when ranks are lost and nobody stands by warm.

    ``wait``: the job waits for the processes that replace them. ``drop``: it goes on at once with the replicas that
    are whole, and takes the others back as soon as all their ranks have a process again.
    """

    WAIT = "wait"
    DROP = "drop"


class Dealing(StrEnum):
    """``even``: all replicas have the same work. ``measured``: one that computes slowly has less of it."""

    EVEN = "even"
    MEASURED = "measured"


class Deal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who takes part in a generation.

    Raises:
        ValueError: replicas are not rising, or shares make no sense; the message says which.
    """

    replicas: tuple[int, ...]
    """Data-parallel indices, rising."""
    shares: tuple[float, ...] = ()
    """Of the work, in their order, in any unit; empty: equal."""

    def __post_init__(self) -> None:
        if not self.replicas or list(self.replicas) != sorted({*self.replicas}) or self.replicas[0] < 0:
            raise ValueError(f"replicas {list(self.replicas)} of a deal must be rising numbers from 0, at least one")
        if self.shares and len(self.shares) != len(self.replicas):
            raise ValueError(f"{len(self.shares)} shares for {len(self.replicas)} replicas")
        if not all(0.0 < share < math.inf for share in self.shares):
            raise ValueError(f"shares of a deal must be positive numbers, not {list(self.shares)}")

    def whole(self, dp: int) -> bool:
        """Whether it is what a job of ``dp`` replicas does when all is well."""
        return not self.shares and len(self.replicas) == dp

    def micro_batches(self, total: int, dp: int) -> dict[int, tuple[int, ...]]:
        """Replica -> ids of its micro-batches, rising; together 0 to ``total`` - 1, each once.

        Args:
            total: micro-batches of all replicas in one step.
            dp: replicas of the job when all are there: id i is replica ``i * dp // total``'s own.

        Raises:
            ValueError: there are fewer micro-batches than replicas.
        """
        if total < len(self.replicas):
            raise ValueError(f"{total} micro-batches cannot be dealt to {len(self.replicas)} replicas: each needs one")
        own: dict[int, list[int]] = {replica: [] for replica in self.replicas}
        pool: list[int] = []
        counts = dict(zip(self.replicas, _counts(total, self.shares or (1.0,) * len(self.replicas)), strict=True))
        for number in range(total):
            home = number * dp // total
            kept = home in own and len(own[home]) < counts[home]
            (own[home] if kept else pool).append(number)
        for replica, ids in own.items():
            missing = counts[replica] - len(ids)
            ids.extend(pool[:missing])
            del pool[:missing]
        return {replica: tuple(sorted(ids)) for replica, ids in own.items()}


def _counts(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to ``shares``, at least one each: by largest remainder, the first of equals first."""
    quotas = [total * share / sum(shares) for share in shares]
    counts = [max(1, math.floor(quota)) for quota in quotas]
    while sum(counts) < total:
        counts[max(range(len(counts)), key=lambda i: (quotas[i] - counts[i], -i))] += 1
    while sum(counts) > total:  # those that were lifted to one
        counts[max((i for i in range(len(counts)) if counts[i] > 1), key=lambda i: (counts[i] - quotas[i], i))] -= 1
    return counts
