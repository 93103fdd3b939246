"""Counters that begin to run faster than they used to: a Poisson CUSUM for every row and counter.

In control, a row's events come at a rate that is learned from its own past and, while that is short, from its cohort
(Gamma prior by the method of moments). The score is the log-likelihood ratio of a raised rate against the learned one,
summed a minute at a time and never below zero. Two properties matter in practice:

- a minute counts as one event more than expected at most: a weak cell that is read a thousand times is one event, so
  clumps, which real counters have and Poisson does not, cannot alarm by themselves;
- the learned rate is taken two standard deviations above its estimate and stops learning while the score is high, so
  that a short history is no alarm and a ramp does not become normal.

False alarms: by Lorden's bound the mean time to one is at least exp(threshold) minutes for each row and counter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Series
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.series import draw_series

BIN_SECONDS = 60.0
_HOURS = 24
"""Hourly counts drawn in the evidence."""
_LONGEST = 60.0
"""A reading stands for no more than this: what came in a longer silence cannot be told from a reset."""
_LEARNING = 3600.0
"""Seconds of a row's own past before its score counts."""
_MEMORY = 14 * 86_400.0
"""Half-life of what was learned: longer than a ramp, shorter than a card's life."""
_LEAST_RATE = 1e-7
"""Events a second that a cohort without any is credited with: one in four months."""
_LEAST_PEERS = 7
"""A host of eight; fewer cannot say what is usual."""
_PRIOR_SECONDS = (3600.0, 7 * 86_400.0)
"""What the prior may weigh: an hour where cards differ much, a week where they do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One counter, given as a rate."""

    name: str
    words: str
    """What people call its events."""
    rise: float
    """Events an hour above twice the old rate that are worth a word."""
    burst: float
    """Events a second that are a fault after any past."""
    at_work: bool = False
    """Count only what happens under load: the counter also moves when the card goes to sleep and wakes."""


@dataclass(frozen=True, slots=True)
class RateTrend:
    """Events an hour."""

    now: float
    """In the busier one of the last two hours."""
    own: float
    """In the row's own past."""
    peers: float
    """In a peer's past; NaN without peers."""

    def describe_trend(self, what: str) -> str:
        others = "" if np.isnan(self.peers) else f", {self.peers:.3g} among its peers"
        return f"{what} come more often: {self.now:.3g} in the last hour, {self.own:.3g} in a usual one{others}"

    def numbers(self, name: str) -> dict[str, float]:
        return {f"{name}_in_hour": self.now, f"{name}_usual": self.own, f"{name}_of_peers": self.peers}


