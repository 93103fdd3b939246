"""The best sequence of (dp, pp): against brute force, and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from bench.lib_forecast import Array, last_value, resampled
from bench.lib_liveput import Layout, Market, Nodes, follow, plan, trained

LAYOUTS: tuple[Layout, ...] = ((1, 2), (2, 2), (1, 3), (2, 1))


def switch(before: Layout | None, after: Layout, lost: bool) -> float:
    if before == after:
        return 4.0 if lost else 0.0
    return 25.0 if before is not None and before[1] != after[1] else 8.0


MARKET = Market(throughput=lambda layout: layout[0] * layout[1] ** 0.8, switch_s=switch, interval_s=10.0)
"""A change of depth takes longer than two intervals."""


@pytest.mark.parametrize("seed", range(6))
def test_the_plan_equals_brute_force(seed) -> None:
    alive = [4, *np.random.default_rng(seed).integers(2, 5, 4).tolist()]
    changes = [Nodes(now, max(0, now - was), max(0, was - now)) for was, now in zip([0, *alive], alive, strict=False)]
    found, path = plan(changes, LAYOUTS, MARKET)
    every = (
        c for c in product(LAYOUTS, repeat=5) if all(d * p <= n.alive for (d, p), n in zip(c, changes, strict=True))
    )
    assert found == pytest.approx(max(trained(c, changes, MARKET) for c in every))
    assert trained(path, changes, MARKET) == pytest.approx(found)


def test_a_switch_that_does_not_pay_is_not_made() -> None:
    changes = [Nodes(2, 2, 0), Nodes(3, 1, 0), Nodes(2, 0, 1)]
    assert plan(changes, ((1, 2), (1, 3)), MARKET)[1] == ((1, 2),) * 3


def test_what_does_not_fit_trains_nothing() -> None:
    assert trained([(2, 2)], [Nodes(3, 3, 0)], MARKET) == 0.0
    with pytest.raises(ValueError, match="no layout fits 1 nodes"):
        plan([Nodes(1, 1, 0)], LAYOUTS, MARKET)
    with pytest.raises(ValueError, match="zip"):
        trained([], [Nodes(1, 1, 0)], MARKET)


CALM = Market(throughput=MARKET.throughput, switch_s=switch, interval_s=30.0)
"""No switch takes longer than an interval."""


def nodes(seed: int, length: int = 8) -> list[Nodes]:
    alive = [4, *np.random.default_rng(seed).integers(2, 6, length - 1).tolist()]
    return [Nodes(now, max(0, now - was), max(0, was - now)) for was, now in zip([0, *alive], alive, strict=False)]


@pytest.mark.parametrize("seed", range(6))
def test_who_is_told_the_truth_chooses_as_the_plan(seed: int) -> None:
    changes = nodes(seed)

    def truth(counts: Sequence[int], ahead: int) -> Array:
        return np.array([[change.alive for change in changes[len(counts) :][:ahead]]], dtype=np.float64)

    found = follow(changes, LAYOUTS, CALM, truth, ahead=len(changes))
    assert trained(found, changes, CALM) == pytest.approx(plan(changes, LAYOUTS, CALM)[0])


@pytest.mark.parametrize("seed", range(4))
def test_what_is_chosen_now_does_not_know_what_comes(seed: int) -> None:
    changes, other = nodes(seed), nodes(seed + 100)
    mixed = [*changes[:4], *other[4:]]
    for forecast in (last_value, resampled):
        one, two = (follow(each, LAYOUTS, CALM, forecast) for each in (changes, mixed))
        assert one[:4] == two[:4]
        assert all(dp * pp <= change.alive for (dp, pp), change in zip(one, changes, strict=True))


def test_without_a_look_ahead_a_node_that_visits_is_taken_in_at_any_price() -> None:
    changes = [Nodes(2, 2, 0), *([Nodes(3, 1, 0), Nodes(2, 0, 1)] * 3)]
    costly = Market(throughput=lambda layout: float(layout[0] * layout[1]), switch_s=switch, interval_s=80.0)
    eager = follow(changes, ((1, 2), (1, 3)), costly, last_value, ahead=0)
    assert eager == ((1, 2), *((1, 3), (1, 2)) * 3)

    def visits(counts: Sequence[int], ahead: int) -> Array:
        return np.array([[2 + (len(counts) + i) % 2 for i in range(ahead)]], dtype=np.float64)

    calm = follow(changes, ((1, 2), (1, 3)), costly, visits, ahead=6)
    assert trained(calm, changes, costly) > trained(eager, changes, costly)
    with pytest.raises(ValueError, match="no layout fits 1 nodes"):
        follow([Nodes(1, 1, 0)], LAYOUTS, CALM, last_value)
