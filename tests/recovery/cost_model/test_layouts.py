"""Depths and mixes of pipelines: against enumeration, against the greedy split, and Frobenius by counting."""

from __future__ import annotations

import random
from itertools import product

import pytest

from mainstay.recovery.cost_model.layouts import (
    LayoutModel,
    Mix,
    best_layout,
    best_mix,
    depths,
    layout_s,
    layouts,
    mix_s,
    mixes,
)
from tests.recovery.pricing.greedy import mixed_batches


def model(layers: int = 8, batch: int = 24, least: int = 1) -> LayoutModel:
    return LayoutModel(layers=layers, layer_s=1.0, batch=batch, least=least)


def test_mixes_are_all_and_different() -> None:
    found = list(mixes(13, (3, 4, 5)))
    assert len(set(found)) == len(found)
    counted = {mix for mix in product(range(5), repeat=3) if 3 * mix[0] + 4 * mix[1] + 5 * mix[2] == 13}
    assert set(found) == counted


def test_a_batch_is_split_as_well_as_the_greedy_does() -> None:
    rng = random.Random(1)
    for _ in range(200):
        parts: Mix = tuple(
            (rng.randint(1, 4), rng.randint(1, 8), rng.choice([1.0, 0.7, 0.33, 2.5])) for _ in range(rng.randint(1, 3))
        )
        batch = sum(count for count, _, _ in parts) + rng.randint(0, 60)
        each = [(stages, slot) for count, stages, slot in parts for _ in range(count)]
        assert mix_s(model(batch=batch), parts) == pytest.approx(mixed_batches(each, batch)[0], rel=1e-9)


@pytest.mark.parametrize(("layers", "least"), [(8, 2), (12, 2), (12, 4), (24, 3), (26, 4)])
def test_no_mix_is_faster_than_the_best_of_two_depths(layers: int, least: int) -> None:
    one = model(layers, least=least)
    for nodes in range(least, 15):
        sizes = range(least, min(nodes, layers) + 1)
        everything = (
            tuple((count, size, one.slot_s(size)) for count, size in zip(mix, sizes, strict=True) if count)
            for mix in mixes(nodes, sizes)
        )
        fastest = min(mix_s(one, mix) for mix in everything if 0 < sum(part[0] for part in mix) <= one.batch)
        found = best_mix(one, nodes)
        assert found is not None
        assert found[0] <= fastest * (1.0 + 1e-9)
        assert sum(count * stages for count, stages, _ in found[1]) <= nodes
    assert best_mix(one, least - 1) is None


def test_layouts_by_hand() -> None:
    # 8 layers on 6 nodes: depth 2 gives 3 pipelines of 8 micro-batches at 4 s: 36 s; depth 3 gives 2, (12 + 2) x 3 s.
    one = model(least=2)
    assert (layout_s(one, (3, 2)), layout_s(one, (2, 3))) == (36.0, 42.0)
    assert layouts(one, 6) == [(3, 2), (2, 3), (1, 4), (1, 5), (1, 6)]
    assert best_layout(one, 6) == (3, 2)
    assert best_layout(one, 1) is None
    assert depths(model(8)) == [1, 2, 3, 4, 8]