class PoissonCusum:
    """The scores of some counters, [C, E], in the detector's ``EntityState``.

    Args:
        counters: C of them.
        threshold: score that raises an alarm.
    """

    def __init__(self, counters: tuple[Counter, ...], threshold: float) -> None:
        self.counters, self._threshold = counters, threshold
        self._bin = np.full(len(counters), -1, np.int64)
        self._hour = np.full(len(counters), -1, np.int64)

    def declare(self, rows: EntityState) -> EntityState:
        lead = (len(self.counters),)
        for name in ("events", "watched", "score", "bin_events", "bin_seconds"):
            rows.field(name, 0.0, lead=lead)
        rows.field("read_at", np.nan, lead=lead).field("drifts", fill=False, dtype=np.bool_, lead=lead)
        return rows.field("hours", np.nan, np.float32, lead=(*lead, _HOURS))

    def step(self, rows: EntityState, what: int, rate: Floats, counted: Bools, time: float) -> None:
        """Take a reading of one counter; rows where ``counted`` is false only move their clock."""
        told = np.isfinite(rate)
        if told.any():
            read_at = rows["read_at"][what]
            elapsed = np.where(told & counted, np.minimum(time - read_at, _LONGEST), 0.0)
            elapsed[~(elapsed > 0)] = 0.0  # the first reading: since when is unknown
            rows["bin_events"][what] += np.where(elapsed > 0, rate, 0.0) * elapsed
            rows["bin_seconds"][what] += elapsed
            read_at[told] = time

    def close(self, rows: EntityState, what: int, cohorts: gpu_context.Cohorts, time: float) -> None:
        """Judge a minute when it is over; the counters take turns, so that no tick pays for all."""
        now = int((time - 7.0 * what) // BIN_SECONDS)
        if now == self._bin[what]:
            return
        self._bin[what] = now
        hour = int(now * BIN_SECONDS // 3600)
        self._turn_hour(rows, what, hour)
        events, seconds = rows["bin_events"][what], rows["bin_seconds"][what]
        usual = self.usual(rows, what, cohorts)
        raised = 2 * usual + self.counters[what].rise / 3600
        count = np.minimum(events, 1 + 3 * usual * seconds)
        score = rows["score"][what]
        score += count * np.log(raised / usual) - (raised - usual) * seconds
        np.clip(score, 0.0, 1.5 * self._threshold, out=score)
        score[rows["watched"][what] < _LEARNING] = 0.0
        self._learn(rows, what, count, seconds)
        drifts = rows["drifts"][what]
        drifts[:] = np.where(drifts, score > 0, score >= self._threshold)
        rows["hours"][what, hour % _HOURS] += events
        events[:], seconds[:] = 0.0, 0.0

    def _learn(self, rows: EntityState, what: int, count: Floats, seconds: Floats) -> None:
        calm = rows["score"][what] < self._threshold / 2
        # Most minutes are watched alike by all, and a power costs more than all the rest: then one is enough.
        alike = bool(len(seconds)) and bool((seconds == seconds[0]).all())
        keep = 0.5 ** ((seconds[:1] if alike else seconds) / _MEMORY)
        for name, new in (("events", count), ("watched", seconds)):
            known = rows[name][what]
            known[:] = np.where(calm, known * keep + new, known)

    def usual(self, rows: EntityState, what: int, cohorts: gpu_context.Cohorts) -> Floats:
        """Events a second in control, [E]: two standard deviations above the posterior mean."""
        events, watched = rows["events"][what], rows["watched"][what]
        squares = events**2 / np.maximum(watched, 1.0)
        # The peers without oneself: the only card that errs must not vouch for itself.
        peers = cohorts.total(watched > 0) - (watched > 0)
        total = np.maximum(cohorts.total(watched) - watched, 1.0)
        mean = np.maximum(cohorts.total(events) - events, 0.0) / total
        apart = (cohorts.total(squares) - squares) / total - mean**2
        between = np.maximum(apart - mean * peers / total, 1e-30)
        mean = np.maximum(mean, _LEAST_RATE)
        weight = np.where(peers < _LEAST_PEERS, _PRIOR_SECONDS[0], np.clip(mean / between, *_PRIOR_SECONDS))
        alpha = mean * weight + events
        posterior: Floats = (alpha + 2 * np.sqrt(alpha)) / (weight + watched)
        return posterior

    def _turn_hour(self, rows: EntityState, what: int, hour: int) -> None:
        if hour != self._hour[what]:
            passed = np.arange(max(self._hour[what] + 1, hour - _HOURS), hour)  # nothing was read in these
            rows["hours"][what, passed % _HOURS] = np.nan
            rows["hours"][what, hour % _HOURS] = 0.0
            self._hour[what] = hour

    def trend(self, rows: EntityState, what: int, row: int, cohorts: gpu_context.Cohorts) -> RateTrend:
        """What an alarm rests on, events an hour."""
        lines = self.series(rows, what, row)
        now = max(lines[0].y[-2:]) if lines else 0.0
        events, watched = rows["events"][what], rows["watched"][what]
        peers = float(cohorts.total(watched)[row] - watched[row])
        among = float(cohorts.total(events)[row] - events[row]) / peers if peers > 0 else np.nan
        return RateTrend(now, 3600 * float(events[row]) / max(float(watched[row]), 1.0), 3600 * among)

    def series(self, rows: EntityState, what: int, row: int) -> tuple[Series, ...]:
        """Events in each of the last hours."""
        hours = self._hour[what] - np.arange(_HOURS - 1, -1, -1)
        y = rows["hours"][what, hours % _HOURS, row]
        return draw_series(self.counters[what].name, "1/h", 3600.0 * hours, y)
