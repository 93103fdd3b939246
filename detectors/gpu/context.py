"""What every detector of GPUs needs to know first: is it at work, has it just booted, who are its peers.

All arrays are [E]. A fact that cannot be known is neither true nor false: callers ask for ``busy`` and for ``idle``.
"""

from __future__ import annotations

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
    """Who sits in the same node and cohort: [E, most] row numbers without oneself, -1 where there are fewer."""

    def __init__(self) -> None:
        self._of: tuple[object, object] = (None, None)
        self._rows: npt.NDArray[np.intp] = np.zeros((0, 1), np.intp)

    def find_siblings(self, samples: Samples) -> npt.NDArray[np.intp]:
        if self._of[0] is samples.entities and (self._of[1] is samples.groups or self._of[1] == samples.groups):
            return self._rows
        numbers: dict[tuple[str | None, str], int] = {}
        each = zip(samples.entities, samples.groups, strict=True)
        number = np.array([numbers.setdefault((e.node, group), len(numbers)) for e, group in each], np.intp)
        order = np.argsort(number, kind="stable")
        size = np.bincount(number)
        start = np.cumsum(size) - size
        column = np.arange(max(int(size.max(initial=1)) - 1, 1))
        own = np.argsort(order, kind="stable") - start[number]  # one's place among one's like
        there = column + (column >= own[:, None])
        place = np.where(there < size[number, None], start[number, None] + there, -1)
        self._rows = np.where(place >= 0, order[place], -1) if len(order) else np.zeros((0, 1), np.intp)
        self._of = (samples.entities, samples.groups)
        return self._rows


def nan_to_zero(value: float | np.floating[Any]) -> float:
    """For the numbers of an evidence: what is missing is shown as nothing."""
    return float(value) if np.isfinite(value) else 0.0


def place(entity: Entity) -> str:
    """How a sentence names it."""
    return " ".join(part for part in (entity.node, entity.device) if part)
