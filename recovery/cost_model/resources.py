"""How a step's time depends on the number of workers, learned from what was seen, and how many are worth having.

DLRover-RM (VLDB 2024) fits a model of performance with coefficients of at least 0 to a running job's own steps and
re-plans its resources by it. Here seconds of a step = fixed + work / workers + talk x workers.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

TERMS = 3
WORTH = 0.5
"""A worker is worth having if the step gains at least half of what a perfect division would give it: below that most
of a worker's time is overhead."""


@dataclass(frozen=True, slots=True)
class ScalingSample:
    """What was seen."""

    workers: int
    step_s: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients in seconds, each at least 0."""

    fixed_s: float
    work_s: float
    talk_s: float

    def step_s(self, workers: int) -> float:
        return self.fixed_s + self.work_s / workers + self.talk_s * workers


def enough(samples: Sequence[ScalingSample]) -> bool:
    """Whether there is something to fit: three terms go through any two numbers of workers."""
    return len({sample.workers for sample in samples}) >= TERMS


def fit(samples: Sequence[ScalingSample]) -> Fit | None:
    """Least squares with coefficients of at least 0, exactly: the best of all subsets of terms.

    None if there is not ``enough``.
    """
    if not enough(samples):
        return None
    seen = np.array([sample.step_s for sample in samples])
    columns = np.array([[1.0, 1.0 / sample.workers, float(sample.workers)] for sample in samples])
    best, least = np.zeros(TERMS), float("inf")
    for size in range(1, TERMS + 1):
        for chosen in combinations(range(TERMS), size):
            found = np.linalg.lstsq(columns[:, chosen], seen, rcond=None)[0]
            misfit = float(((columns[:, chosen] @ found - seen) ** 2).sum())
            if found.min() >= 0.0 and misfit < least:
                best, least = np.zeros(TERMS), misfit
                best[list(chosen)] = found
    return Fit(*(float(value) for value in best))


def useful_workers(fitted: Fit, most: int) -> int:
    """The most workers of which the last still gains ``WORTH`` of a perfect division; at least 1.

    The next one's gain, work / w (w + 1) - talk, falls with w and its due, WORTH x step / (w + 1), falls more slowly:
    where it is not worth it once, it never is again.
    """

    def pays(workers: int) -> bool:
        now = fitted.step_s(workers)
        return now - fitted.step_s(workers + 1) >= WORTH * now / (workers + 1)

    return bisect.bisect_left(range(1, max(1, most)), x=True, key=lambda workers: not pays(workers)) + 1
