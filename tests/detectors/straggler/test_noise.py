"""Noise in the long run, lasting offsets, and what a few sick ranks may not change."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Floats
from mainstay.detectors.straggler.noise import noise_of, pool_of


def correlated(rng: np.random.Generator, steps: int, ranks: int, r: float) -> Floats:
    x = rng.normal(size=(steps, ranks))
    for step in range(1, steps):
        x[step] = r * x[step - 1] + np.sqrt(1 - r * r) * x[step]
    return x


@pytest.mark.parametrize("r", [0.0, 0.3, 0.7])
def test_noise_that_stays_counts_as_in_long_sums(r: float) -> None:
    noise = noise_of(0.01 * correlated(np.random.default_rng(0), 64, 200, r))
    assert noise.sigma == pytest.approx(0.01 * np.sqrt((1 + r) / (1 - r)), rel=0.2)
    assert noise.offset < 0.004


def test_lasting_offsets_are_no_noise() -> None:
    rng = np.random.default_rng(1)
    noise = noise_of(rng.normal(0, 0.004, (64, 100)) + rng.normal(0, 0.02, 100))
    assert noise.sigma == pytest.approx(0.004, rel=0.15)
    assert noise.offset == pytest.approx(0.02, rel=0.3)


def test_sick_ranks_spikes_and_holes_change_little() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0, 0.01, (64, 100))
    x[:, :5] += 0.5
    x[rng.random(x.shape) < 0.005] += 1.0
    x[rng.random(x.shape) < 0.1] = np.nan
    assert noise_of(x).sigma == pytest.approx(0.01, rel=0.35)


def test_nothing_known_is_no_quiet() -> None:
    assert noise_of(np.full((8, 4), np.nan)).sigma == float("inf")
    assert noise_of(np.zeros((0, 0))).sigma == float("inf")


def test_the_pool_is_the_same_ranks_in_any_order() -> None:
    ranks = np.arange(4096)
    order = np.random.default_rng(0).permutation(4096)
    assert (ranks[pool_of(ranks)] == ranks[order][pool_of(ranks[order])]).all()
    assert len(pool_of(ranks)) == pytest.approx(512, abs=64)
    assert len(pool_of(np.arange(100))) == 100
