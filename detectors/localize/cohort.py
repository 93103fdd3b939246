"""What is usual: the healthy speed of each group of transfers, and how much healthy ones scatter.

Faults only slow, so health is the upper of the places where measurements crowd; not the maximum, which noise makes, and
not the median, which faults move when they are many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Bools, Floats

FEWEST = 4
"""Measurements that say what is usual; a group with fewer is not judged."""
NARROW = 0.02
"""Measurements within 2 % are a crowd, for any others."""
BELIEF = 8
"""Measurements that the belief about noise is worth."""
LEAST_NOISE = 0.002
"""No transfer repeats better."""
_SIGMA = 1.4826  # of a normal distribution, from its median absolute deviation


@dataclass(frozen=True, slots=True)
class Cohort:
    """The healthy pairs of one message size."""

    groups: Sequence[tuple[int, bool]]
    """[M]"""
    base: dict[tuple[int, bool], float]
    """Log-speed that is usual; groups with too few measurements are absent."""
    noise: float

    def residual(self, speed: Floats) -> Floats:
        """[M] log-speed against what is usual; NaN where it is unknown."""
        base: Floats = np.array([self.base.get(group, math.nan) for group in self.groups])
        return speed - base

    def renewed(self, speed: Floats, healthy: Bools, belief: float) -> Cohort:
        """From the pairs that no fault explains."""
        base = dict(self.base)
        for group, rows in _rows(self.groups).items():
            kept = speed[rows][healthy[rows] & np.isfinite(speed[rows])]
            if group in base and len(kept) >= 2:
                base[group] = float(np.median(kept))
        now = Cohort(self.groups, base, self.noise)
        rest = now.residual(speed)[healthy]
        return Cohort(self.groups, base, _noise(rest[np.isfinite(rest)], belief))

    def near(self, other: Cohort) -> bool:
        """Whether nothing that matters has changed."""
        moved = max((abs(self.base[g] - other.base.get(g, math.inf)) for g in self.base), default=0.0)
        return moved <= 0.05 * self.noise and abs(self.noise - other.noise) <= 0.05 * self.noise


def usual(speed: Floats, groups: Sequence[tuple[int, bool]], belief: float) -> Cohort:
    """A first guess.

    Args:
        speed: [M] log-speeds; NaN: not measured.
        groups: [M]
        belief: scatter that is expected, as a share.
    """
    base: dict[tuple[int, bool], float] = {}
    rest: list[Floats] = []
    for group, rows in _rows(groups).items():
        values = speed[rows][np.isfinite(speed[rows])]
        if len(values) >= FEWEST:
            base[group], near = _crowd(values)
            rest.append(near - base[group])
    return Cohort(groups, base, _noise(np.concatenate(rest) if rest else np.zeros(0), belief))


def _rows(groups: Sequence[tuple[int, bool]]) -> dict[tuple[int, bool], list[int]]:
    found: dict[tuple[int, bool], list[int]] = {}
    for row, group in enumerate(groups):
        found.setdefault(group, []).append(row)
    return found


def _crowd(values: Floats) -> tuple[float, Floats]:
    """The upper crowd's middle, and its members."""
    ordered = np.sort(values)
    share = max(2, math.ceil(len(ordered) / 4))
    widths = ordered[share - 1 :] - ordered[: len(ordered) - share + 1]
    first = int(np.flatnonzero(widths <= max(3 * widths.min(), NARROW))[-1])
    middle = float(np.median(ordered[first : first + share]))
    reach = max(2.5 * float(widths.min()), NARROW)
    for _ in range(10):
        near = ordered[np.abs(ordered - middle) <= reach]
        moved = float(np.median(near))
        if moved == middle:
            break
        middle = moved
    return middle, near


def _noise(rest: Floats, belief: float) -> float:
    """Standard deviation, robust, with the belief as if it were ``BELIEF`` measurements more."""
    spread = _SIGMA * float(np.median(np.abs(rest))) if len(rest) else 0.0
    variance = (BELIEF * belief**2 + len(rest) * spread**2) / (BELIEF + len(rest))
    return max(LEAST_NOISE, math.sqrt(variance))
