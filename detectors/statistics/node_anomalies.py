"""Which nodes are rarely as unusual as now: scores of ``node_models``, tails, a budget of alarms, and a latch.

How rare a score is for a healthy node is learned as samples pass: peaks over a threshold with an exponential excess
(Coles 2001, section 5.3), each run over it counted once. A node has few peaks, so its rate and mean excess are drawn
towards those of the fleet, and these towards the normal distribution's, as if ``PRIOR`` more peaks had shown them
(gamma prior). One restless node then neither deafens the fleet nor speaks all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.statistics.alarm_budget import AlarmBudget
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig
from mainstay.detectors.statistics.node_models import VIEWS, NodeModels

START, END = 2.0, 12.0
"""Deviations from which a tail is fitted, and beyond which a score counts no more."""
NORMAL_RATE, NORMAL_EXCESS = 0.02275, 0.3732
"""Of the normal distribution beyond ``START``: P(Z > 2) and E(Z - 2 | Z > 2)."""
PRIOR = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnomalyConfig:
    """Times are in samples."""

    learned: int
    """Of a node before it is judged."""
    memory: float
    """Of a node's first that are its reference."""
    rate: float
    """Alarms a sample that are asked of the whole fleet, true ones included."""
    usual: float
    """Deviations below which a node is as usual."""
    calm: int
    """In a row as usual that end an anomaly."""
    accepted: int
    """That an anomaly stands until it is learned as fast as the end of the reference was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One sample of all nodes."""

    scores: Floats
    """[view, E] deviations; NaN: not judged."""
    chance: Floats
    """[E] that a healthy node scores as high in its rarer view; NaN: not judged."""
    changed: npt.NDArray[np.intp]
    """Nodes whose anomaly begins or ends."""


class NodeAnomalies:
    """All nodes of a fleet; their state is in ``rows``, whose last axis is the nodes."""

    def __init__(self, least: Floats, config: NodeAnomalyConfig) -> None:
        """``least`` [S]: deviation below which a signal is constant."""
        self.config = config
        self.models = NodeModels(least, memory=config.memory, learned=config.learned)
        self.latch = Hysteresis("unusual", HysteresisConfig(needed=2, of_last=3, calm=config.calm))
        self.budget = AlarmBudget(rate=config.rate)

    def declare(self, rows: EntityState) -> EntityState:
        views = len(VIEWS)
        rows.field("tail", 0.0, lead=(4, views)).field("over", fill=False, dtype=np.bool_, lead=(views,))
        rows.field("stood", 0, np.int32)
        return self.latch.declare(self.models.declare(rows))

    def step(self, rows: EntityState, x: Floats) -> Judged:
        """Judge a sample [S, E] of all nodes by their past, and learn from it."""
        c = self.config
        scores = self.models.update(rows, x, stays=rows["stood"] > c.accepted)
        chance = self._chance(rows, scores).min(axis=0)
        judged = np.isfinite(chance)
        self.budget.pass_samples(1)
        level = np.exp(self.budget.log_rate - log(max(int(np.count_nonzero(judged)), 1) * len(VIEWS)))
        with np.errstate(invalid="ignore"):
            rare: Bools = judged & (chance <= level)
            usual: Bools = judged & (scores < c.usual).all(axis=0)
        changed, on = self.latch.step(rows, rare, usual), self.latch.on(rows)
        if on[changed].any():
            self.budget.note_alarm()  # nodes that change in one sample are one cause
        rows["stood"] = np.where(on, rows["stood"] + 1, 0)
        return Judged(scores=scores, chance=chance, changed=changed)

    def _chance(self, rows: EntityState, scores: Floats) -> Floats:
        """[view, E] chance of a healthy node to score as high, by the tails that this sample belongs to."""
        known, z = np.isfinite(scores), np.nan_to_num(scores)
        over = known & (z >= START)
        begins = over & ~rows["over"]
        rows["over"] = over
        excess = np.where(begins, np.minimum(z, END) - START, 0.0)
        fading = rows["tail"] * 0.5 ** (1.0 / self.config.memory)
        rows["tail"] = tail = fading + np.stack([known, begins, begins & (z < END), excess])
        fleet = _rate_and_excess(np.sort(tail).sum(axis=-1, keepdims=True), NORMAL_RATE, NORMAL_EXCESS)  # in any order
        rate, mean = _rate_and_excess(tail, *fleet)
        return np.where(known, np.where(over, rate * np.exp((START - z) / mean), 1.0), np.nan)


def _rate_and_excess(tail: Floats, rate: Floats | float, excess: Floats | float) -> tuple[Floats, Floats]:
    """Runs a sample and mean excess of a run, of ``tail`` [4, view, E] and as if ``PRIOR`` runs were as expected.

    Excesses are censored at ``END``: their sum is divided by the runs that were not (exponential distribution).
    """
    samples, runs, below_end, total = tail
    return (runs + PRIOR) / (samples + PRIOR / rate), (total + PRIOR * excess) / (below_end + PRIOR)
