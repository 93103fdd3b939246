"""Counters of errors on which both a rising rate and a burst are faults."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Series
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig
from mainstay.detectors.statistics.poisson_cusum import Counter, PoissonCusum

TREND, BURST = 1, 2


class CounterWatch:
    """Trends and bursts of some counters, in the detector's ``EntityState``.

    A code holds two bits a counter, the first counter in the lowest ones: 0 is well, ``TREND`` or ``BURST``.

    Args:
        counters: what is watched.
        threshold: score that makes a trend.
        burst: how often a burst must be seen, and how long it must stay away.
    """

    def __init__(self, counters: tuple[Counter, ...], threshold: float, burst: HysteresisConfig) -> None:
        self.counters = counters
        self.cohorts = gpu_context.Cohorts()
        self._drift = PoissonCusum(counters, threshold)
        self._bursts = tuple(Hysteresis(f"burst{i}", burst) for i in range(len(counters)))

    def declare(self, rows: EntityState) -> EntityState:
        self._drift.declare(rows).field("rate", np.nan, lead=(len(self.counters),))
        for burst in self._bursts:
            burst.declare(rows)
        return rows

    def step(
        self, rows: EntityState, what: int, rate: Floats, *, counted: Bools, judged: Bools, time: float
    ) -> npt.NDArray[np.int16]:
        """Take a reading of one counter; returns its part of the code, [E]. A burst says all that a trend could.

        Args:
            rows: the memory.
            what: number of the counter.
            rate: [E] events a second.
            counted: [E] where the reading counts towards a trend.
            judged: [E] where it may begin a burst.
            time: Unix seconds.
        """
        self._drift.step(rows, what, rate, counted, time)
        self._drift.close(rows, what, self.cohorts, time)
        least = self.counters[what].burst
        bursts = judged & (rate >= least)
        rows["rate"][what][bursts] = rate[bursts]
        self._bursts[what].step(rows, bursts, rate < least)
        state = np.where(self._bursts[what].on(rows), BURST, np.where(rows["drifts"][what], TREND, 0))
        return (state << (2 * what)).astype(np.int16)

    def state(self, code: int, what: int) -> int:
        """What a code says of one counter."""
        return code >> (2 * what) & 3

    def describe(self, rows: EntityState, row: int, code: int) -> tuple[list[str], dict[str, float], list[Series]]:
        """The words, numbers and series of what a code says."""
        words: list[str] = []
        numbers: dict[str, float] = {}
        series: list[Series] = []
        for what, counter in enumerate(self.counters):
            state, name = self.state(code, what), counter.words.replace(" ", "_")
            if state == BURST:
                numbers[f"{name}_per_second"] = rate = gpu_context.nan_to_zero(float(rows["rate"][what, row]))
                words.append(f"{rate:.4g} {counter.words} a second")
            elif state == TREND:
                trend = self._drift.trend(rows, what, row, self.cohorts)
                words.append(trend.describe_trend(counter.words))
                numbers |= trend.numbers(name)
            if state:
                series += self._drift.series(rows, what, row)
        return words, numbers, series
