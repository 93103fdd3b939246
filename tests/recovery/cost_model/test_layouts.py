"""Depths and mixes of pipelines: against enumeration, against the greedy split, and Frobenius by counting."""

from __future__ import annotations

import random
from itertools import product

import pytest

from mainstay.recovery.cost_model.layouts import (
    LayoutModel,
    Mix,
    _ended,
    _two_depths,
    best_layout,
    best_mix,
    depths,
    layout_s,
    layouts,
    mix_s,
    mixable,
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


def test_a_step_of_unlike_pipelines_by_hand() -> None:
    """Two of three stages at 2 s and one of two at 3 s, ten micro-batches: without rounding (10 + 5) / (4/3) = 11.25 s.

    At 12 s (6 - 2) x 2 + (4 - 1) = 11 have ended; at 10 s only 3 x 2 + 2 = 8.
    """
    parts = ((2, 3, 2.0), (1, 2, 3.0))
    assert mix_s(model(batch=10), parts) == 12.0
    assert mix_s(model(batch=8), parts) == 10.0
    assert mix_s(model(batch=1), ((1, 5, 2.0),)) == 10.0, "one micro-batch passes all stages"
    assert (_ended(parts, 12.0), _ended(parts, 11.999), _ended(parts, 10.0)) == (11, 8, 8)
    assert _ended(((1, 1, 0.1),), 0.3) == 3, "0.3 / 0.1 is a little less than 3"


@pytest.mark.parametrize(
    ("workers", "least", "batch", "can"), [(2, 2, 1, True), (1, 2, 1, False), (17, 2, 2, True), (24, 2, 2, False)]
)
def test_workers_hold_the_model_and_have_a_micro_batch_each(workers: int, least: int, batch: int, can: bool) -> None:
    """Eight layers: at most eight stages, so that 24 workers make three pipelines at least."""
    one = model(batch=batch, least=least)
    assert mixable(one, workers) is can
    assert (best_mix(one, workers) is not None) is can


@pytest.mark.parametrize(("stages", "slot"), [(1, 8.0), (2, 4.0), (3, 3.0), (4, 2.0), (5, 2.0), (7, 2.0), (8, 1.0)])
def test_the_fullest_stage_sets_the_pace(stages: int, slot: float) -> None:
    assert model().slot_s(stages) == slot
    assert layout_s(model(batch=7), (2, stages)) == (4 + stages - 1) * slot
    assert [depths(model(least=least)) for least in (1, 3, 8)] == [[1, 2, 3, 4, 8], [3, 4, 8], [8]]


def test_pipelines_are_no_more_than_micro_batches() -> None:
    assert layouts(model(batch=2), 6) == [(2, 1), (2, 2), (2, 3), (1, 4), (1, 5), (1, 6)]
    assert layouts(model(layers=3), 6) == [(6, 1), (3, 2), (2, 3)]
    assert list(mixes(4, (2, 3))) == [(2, 0)]
    assert list(mixes(5, (2,))) == []


def test_the_best_mix_by_hand() -> None:
    """Five layers on seven nodes, twelve micro-batches: stages of 3, 2 and 1 layers at depths 2, 3 and 5.

    Depths 5 and 2 have rates 1 and 1/3 and a fill of 5: 17 / (4/3) = 12.75; at 13 s 9 + 3 have ended. Two of 2 and one
    of 3 need 16 / (7/6) = 13.7 s, two of 3 need 16 s, three of 2 need 15 s, and five nodes alone 16 s.
    """
    one = model(layers=5, batch=12, least=2)
    assert best_mix(one, 7) == (13.0, ((1, 2, 3.0), (1, 5, 1.0)))
    assert best_mix(one, 5) == (16.0, ((1, 5, 1.0),))
    assert next(_two_depths(one, 7)) == ((1, 2, 3.0), (1, 5, 1.0)), "the shallower first"
