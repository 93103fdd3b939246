"""Rings of all jobs behind one lock, within a budget of bytes: the least recently written job leaves first."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mainstay.service.telemetry.check import CheckedSamples
from mainstay.service.telemetry.slots import NEVER, StepSlots


class JobRing(Protocol):
    """The last steps or seconds of one job."""

    @property
    def nbytes(self) -> int: ...

    def write(self, samples: CheckedSamples) -> None: ...


RingT = TypeVar("RingT", bound=JobRing)


class JobRings(ABC, Generic[RingT]):
    """Base of the stores of steps, progress and pairs.

    Args:
        budget: bytes of all jobs together; the newest job is always kept.
    """

    max_jobs: ClassVar[int] = 256
    """What leaves memory is still in the blocks."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._rings: OrderedDict[str, RingT] = OrderedDict()
        self._lock = threading.Lock()

    @abstractmethod
    def _new(self) -> RingT:
        """A ring for a job that was not heard of."""

    def write(self, samples: CheckedSamples) -> None:
        """Place a checked frame of a job."""
        job = samples.frame.subject
        with self._lock:
            ring = self._rings.get(job)
            if ring is None:
                ring = self._rings[job] = self._new()
            self._rings.move_to_end(job)
            ring.write(samples)
            while len(self._rings) > 1 and (len(self._rings) > self.max_jobs or self._held() > self._budget):
                self._rings.popitem(last=False)

    def jobs(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._rings)

    def _held(self) -> int:
        return sum(ring.nbytes for ring in self._rings.values())

    @property
    def nbytes(self) -> int:
        with self._lock:
            return self._held()


class StepRing(JobRing, Protocol):
    """The last steps of one job."""

    slots: StepSlots


StepRingT = TypeVar("StepRingT", bound=StepRing)


class StepRings(JobRings[StepRingT]):
    """Base of the stores by step."""

    def last_step(self, job: str) -> int | None:
        """The newest step of which anything was told, or None."""
        ring = self._rings.get(job)
        return None if ring is None or ring.slots.head == NEVER else ring.slots.head

    def newest_ends(self, job: str) -> NDArray[np.float64]:
        """[rank] when each finished its newest step, Unix seconds; -inf if unknown. Empty for an unknown job."""
        with self._lock:
            ring = self._rings.get(job)
            return np.empty(0) if ring is None else ring.slots.newest_ends()

    def take_rewind(self, job: str) -> int | None:
        """The lowest step that the job repeated since the last call; only the feed of the detection loop calls it."""
        with self._lock:
            ring = self._rings.get(job)
            return None if ring is None else ring.slots.take_rewind()
