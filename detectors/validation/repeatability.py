"""How well a benchmark repeats: whether it can be a gate at all.

The similarity of two runs is one minus the area between their distribution functions over the largest value (two-sided;
``similarity``). A benchmark's repeatability is the mean over all pairs of runs of the same device, devices weighing
alike. Below 0.98 it is not a gate: its own noise is as large as the slowdowns that it should find (goal V11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.statistics.similarity import Sample, two_sided

NEEDED = 0.98
"""Mean similarity of repeats that makes a gate."""
_MOST_RUNS = 200
"""Runs of one device that are compared pairwise, evenly chosen: 20,000 pairs fix a mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeatability:
    """How alike repeats on the same device are."""

    similarity: float
    """Mean of all devices; NaN if nothing was repeated."""
    one_sided: float
    """Mean one-sided distance of one run from another: what alpha is made of, since a verdict looks at one side."""
    devices: int
    """Devices with repeats."""
    pairs: int
    from_halves: bool = False
    """No device ran twice: the halves of each run were compared instead."""

    @property
    def is_gate(self) -> bool | None:
        """None: nothing was repeated, so it is unknown."""
        return None if math.isnan(self.similarity) else self.similarity >= NEEDED


def repeatability(runs: Sequence[Sample], devices: Sequence[str] | None = None) -> Repeatability:
    """Mean pairwise similarity over the runs of each device; over the halves of each run where no device ran twice.

    The halves of a run are half as long as the run, and a distance between samples shrinks with the root of their
    length: it is divided by the root of two.

    Args:
        runs: one array a run, its repetitions in the order taken, finite and above zero.
        devices: of which device each run is; None: unknown.

    Raises:
        ValueError: a run is empty or not above zero, or the devices are not one a run.
    """
    if devices is not None and len(devices) != len(runs):
        raise ValueError(f"{len(runs)} runs but {len(devices)} devices: name one a run")
    groups: dict[str, list[Sample]] = {}
    for device, run in zip(devices or (), runs, strict=False):
        groups.setdefault(device, []).append(run)
    distances = [_pairwise(group) for group in groups.values() if len(group) > 1]
    if distances:
        return _mean(distances, scale=1.0)
    halves = [_pairwise([run[: len(run) // 2], run[len(run) // 2 :]]) for run in runs if len(run) > 1]
    return _mean(halves, scale=math.sqrt(0.5), from_halves=True)


def _pairwise(group: Sequence[Sample]) -> Floats:
    """Distances of all pairs."""
    if len(group) > _MOST_RUNS:
        group = [group[int(i)] for i in np.linspace(0, len(group) - 1, _MOST_RUNS)]
    return np.concatenate([two_sided(group[i + 1 :], run) for i, run in enumerate(group[:-1])])


def _mean(distances: Sequence[Floats], *, scale: float, from_halves: bool = False) -> Repeatability:
    mean = scale * float(np.mean([d.mean() for d in distances])) if distances else math.nan
    return Repeatability(
        similarity=1.0 - mean,
        one_sided=mean / 2.0,  # of two runs either may be the slower one
        devices=len(distances),
        pairs=sum(map(len, distances)),
        from_halves=from_halves,
    )
