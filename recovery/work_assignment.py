"""The assignment of one generation: who takes part, and which micro-batches of a step each computes. Pure.

The global batch is always the same: whoever is away, each micro-batch of a step is computed once at every stage, by
some replica. A replica keeps as many of its own as its share allows; the rest goes to those that have too few, in
order. Where a replica takes part without its mesh position at one stage, the other replicas compute that stage of its
micro-batches, the least loaded first; all its other stages stay where they are (ReCycle, SOSP 2024,
adaptive pipelining). Coordinator and ranks compute the same assignment from the same data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec


class LossPolicy(StrEnum):
    """What the others do when ranks are lost and no standby is warm.

    ``wait``: the job waits for the processes that replace them. ``drop``: it continues at once with the replicas that
    are whole, and takes the others back as soon as all their ranks have a process again. ``reroute``: it continues at
    once with all ranks that are left, which compute the lost ones' stage of their micro-batches; it drops replicas
    where a script cannot do that. ``reinstantiate``: where a lost rank has no place to run, the ranks that are left
    form pipelines of other depths. ``auto``: whichever is expected to cost the job least, each time.
    """

    WAIT = "wait"
    DROP = "drop"
    REROUTE = "reroute"
    REINSTANTIATE = "reinstantiate"
    AUTO = "auto"

    @property
    def leaves_ranks_out(self) -> bool:
        """Whether the job may continue without some ranks in the shape that it has."""
        return self not in {LossPolicy.WAIT, LossPolicy.REINSTANTIATE}


class AssignmentPolicy(StrEnum):
    """``even``: all replicas have the same work. ``proportional``: a slow replica computes fewer micro-batches."""

    EVEN = "even"
    PROPORTIONAL = "proportional"


class WorkAssignment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who takes part in a generation.

    Raises:
        ValueError: replicas are not rising, or gaps or shares make no sense; the message says which.
    """

    replicas: tuple[int, ...]
    """Data-parallel indices of those that take part, rising. Each has a mesh position at one stage at least."""
    absent_positions: tuple[tuple[int, int], ...] = ()
    """Mesh positions, (replica, stage), that are away of replicas that take part; rising."""
    shares: tuple[float, ...] = ()
    """Of the work, in their order, in any unit; empty: equal."""

    def __post_init__(self) -> None:
        if not self.replicas or list(self.replicas) != sorted({*self.replicas}) or self.replicas[0] < 0:
            raise ValueError(
                f"replicas {list(self.replicas)} of an assignment must be rising numbers from 0, at least one"
            )
        if list(self.absent_positions) != sorted({*self.absent_positions}) or any(
            d not in self.replicas or s < 0 for d, s in self.absent_positions
        ):
            raise ValueError(
                f"absent positions {list(self.absent_positions)} must be rising and of replicas {list(self.replicas)}"
            )
        if self.shares and len(self.shares) != len(self.replicas):
            raise ValueError(f"{len(self.shares)} shares for {len(self.replicas)} replicas")
        if not all(0.0 < share < math.inf for share in self.shares):
            raise ValueError(f"shares of an assignment must be positive numbers, not {list(self.shares)}")

    def whole(self, dp: int) -> bool:
        """Whether it is what a job of ``dp`` replicas does when all is well."""
        return not self.shares and not self.absent_positions and len(self.replicas) == dp

    def occupied(self, stage: int) -> tuple[int, ...]:
        """Replicas that have a mesh position at ``stage``, rising."""
        return tuple(replica for replica in self.replicas if (replica, stage) not in self.absent_positions)

    def micro_batches(self, total: int, dp: int, stage: int | None = None) -> dict[int, tuple[int, ...]]:
        """Replica -> ids of the micro-batches that it computes, rising; together 0 to ``total`` - 1, each once.

        Args:
            total: micro-batches of all replicas in one step.
            dp: replicas of the job when all are there: id i is replica ``i * dp // total``'s own.
            stage: whose mesh positions compute them. None: where none is absent, so the pipelines that they belong to.

        Raises:
            ValueError: there are fewer micro-batches than replicas, or no replica has a mesh position at ``stage``.
        """
        homes = self._homes(total, dp)
        occupied = homes.keys() if stage is None else self.occupied(stage)
        if not occupied:
            raise ValueError(f"no replica has a mesh position at stage {stage}, so none could compute it")
        found = {replica: list(homes[replica]) for replica in occupied}
        for number in sorted(number for replica in homes.keys() - found.keys() for number in homes[replica]):
            found[min(found, key=lambda replica: (len(found[replica]), replica))].append(number)
        return {replica: tuple(sorted(ids)) for replica, ids in found.items()}

    def _homes(self, total: int, dp: int) -> dict[int, list[int]]:
        """Replica -> ids of its pipeline."""
        if total < len(self.replicas):
            raise ValueError(f"cannot assign {total} micro-batches to {len(self.replicas)} replicas: each needs one")
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
        return {replica: sorted(ids) for replica, ids in own.items()}


def _counts(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to ``shares``, at least one each: by largest remainder, the first of equals first."""
    quotas = [total * share / sum(shares) for share in shares]
    counts = [max(1, math.floor(quota)) for quota in quotas]
    while sum(counts) < total:
        counts[max(range(len(counts)), key=lambda i: (quotas[i] - counts[i], -i))] += 1
    while sum(counts) > total:  # those that were lifted to one
        counts[max((i for i in range(len(counts)) if counts[i] > 1), key=lambda i: (counts[i] - quotas[i], i))] -= 1
    return counts
