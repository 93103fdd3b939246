"""Which (dp, pp) to run on nodes that come and go: the sequence that trains most, switches paid for (Parcae, NSDI'24).

Time is cut into intervals; in each the job runs one (dp, pp) that fits the nodes there are. A switch, or a loss, takes
training time out of the interval, and what exceeds it is carried into the next. Dynamic programming over states
(dp, pp, carried time) with the nodes of each interval known or predicted; a state is dropped when another with the same
(dp, pp) has trained at least as much and carries at most as much, so that the result is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Layout = tuple[int, int]
"""dp, pp."""


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
    switch_s: Callable[[Layout | None, Layout, Nodes], float]
    """From a layout (None at the start) to another, or to the same one, at these changes."""
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
    busy = state.carried_s + market.switch_s(before, layout, change)
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
