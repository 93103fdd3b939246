"""State follows its entities, and the medians are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.finding import Entity
from detectors.rows import Rows, median, robust_sigma


def nodes(names: str) -> tuple[Entity, ...]:
    return tuple(Entity(node=n) for n in names)


def test_rows_keep_move_forget_and_fill() -> None:
    rows = Rows().field("a", -1.0).field("b", fill=False, dtype=np.bool_, lead=(2,))
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
        Rows().align(nodes("xyx"))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_median_is_numpys_without_its_warnings(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(50, n))
    x[rng.random(x.shape) < 0.3] = np.nan
    x[0] = np.nan
    known = np.isfinite(x).any(axis=1)
    assert np.isnan(median(x)[0])
    np.testing.assert_allclose(median(x)[known], np.nanmedian(x[known], axis=1))


def test_robust_sigma_estimates_a_normal_deviation_despite_outliers() -> None:
    x = np.random.default_rng(0).normal(scale=3.0, size=20_000)
    x[:2000] = 1e6
    assert robust_sigma(x) == pytest.approx(3.0, rel=0.25)
    assert np.isnan(robust_sigma(np.empty((2, 0)))).all()
