"""A cumulative hazard learned from times at risk, which continues after the last incident that was seen.

Invariant: it never stops growing. A step function that is flat after its last step would call the node that survived
longest, and every job that fits between two steps, free of risk: unknown is never healthy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


class NotEnoughError(ValueError):
    """There is too little to learn from; the message says of what."""


@dataclass(frozen=True, slots=True)
class Spells:
    """Times at risk: row i was watched from ``entry[i]`` (exclusive) to ``stop[i]``, hours on its own clock.

    ``entry`` above zero is left truncation: what would have failed before was never seen. A spell that continues with
    other covariates is simply the next row.
    """

    entry: Floats
    stop: Floats
    observed: Bools
    """Whether it ended with an incident; otherwise it was censored."""

    @property
    def events(self) -> int:
        return int(self.observed.sum())

    def exposure(self, start: float, stop: float, weights: Floats) -> float:
        """Weighted hours at risk between two times."""
        hours = np.minimum(self.stop, stop) - np.maximum(self.entry, start)
        return float(np.sum(np.maximum(hours, 0.0) * weights))


def spells(durations: npt.ArrayLike, observed: npt.ArrayLike, entry: npt.ArrayLike | None = None) -> Spells:
    """Checked spells.

    Args:
        durations: [row] hours on the row's clock at which it ended; > 0.
        observed: [row] whether an incident ended it.
        entry: [row] hours at which watching began, zero if not given.

    Raises:
        ValueError: shapes differ, a time is not finite, or a row ends before it begins.
        NotEnoughError: no row at all, or none that ended with an incident.
    """
    stop = np.asarray(durations, np.float64)
    seen = np.asarray(observed).astype(bool)
    start = np.zeros_like(stop) if entry is None else np.asarray(entry, np.float64)
    if stop.ndim != 1 or stop.shape != seen.shape or stop.shape != start.shape:
        raise ValueError(f"durations {stop.shape}, observed {seen.shape} and entry {start.shape} are not of one length")
    if not (np.isfinite(stop).all() and np.isfinite(start).all()):
        raise ValueError("durations and entry must be finite hours")
    wrong = np.flatnonzero((start < 0) | (stop <= start))
    if wrong.size:
        row = int(wrong[0])
        raise ValueError(f"row {row} is watched from {start[row]:g} h to {stop[row]:g} h, which is no time at risk")
    if not seen.any():
        raise NotEnoughError("no incident was observed: a hazard cannot be learned")
    return Spells(start, stop, seen)


class RiskSets:
    """Who is at risk at each of ``times`` [time]: sorted once, so that every sum over all risk sets costs one pass."""

    def __init__(self, data: Spells, times: Floats) -> None:
        self._sides = [self._side(ends, times) for ends in (data.stop, data.entry)]

    @staticmethod
    def _side(ends: Floats, times: Floats) -> tuple[Indices, Indices]:
        order = np.argsort(-ends, kind="stable")  # the last to end come first
        return order, np.searchsorted(-ends[order], -times, side="right")

    def sums(self, weights: Floats) -> Floats:
        """[time] sum of the weights [row] of the rows with entry < time <= stop."""
        ended, begun = (np.concatenate([[0.0], np.cumsum(weights[order])])[place] for order, place in self._sides)
        return np.asarray(ended - begun, np.float64)


@dataclass(frozen=True, slots=True)
class CumulativeHazard:
    """Piecewise linear through its knots, then on with a constant hazard."""

    times: Floats
    """[knot] hours, ascending, the first 0."""
    values: Floats
    tail: float
    """Hazard after the last knot, per hour; above zero."""

    def at(self, hours: npt.ArrayLike) -> Floats:
        """H at each time; times below zero count as zero."""
        when = np.maximum(np.asarray(hours, np.float64), 0.0)
        beyond = np.maximum(when - self.times[-1], 0.0)
        return np.asarray(np.interp(when, self.times, self.values) + beyond * self.tail, np.float64)


def cumulative(data: Spells, times: Floats, increments: Floats, weights: Floats, piece: int) -> CumulativeHazard:
    """A cumulative hazard from its increments at event times, with a knot after every ``piece`` events at most.

    Args:
        data: the times at risk.
        times: [event] hours, ascending, one an event (tied ones repeat).
        increments: [event] of the cumulative hazard.
        weights: [row] relative hazards, for the exposure after the last knots.
        piece: events between two knots: 1 is exact at every event and noisy between them.
    """
    sums = np.cumsum(increments)
    last = np.flatnonzero(np.append(np.diff(times) > 0, [True]))  # of each group of ties
    chosen = last[(last + 1) // piece > np.concatenate([[0], (last[:-1] + 1) // piece])]
    if not chosen.size or chosen[-1] != last[-1]:
        chosen = np.append(chosen, last[-1])
    knots = np.concatenate([[0.0], times[chosen]])
    values = np.concatenate([[0.0], sums[chosen]])
    return CumulativeHazard(knots, values, _tail(data, weights))


def _tail(data: Spells, weights: Floats) -> float:
    """Incidents per weighted hour over the last tenth of the incidents (ten at least), with all that was watched."""
    times = np.sort(data.stop[data.observed])
    few = min(len(times), max(10, len(times) // 10))
    start = float(times[-few - 1]) if len(times) > few else 0.0
    events = int(np.sum(times > start))
    hours = data.exposure(start, np.inf, weights)
    if events == 0 or hours <= 0:  # all incidents at one time
        start, events, hours = 0.0, len(times), data.exposure(0.0, np.inf, weights)
    return events / hours
