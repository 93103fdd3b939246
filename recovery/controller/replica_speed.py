"""How long each replica computes on one micro-batch, for ``--micro-batch-assignment proportional``.

A replica is as slow as its slowest stage. Shares are in proportion to speed and at least one micro-batch each, so that
replicas end a step together as far as whole micro-batches allow (the minimax of ResiHP and ElasWave without their
solvers). What counts is what a rank needed for itself: waiting for peers, data or a core is no slowness of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from statistics import median
from typing import Final

from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.protocol.worker_messages import StepRecord
from mainstay.recovery.work_assignment import WorkAssignment

STEPS: Final = 16
"""Of each rank, before it is judged the first time; every change doubles them, since each stops everybody."""
GAIN: Final = 0.1
"""A step must become so much shorter, by what was measured: less is lost in the stop and in noise."""


class ReplicaSpeeds:
    """One a coordinator."""

    def __init__(self) -> None:
        self.shares: dict[int, float] = {}
        """Replica -> its share of the work; empty: all alike."""
        self._needed = STEPS
        self._seconds: dict[int, deque[float]] = {}
        """Rank -> seconds that it computed on one micro-batch."""
        self._counts: dict[int, int] = {}
        """Rank -> micro-batches that it has in a step."""
        self._told: Counter[int] = Counter()
        """Epoch -> ranks that have told of it, until all have."""

    def restart(self) -> None:
        """A generation begins: what was measured before says nothing of it."""
        self._seconds.clear()
        self._counts.clear()
        self._told.clear()

    def forget(self) -> None:
        """It is another job from now on: replicas are others."""
        self.restart()
        self.shares = {}

    def step(self, rank: int, record: StepRecord, world_size: int) -> bool:
        """A committed step of the present generation; whether all ranks have told of it now."""
        if record.micro_batches:  # the script asks for its micro-batches
            self._counts[rank] = record.micro_batches
            told = self._seconds.setdefault(rank, deque(maxlen=self._needed))
            told.append(record.compute_time / record.micro_batches)
        self._told[record.epoch] += 1
        if self._told[record.epoch] < world_size:
            return False
        for epoch in [epoch for epoch in self._told if epoch <= record.epoch]:
            del self._told[epoch]
        return True

    def better(self, shape: MeshShape) -> dict[int, float]:
        """Shares by which a step would be shorter, all replicas taking part; empty: none, or not known yet."""
        if len(self._seconds) < shape.world_size or any(len(told) < self._needed for told in self._seconds.values()):
            return {}
        slowest = {
            dp: max(median(told) for rank, told in self._seconds.items() if shape.place(rank)[0] == dp)
            for dp in range(shape.dp)
        }
        counts = {shape.place(rank)[0]: count for rank, count in self._counts.items()}
        if not all(seconds > 0.0 for seconds in slowest.values()):
            return {}
        shares = {dp: 1.0 / seconds for dp, seconds in slowest.items()}
        assignment = WorkAssignment(replicas=tuple(shares), shares=tuple(shares.values()))
        assigned = {dp: len(ids) for dp, ids in assignment.micro_batches(sum(counts.values()), shape.dp).items()}
        return shares if _takes(slowest, assigned) <= (1.0 - GAIN) * _takes(slowest, counts) else {}

    def propose_assignment(self, shares: dict[int, float]) -> None:
        """Work is assigned by ``shares`` from the next generation on."""
        self.shares = shares
        self._needed *= 2


def _takes(seconds: Mapping[int, float], counts: Mapping[int, int]) -> float:
    """Of the replica that computes longest."""
    return max(seconds[replica] * count for replica, count in counts.items())
