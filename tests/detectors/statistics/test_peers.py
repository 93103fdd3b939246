"""Middle and scale of cohorts of any size and order."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.entity_state import median, robust_sigma
from mainstay.detectors.finding import Entity
from mainstay.detectors.gpu.context import Siblings
from mainstay.detectors.statistics.peers import Peers


def fleet(sizes: dict[str, int], order: np.ndarray | None = None) -> Samples:
    groups = [label for label, size in sizes.items() for _ in range(size)]
    order = np.arange(len(groups)) if order is None else order
    return Samples(
        entities=tuple(Entity(node=f"n{i}") for i in order),
        groups=tuple(groups[i] for i in order),
        signals=("s",),
        t=np.zeros(1),
        x=np.zeros((1, 1, len(groups))),
    )


def values(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = (100 + 3 * rng.standard_normal(n)).astype(np.float32)
    x[rng.random(n) < 0.05] = np.nan
    return x


@pytest.mark.parametrize("seed", range(4))  # even and odd numbers of known members
def test_every_cohort_has_numpys_median_and_mad(seed: int) -> None:
    sizes = {"a": 8, "b": 1500, "c": 40, "d": 3, "e": 600, "f": 33}
    peers = Peers(least=8, sample=2048)
    assert peers.follow(fleet(sizes)) == (-1, -1, -1, -1, -1)
    assert peers.labels == ("a", "b", "c", "e", "f"), "three are no cohort"
    x = values(sum(sizes.values()), seed)
    x[1508:1548] = np.nan  # no member of c reports
    middle, scale, count = peers.middle(x)
    groups = np.array([label for label, size in sizes.items() for _ in range(size)])
    for number, label in enumerate(peers.labels):
        mine = x[groups == label]
        known = np.count_nonzero(np.isfinite(mine))
        assert count[number] == known
        if known >= 8:
            assert middle[number] == pytest.approx(float(median(mine)), rel=1e-6)
            assert scale[number] == pytest.approx(float(robust_sigma(mine)), rel=1e-5)
        else:
            assert np.isnan(middle[number])
    assert np.isnan(middle[-1]), "the entry without a cohort"
    assert (peers.index[groups == "d"] == len(peers.labels)).all()


@pytest.mark.parametrize("sizes", [{"a": 16, "b": 8}, {"a": 12, "b": 8}, {"a": 10, "b": 8}, {"a": 11, "b": 9, "c": 3}])
def test_a_cohorts_value_reaches_each_of_its_members(sizes: dict[str, int]) -> None:
    peers = Peers(least=8, sample=64)
    peers.follow(fleet(sizes))
    table = np.array([*range(1, len(peers.labels) + 1), np.nan], np.float32)
    found = peers.spread(table, out=np.zeros(sum(sizes.values()), np.float32))
    expected = [x for i, n in enumerate(sizes.values()) for x in [i + 1 if n >= 8 else np.nan] * n]
    np.testing.assert_array_equal(found, expected)


def test_a_huge_cohort_is_known_by_its_sample_whatever_the_order() -> None:
    n = 20_000
    x = values(n)
    plain, turned = Peers(least=8, sample=2048), Peers(least=8, sample=2048)
    order = np.random.default_rng(1).permutation(n)
    plain.follow(fleet({"a": n}))
    turned.follow(fleet({"a": n}, order))
    middle, scale, _ = plain.middle(x)
    assert abs(middle[0] - np.nanmedian(x)) < 4 * 0.028 * 3
    assert scale[0] == pytest.approx(3.0, rel=4 * 0.026)
    assert turned.middle(x[order])[0][0] == middle[0]


def test_the_same_fleet_costs_nothing_and_a_new_one_says_what_stayed() -> None:
    peers = Peers(least=8, sample=2048)
    peers.follow(fleet({"a": 8, "c": 9}))
    assert peers.follow(fleet({"a": 8, "c": 9})) is None
    assert peers.follow(fleet({"a": 8, "b": 8, "c": 9})) == (0, -1, 1)
    assert peers.follow(fleet({})) == ()


def test_who_leaves_changes_nothing_but_the_draw_of_a_newly_made_one() -> None:
    """Hashes kept from tick to tick draw the same sample as hashes made again."""
    n = 300
    all_of_them, fewer = fleet({"a": n}), fleet({"a": n - 20}, np.arange(20, n) - 20)
    fewer = Samples(
        entities=all_of_them.entities[20:], groups=fewer.groups, signals=("s",), t=np.zeros(1), x=fewer.x
    )  # fmt: skip
    kept, names = Peers(least=8, sample=64), np.zeros(n, np.uint32)
    kept.follow(all_of_them, names)
    assert names.all()
    kept.follow(fewer, names[20:])
    anew = Peers(least=8, sample=64)
    anew.follow(fewer)
    np.testing.assert_array_equal(kept.drawn[0], anew.drawn[0])


@pytest.mark.parametrize("entities", [0, 1, 7, 60])
def test_siblings_are_those_of_ones_node_and_cohort_in_order(entities: int) -> None:
    rng = np.random.default_rng(entities)
    where, groups = rng.integers(0, 7, entities), rng.integers(0, 2, entities)
    samples = Samples(
        entities=tuple(Entity(node=f"n{node}", device=f"g{i}") for i, node in enumerate(where)),
        groups=tuple(f"c{group}" for group in groups),
        signals=("s",),
        t=np.zeros(1),
        x=np.zeros((1, 1, entities)),
    )
    told = Siblings().find_siblings(samples, np.arange(entities))
    assert told.shape[0] == entities
    for row in range(entities):
        alike = [i for i in range(entities) if i != row and where[i] == where[row] and groups[i] == groups[row]]
        assert told[row, : len(alike)].tolist() == alike
        assert (told[row, len(alike) :] == -1).all()
