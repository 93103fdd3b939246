"""The choice of a base, against every other sequence of choices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest

from mainstay.recovery.checkpoint.encoding.chain_policy import (
    MAX_LINKS,
    ChainCosts,
    Link,
    chain_of,
    choose_base,
    pays_full,
)

FULL = 1000
Sizes = Callable[[int, int], int]
"""Bytes of the difference between two steps."""


def touched(share: float) -> Sizes:
    """An embedding of which each step touches a random share of the rows."""
    return lambda old, new: round(FULL * (1 - (1 - share) ** (new - old)))


def costs(limit: float = math.inf) -> ChainCosts:
    return ChainCosts(read_bytes_per_second=1, max_restore_seconds=limit)


def run(sizes: Sizes, cost: ChainCosts, steps: int, *, since_full: bool = False) -> list[Link]:
    """What is written; with ``since_full``, where the step before is no better base than the full one."""
    written: list[Link] = []
    cycle: list[Link] = []
    for epoch in range(steps):
        first, last = (cycle[0].epoch, cycle[-1].epoch) if cycle else (0, 0)
        last = first if since_full else last
        base = choose_base(cycle, cost, since_full=sizes(first, epoch), since_previous=sizes(last, epoch))
        if base is None:
            cycle = []
        link = Link(epoch, FULL if base is None else sizes(base, epoch), base)
        cycle.append(link)
        written.append(link)
    return written


def price(written: Sequence[Link], cost: ChainCosts) -> float:
    """Bytes a step; infinite if a restore would take too long."""
    chains = [chain_of(written, link.epoch) for link in written]
    if any(cost.restore_seconds(chain) > cost.max_restore_seconds and len(chain) > 1 for chain in chains):
        return math.inf
    return sum(link.nbytes for link in written) / len(written)


def best_cycle(bases: str, sizes: Sizes, cost: ChainCosts, longest: int) -> float:
    """The least price of a cycle of up to ``longest`` steps that repeats: ``bases`` are ``f`` (full step), ``p``."""
    prices = []
    for length in range(longest):
        for choice in itertools.product(bases, repeat=length):
            written = [Link(0, FULL)]
            for epoch, base in enumerate(choice, 1):
                old = 0 if base == "f" else epoch - 1
                written.append(Link(epoch, sizes(old, epoch), old))
            prices.append(price(written, cost))
    return min(prices)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.05, 0.1, 0.3, 0.7])
def test_intermittent_is_the_best_period(share: float) -> None:
    """A full step is due when the next difference costs more than the average: no other period is cheaper."""
    sizes, cost = touched(share), costs()
    best = min(price([Link(0, FULL), *(Link(e, sizes(0, e), 0) for e in range(1, n))], cost) for n in range(1, 60))
    written = run(sizes, cost, 600, since_full=True)
    starts = [link.epoch for link in written if link.base is None]
    assert price(written[: starts[-1]], cost) == pytest.approx(best, rel=1e-6)


def test_intermittent_is_the_predictor_of_check_n_run() -> None:
    sizes, (first, *others) = touched(0.05), run(touched(0.05), costs(), 40, since_full=True)
    assert first.base is None
    written = [FULL]
    for link in others:
        size = sizes(link.epoch - len(written), link.epoch)
        assert (link.base is None) == (sum(written) <= size * len(written))
        written = [FULL] if link.base is None else [*written, size]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("limit", [math.inf, 1300, 1600])
def test_what_is_written_is_near_the_best_sequence_and_within_the_limit(share: float, limit: float) -> None:
    sizes, cost = touched(share), costs(limit)
    found = price(run(sizes, cost, 400), cost)
    assert found < 1.02 * best_cycle("fp", sizes, cost, 10)
    assert found <= 1.02 * price(run(sizes, cost, 400, since_full=True), cost)


def test_another_full_step_pays_where_its_cycle_cost_less_than_steps_alone() -> None:
    cycle = [Link(0, 1000), Link(1, 600, 0), Link(2, 700, 0)]  # 766.7 a step
    assert [pays_full(cycle, alone) for alone in (766, 767)] == [False, True]
    assert not pays_full(cycle[:1], 1001), "nothing is known of steps against it"


def test_the_cheaper_base_is_taken_within_the_limit() -> None:
    cycle = [Link(0, 1000), Link(1, 100, 0), Link(2, 100, 1)]
    for since_full, since_previous, limit, base in [
        (300, 100, math.inf, 2), (100, 300, math.inf, 0), (200, 200, math.inf, 0), (300, 100, 1300, 2),
        (250, 150, 1300, 0), (400, 150, 1300, None), (400, 400, math.inf, None),
    ]:  # fmt: skip
        assert choose_base(cycle, costs(limit), since_full=since_full, since_previous=since_previous) == base


def test_a_chain_has_a_greatest_length() -> None:
    written = run(lambda old, new: new - old, costs(), MAX_LINKS * 2)
    assert max(len(chain_of(written, link.epoch)) for link in written) == MAX_LINKS
    with pytest.raises(KeyError):
        chain_of([Link(3, 1, 2)], 3)
