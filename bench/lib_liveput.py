"""Which (dp, pp) to run on nodes that come and go: the sequence that trains most, switches paid for (Parcae, NSDI'24).

Time is cut into intervals; in each the job runs one (dp, pp) that fits the nodes there are. A switch, or a loss, takes
training time out of the interval, and what exceeds it is carried into the next.

``plan`` knows the nodes of each interval: dynamic programming over states (dp, pp, carried time); a state is dropped
when another with the same (dp, pp) has trained at least as much and carries at most as much, so that the result is
exact. ``follow`` knows what has been, and receives what may come: at each interval it plans ahead and takes the first
step, as Parcae does with its predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.lib_forecast import Array, Forecast
from mainstay.recovery.cost_model.layouts import Layout


@dataclass(frozen=True, slots=True)
class Nodes:
    """What changes at the start of an interval."""

    alive: int
    """After the changes."""
    added: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """What layouts are worth and what it costs to come to them."""

    throughput: Callable[[Layout], float]
    """Samples per second; 0 where the layout cannot run."""
    switch_s: Callable[[Layout | None, Layout, bool], float]
    """From a layout (None at the start) to another, or to the same one; True: in an interval in which nodes go."""
    interval_s: float


@dataclass(frozen=True, slots=True)
class _State:
    samples: float
    carried_s: float
    path: tuple[Layout, ...]


def trained(choices: Sequence[Layout], changes: Sequence[Nodes], market: Market) -> float:
    """Samples that a given sequence trains; a layout that does not fit its nodes trains nothing in that interval.

    Raises:
        ValueError: another number of choices than of intervals.
    """
    state = _State(0.0, 0.0, ())
    for choice, change in zip(choices, changes, strict=True):
        state = _after(state, choice, change, market)
    return state.samples


def plan(changes: Sequence[Nodes], layouts: Sequence[Layout], market: Market) -> tuple[float, tuple[Layout, ...]]:
    """The best sequence for known changes.

    Args:
        changes: of each interval.
        layouts: to choose from; in each interval those that fit the nodes.
        market: throughputs and costs.

    Returns:
        Samples, and the layout of each interval.

    Raises:
        ValueError: an interval in which no layout fits.
    """
    front = [_State(0.0, 0.0, ())]
    for change in changes:
        fitting = [layout for layout in layouts if layout[0] * layout[1] <= change.alive]
        if not fitting:
            raise ValueError(f"no layout fits {change.alive} nodes")
        front = [
            state for layout in fitting for state in _best([_after(before, layout, change, market) for before in front])
        ]
    best = max(front, key=lambda state: state.samples)
    return best.samples, best.path


def _after(state: _State, layout: Layout, change: Nodes, market: Market) -> _State:
    before = state.path[-1] if state.path else None
    busy = state.carried_s + market.switch_s(before, layout, change.removed > 0)
    fits = layout[0] * layout[1] <= change.alive
    rate = market.throughput(layout) if fits else 0.0
    gained = rate * max(0.0, market.interval_s - busy)
    return _State(state.samples + gained, max(0.0, busy - market.interval_s), (*state.path, layout))


def _best(states: list[_State]) -> list[_State]:
    """Those that none beats in samples and carried time at once; all end in the same layout."""
    kept: list[_State] = []
    for state in sorted(states, key=lambda each: (-each.samples, each.carried_s)):
        if not kept or state.carried_s < kept[-1].carried_s:
            kept.append(state)
    return kept


AHEAD = 12
"""Intervals that ``follow`` plans ahead: Parcae's are eight to twelve."""


def follow(
    changes: Sequence[Nodes], layouts: Sequence[Layout], market: Market, forecast: Forecast, ahead: int = AHEAD
) -> tuple[Layout, ...]:
    """The layouts of a job that knows no more than what has been.

    At each interval: of the layouts that fit the nodes of now, the one that trains most in this interval and, on the
    mean over the forecast's paths, in those ahead. That is liveput with its expectation taken over futures. What a
    switch takes beyond its interval is charged to that interval, which is exact only where none takes that long.

    Args:
        changes: of each interval, seen one by one.
        layouts: to choose from.
        market: throughputs and costs.
        forecast: of the nodes of the next intervals.
        ahead: intervals that are planned, this one not counted; 0 looks at this interval alone.

    Raises:
        ValueError: an interval in which no layout fits.
    """
    known = _Known(layouts, market)
    chosen: list[int] = []
    for now, change in enumerate(changes):
        if not (known.sizes <= change.alive).any():
            raise ValueError(f"no layout fits {change.alive} nodes")
        later = np.zeros(len(layouts))
        if ahead:
            later = known.later(change.alive, forecast([each.alive for each in changes[: now + 1]], ahead))
        lost = change.removed > 0
        switch = known.switch_s[int(lost)][chosen[-1]] if chosen else known.first_s(lost)
        gained = np.maximum(0.0, known.interval_s - switch) * known.rates
        chosen.append(int(np.argmax(np.where(known.sizes <= change.alive, gained + later, -np.inf))))
    return tuple(layouts[each] for each in chosen)


class _Known:
    """A market's layouts as arrays: rates (layouts,), seconds of switches (lost or not, from, to)."""

    def __init__(self, layouts: Sequence[Layout], market: Market) -> None:
        self._layouts, self._market = layouts, market
        self.interval_s = market.interval_s
        self.sizes = np.array([dp * pp for dp, pp in layouts])
        self.rates = np.array([market.throughput(layout) for layout in layouts])
        self.switch_s = np.array(
            [[[market.switch_s(a, b, lost) for b in layouts] for a in layouts] for lost in (False, True)]
        )

    def first_s(self, lost: bool) -> Array:
        """Seconds to begin with each layout."""
        return np.array([self._market.switch_s(None, layout, lost) for layout in self._layouts])

    def later(self, alive: int, paths: Array) -> Array:
        """Samples that each layout, held now, will have trained by the end of the best sequence; the mean over paths.

        A layout that does not fit an interval's nodes trains nothing in it.
        """
        nodes = np.floor(paths + 0.5)
        lost = np.diff(nodes, axis=1, prepend=float(alive)) < 0.0
        total = np.zeros((len(paths), len(self.sizes)))
        for path in range(len(paths)):
            for i in reversed(range(nodes.shape[1])):
                rates = np.where(self.sizes <= nodes[path, i], self.rates, 0.0)
                trained = (self.interval_s - self.switch_s[int(lost[path, i])]) * rates
                total[path] = (trained + total[path]).max(axis=1)
        mean: Array = total.mean(axis=0)
        return mean
