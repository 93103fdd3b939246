"""The best sequence of (dp, pp): against brute force, and by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from recovery.pricing.liveput import Layout, Market, Nodes, plan, trained

LAYOUTS: tuple[Layout, ...] = ((1, 2), (2, 2), (1, 3), (2, 1))


def switch(before: Layout | None, after: Layout, change: Nodes) -> float:
    if before == after:
        return 4.0 if change.removed else 0.0
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
