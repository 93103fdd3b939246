"""State follows its entities, and the medians are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.entity_state import EntityState, median, robust_sigma
from mainstay.detectors.finding import Entity


def nodes(names: str) -> tuple[Entity, ...]:
    return tuple(Entity(node=n) for n in names)


def test_rows_keep_move_forget_and_fill() -> None:
    rows = EntityState().field("a", -1.0).field("b", fill=False, dtype=np.bool_, lead=(2,))
    rows.align(nodes("xyz"))
    rows["a"] = np.array([1.0, 2.0, 3.0])
    rows["b"][1] = [True, False, True]
    rows.align(nodes("zwx"))
    assert rows["a"].tolist() == [3.0, -1.0, 1.0]
    assert rows["b"].tolist() == [[False] * 3, [True, False, True]]
    rows.align(())
    rows.align(nodes("x"))
    assert rows["a"].tolist() == [-1.0], "who left is forgotten"


def test_an_entity_may_not_stand_twice() -> None:
    with pytest.raises(ValueError, match="node=x stands twice"):
        EntityState().align(nodes("xyx"))


@pytest.mark.parametrize("seed", range(8))
def test_whoever_leaves_comes_or_moves_rows_are_as_if_each_entity_had_its_own(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (
        EntityState().field("a", -1.0, lead=(3, 2)).field("b", fill=True, dtype=np.bool_).field("c", 0, np.uint8, (2,))
    )
    known: dict[Entity, dict[str, np.ndarray]] = {}
    now: tuple[Entity, ...] = ()
    for turn in range(40):
        what = turn % 5
        keep = rng.random(len(now)) > (0.5, 0.02, 0.1, 0.0, 0.9)[what]  # some leave: few in one place, or many
        now = tuple(entity for entity, stays in zip(now, keep, strict=True) if stays)
        if what in {0, 4}:
            now += tuple(Entity(node=f"n{i}") for i in rng.choice(10_000, 60, replace=False) + 10_000 * turn)
        if what == 2:
            now = tuple(now[i] for i in rng.permutation(len(now)))
        if what == 3:
            now = tuple(Entity(node=entity.node) for entity in now)  # the same ones, as other objects
        rows.align(now)
        fresh = {name: np.full(rows[name].shape[:-1], fill) for name, fill in (("a", -1.0), ("b", True), ("c", 0))}
        known = {entity: known.get(entity, fresh) for entity in now}
        for column, entity in enumerate(now):
            for name, want in known[entity].items():
                np.testing.assert_array_equal(rows[name][..., column], want)
        for name in ("a", "b", "c"):  # new numbers, in the rows and in the memory of this test
            rows[name] = rng.integers(0, 2 if name == "b" else 200, rows[name].shape)
        known = {e: {name: rows[name][..., column].copy() for name in fresh} for column, e in enumerate(now)}


def test_who_left_frees_memory_once_half_of_it_is_empty() -> None:
    everyone = tuple(Entity(node=f"n{i}") for i in range(1000))
    rows = EntityState().field("a", 0.0)
    rows.align(everyone)
    rows.align(everyone[:900])
    assert rows["a"].shape == (900,)
    assert rows.nbytes == 8000, "told as it is held"
    rows.align(everyone[:400])
    assert rows.nbytes == 3200


@pytest.mark.parametrize("before", ["", "x", "xyz"])
@pytest.mark.parametrize("now", ["xx", "xyx", "wxw", "wzw"])
def test_nobody_stands_twice_as_the_same_or_as_another_object(before: str, now: str) -> None:
    rows = EntityState().field("a", 0.0)
    rows.align(nodes(before))
    same = {entity.node: entity for entity in rows.entities}
    mixed = tuple(same.pop(name, Entity(node=name)) for name in now)
    with pytest.raises(ValueError, match=r"node=[xw] stands twice"):
        rows.align(mixed)
    assert rows.entities == nodes(before), "nothing has changed"


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 512, 513, 600])
def test_median_is_numpys_without_its_warnings(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(50, n))
    x[rng.random(x.shape) < 0.3] = np.nan
    x[0] = np.nan
    known = np.isfinite(x).any(axis=1)
    assert np.isnan(median(x)[0])
    np.testing.assert_allclose(median(x)[known], np.nanmedian(x[known], axis=1))
    np.testing.assert_array_equal(median(x.reshape(5, 10, n)), median(x).reshape(5, 10))


def test_robust_sigma_estimates_a_normal_deviation_despite_outliers() -> None:
    x = np.random.default_rng(0).normal(scale=3.0, size=20_000)
    x[:2000] = 1e6
    assert robust_sigma(x) == pytest.approx(3.0, rel=0.25)
    assert np.isnan(robust_sigma(np.empty((2, 0)))).all()
