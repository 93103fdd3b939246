"""A job that saves at several levels, failure by failure: many schedules at once against the same failures.

Training stands still for what a save costs, at the step after which it begins; its copy counts once its lag has passed.
A failure of level k goes back to the newest copy of that level or an outer one, and the copies of inner levels begin
again there. A save that is under way is lost with it, but an outer level's continues. A failure during a restore begins
another one. Arrays have the shape (schedules, runs); work and time are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mainstay.recovery.save_intervals import ProtectionTier
from mainstay.recovery.simulate.failure_processes import Array

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LevelFailures:
    """Failures of many runs, each of one level."""

    gaps_s: Array
    """(runs, failures): since the failure before, or the start."""
    levels: Ints
    """(runs, failures): index of the level that answers for it."""


def draw_failures(tiers: Sequence[ProtectionTier], runs: int, count: int, rng: np.random.Generator) -> LevelFailures:
    """Independent failures at the rates of ``tiers``."""
    rates = np.array([1.0 / tier.mtbf_s for tier in tiers])
    gaps = rng.exponential(1.0 / rates.sum(), (runs, count))
    return LevelFailures(gaps, rng.choice(len(tiers), (runs, count), p=rates / rates.sum()))


class Schedules:
    """Wall time and work of schedules without failures; intervals of a schedule are multiples of those before."""

    def __init__(self, tiers: Sequence[ProtectionTier], every: Ints, step_s: float) -> None:
        """Prepare.

        Args:
            tiers: costs and lags of levels, the innermost first.
            every: (schedules, levels): steps between saves.
            step_s: seconds of a step.

        Raises:
            ValueError: an interval that is no multiple of the one before it.
        """
        if (every[:, 1:] % every[:, :-1]).any():
            raise ValueError("intervals must be multiples of those before them")
        self.intervals = every.T[:, :, None] * step_s
        self._costs = [tier.cost_s for tier in tiers]
        self._counts = [every[:, :1], *(every[:, k, None] // every[:, k - 1, None] for k in range(1, len(tiers)))]
        self._periods = [self.intervals[0] + self._costs[0]]
        for count, cost in zip(self._counts[1:], self._costs[1:], strict=True):
            self._periods.append(count * self._periods[-1] + cost)

    def wall(self, work: Array) -> Array:
        """Seconds until ``work`` is done and what it begins has been paid."""
        paid = (cost * np.floor(work / each + 1e-9) for cost, each in zip(self._costs, self.intervals, strict=True))
        return np.asarray(work + sum(paid))

    def work(self, wall: Array) -> Array:
        """Work done within ``wall`` seconds, at least 0."""
        rest, done = np.maximum(wall, 0.0), np.zeros(wall.shape)
        for level in range(len(self._periods) - 1, -1, -1):
            whole = np.floor(rest / self._periods[level] + 1e-12)
            if level + 1 < len(self._periods):
                whole = np.minimum(whole, self._counts[level + 1] - 1)  # beyond: the outer level's save
            rest, done = rest - whole * self._periods[level], done + whole * self.intervals[level]
        return np.asarray(done + np.clip(rest, 0.0, self.intervals[0]))

    def saved(self, work: Array, level: int) -> Array:
        """The last step up to ``work`` after which ``level`` saves."""
        each = self.intervals[level]
        return np.asarray(np.floor(work / each + 1e-9) * each)


def simulate(tiers: Sequence[ProtectionTier], every: Ints, step_s: float, failures: LevelFailures) -> Array:
    """Share of the time that became training which was never repeated, of each schedule over all runs."""
    plan = Schedules(tiers, every, step_s)
    shape = (len(every), len(failures.gaps_s))
    copies = [np.zeros(shape) for _ in tiers]
    begun, down = np.zeros(shape), np.zeros(shape)
    work = begun
    restores = np.array([tier.restore_s for tier in tiers])
    for gap, failed in zip(failures.gaps_s.T, failures.levels.T, strict=True):
        now = plan.wall(begun) + np.maximum(gap - down, 0.0)
        work = np.where(gap > down, plan.work(now), begun)
        for level, tier in enumerate(tiers):
            ready = np.maximum(plan.work(now - tier.lag_s), begun)
            copies[level] = np.maximum(copies[level], np.where(gap > down, plan.saved(ready, level), 0.0))
        back = np.zeros(shape)
        for level in range(len(tiers) - 1, -1, -1):
            back = np.where(level >= failed, np.maximum(back, copies[level]), back)
        for level in range(len(tiers)):
            going_on = np.minimum(plan.saved(work, level), back)
            kept = np.where(level > failed, np.maximum(copies[level], going_on), copies[level])
            copies[level] = np.minimum(kept, back)
        begun, down = back, np.broadcast_to(restores[failed], shape)
    return np.asarray(work.sum(axis=1) / failures.gaps_s.sum())
