"""What every detector of GPUs needs to know first: is it at work, has it just booted, who are its peers.

All arrays are [E]. A fact that cannot be known is neither true nor false: callers ask for ``busy`` and for ``idle``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats, Samples
from mainstay.detectors.finding import Entity

UTILIZATION, POWER, UPTIME = "gpu_utilization_ratio", "gpu_power_watts", "uptime_seconds"
BUSY_RATIO = 0.5
"""A kernel ran in half of the second: the card had its clocks and its link up for most of it."""
IDLE_RATIO = 0.05
BUSY_WATTS = 200.0
"""Where utilization is not supported (MIG): no data-centre card draws so much at rest (70-120 W), all do at work."""


def activity(samples: Samples, k: int) -> tuple[Floats, Floats]:
    """Utilization and power at sample ``k``, what ``busy`` and ``idle`` go by."""
    return samples.signal(k, UTILIZATION), samples.signal(k, POWER)


def busy(utilization: Floats, power: Floats) -> Bools:
    """Surely at work in this second."""
    return np.where(utilization == utilization, utilization >= BUSY_RATIO, power >= BUSY_WATTS)  # noqa: PLR0124 - NaN


def idle(utilization: Floats, power: Floats) -> Bools:
    """Surely at rest in this second."""
    return np.where(utilization == utilization, utilization <= IDLE_RATIO, power < BUSY_WATTS / 2)  # noqa: PLR0124


def settled(uptime: Floats, grace: float) -> Bools:
    """Not within ``grace`` seconds after boot; a host that does not tell its uptime is taken at its word."""
    return ~(uptime < grace)


class Cohorts:
    """Group numbers for counting with ``np.bincount``; recomputed only when the labels change."""

    def __init__(self) -> None:
        self._labels: tuple[str, ...] | None = None
        self.index: npt.NDArray[np.intp] = np.zeros(0, np.intp)
        self.count = 0

    def follow(self, samples: Samples) -> Cohorts:
        if self._labels is not samples.groups and self._labels != samples.groups:
            labels, index = np.unique(np.asarray(samples.groups, np.str_), return_inverse=True)
            self.index, self.count = index.astype(np.intp), len(labels)
        self._labels = samples.groups
        return self

    def total(self, what: Bools | Floats) -> Floats:
        """Per row: the sum of ``what`` over its cohort."""
        sums = np.bincount(self.index, weights=what, minlength=self.count).astype(np.float64)
        return sums[self.index]

    def most(self, condition: Bools, judged: Bools, *, share: float | Floats, least: int) -> Bools:
        """Per row: whether ``share`` of the at least ``least`` judged members of its cohort show the condition."""
        judging = self.total(judged)
        return (judging >= least) & (self.total(condition & judged) >= share * judging)


class Siblings:
    """Who sits in the same node and cohort; all are counted again only when the entities or the labels change."""

    def __init__(self) -> None:
        self._of: tuple[object, object] = (None, None)
        self._number = self._order = self._size = np.zeros(0, np.intp)

    def find_siblings(self, samples: Samples, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """[len(rows), most] row numbers of each one's siblings without itself, -1 where there are fewer."""
        same = self._of[1] is samples.groups or self._of[1] == samples.groups
        if self._of[0] is not samples.entities or not same:
            numbers: dict[tuple[str | None, str], int] = defaultdict(itertools.count().__next__)
            each = zip(map(attrgetter("node"), samples.entities), samples.groups, strict=True)
            self._number = np.fromiter(map(numbers.__getitem__, each), np.intp)
            self._order, self._size = np.argsort(self._number, kind="stable"), np.bincount(self._number)
            self._of = (samples.entities, samples.groups)
        most = int(self._size.max(initial=1))
        column, size = np.arange(most), self._size[self._number[rows], None]
        start = np.cumsum(self._size)[self._number[rows], None] - size
        members = np.where(column < size, self._order.take(start + column, mode="clip"), -1)
        others: npt.NDArray[np.intp] = members[members != rows[:, None]].reshape(len(rows), most - 1)
        return others


def nan_to_zero(value: float | np.floating[Any]) -> float:
    """For the numbers of an evidence: what is missing is shown as nothing."""
    return float(value) if np.isfinite(value) else 0.0


def place(entity: Entity) -> str:
    """How a sentence names it."""
    return " ".join(part for part in (entity.node, entity.device) if part)
