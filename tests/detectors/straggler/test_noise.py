"""Noise in the long run, lasting offsets, and what a few sick ranks may not change."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Floats
from mainstay.detectors.straggler.noise import _blocks, _from_lags, _offset, _spread, drift_of, noise_of, pool_of


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


NAN, MAD = float("nan"), 1.4826


def test_the_pool_of_a_large_job_is_chosen_by_a_hash_of_the_number() -> None:
    """Of 1,024 ranks those with a hash below a half of 2^32."""
    ranks = np.arange(1024)
    assert ranks[pool_of(ranks)].tolist() == [r for r in range(1024) if r * 2654435761 % 2**32 < 2**31]
    assert ranks[::-1][pool_of(ranks[::-1])].tolist() == ranks[pool_of(ranks)].tolist()
    assert pool_of(np.array([7, 3, 5])).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("own", "drift"),
    [([1.0, 3.0, 8.0], 3.0), ([1.0, 3.0], 0.0), ([1.0, 3.0, NAN], 0.0), ([1.0, 3.0, NAN, 8.0], 3.0), ([NAN], 0.0)],
)
def test_how_far_the_job_moved_is_the_middle_of_three_ranks_and_more(own: list[float], drift: float) -> None:
    assert drift_of(np.array(own)) == drift
    assert drift_of(np.array([own, own])).tolist() == [drift] * 2


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ([], np.inf),
        ([NAN], np.inf),
        ([0.0, NAN, 0.0], 0.0),
        ([1.0, -1.0, 1.0, -1.0], MAD),
        ([1.0] * 9 + [-100.0], np.sqrt((9 + (4 * MAD) ** 2) / 10)),  # a tail counts as four deviations
    ],
)
def test_spread_is_robust_and_knows_tails_up_to_four(values: list[float], spread: float) -> None:
    assert _spread(np.array(values)) == pytest.approx(spread)


def persistent(one: float, two: float, known: int) -> float:
    """From the spreads of the differences over one and two steps."""
    rho = np.clip((two / one) ** 2 - 1 - 1 / np.sqrt(known), 0.0, 0.9)
    return float(one / np.sqrt(2 * (1 - rho)) * np.sqrt((1 + rho) / (1 - rho)))


@pytest.mark.parametrize(
    ("steps", "one", "two"),
    [
        ([1.0, -1.0] * 32, MAD, 0.0),  # no persistence: the deviation is that of a step over the root of two
        ([1.0] * 63, MAD, 2 * MAD),  # as persistent as is believed: 0.9
        ([1.0, 1.0, 0.3] * 21, MAD, 1.3 * MAD),  # in between: 0.69 less an eighth
    ],
)
def test_noise_from_differences_over_one_and_two_steps(steps: list[float], one: float, two: float) -> None:
    x = np.concatenate([[0.0], np.cumsum(steps)])[:, None]
    assert _from_lags(x) == pytest.approx(persistent(one, two, len(x)))
    assert _from_lags(x * NAN) == np.inf
    assert _from_lags(np.zeros((9, 2))) == 0.0


def test_two_steps_tell_the_noise_but_no_persistence() -> None:
    assert _from_lags(np.array([[0.0, 0.0], [1.0, -1.0]])) == pytest.approx(MAD / np.sqrt(2))


def test_blocks_of_eight_steps_the_newest_last() -> None:
    column = np.array([9.0, 9.0] + [1.0] * 8 + [2.0] * 8 + [4.0] * 8)
    holes = column.copy()
    holes[2:4], holes[10:13] = NAN, NAN  # six of eight are known, and five
    found = _blocks(np.stack((column, holes), axis=1))
    assert found is not None
    assert found[:, 0].tolist() == [1.0, 2.0, 4.0]
    assert found[:, 1].tolist() == pytest.approx([1.0, NAN, 4.0], nan_ok=True)
    assert _blocks(column[:23, None]) is None, "three blocks are the least"
    assert _blocks(holes[:, None]) is None, "no two that follow each other are known"


def test_noise_that_stays_longer_than_a_step_is_seen_in_blocks() -> None:
    """Blocks of 8 steps at levels that differ: a step of their means is the noise times the root of 2 / 8."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(0, 1.0, (8, 5)), 8, axis=0) + rng.normal(0, 1.0, (64, 5))
    sigma = _from_lags(x)
    own = np.median(x, axis=0)
    means = np.clip(x, own - 4 * sigma, own + 4 * sigma).reshape(8, 8, 5).mean(axis=1)
    sure = 1 - 1 / np.sqrt(7 * 5)
    expected = sure * np.sqrt(8 / 2) * _spread(np.diff(means, axis=0))
    assert expected > sigma
    assert noise_of(x).sigma == pytest.approx(expected)
    assert noise_of(x).samples == 320


@pytest.mark.parametrize(
    ("means", "sigma", "offset"),
    [
        ([0.1, -0.1, 0.1], 0.02, np.sqrt((MAD * 0.1 * (1 + 1 / np.sqrt(3))) ** 2 - 0.02**2 / 3)),
        ([0.1], 0.02, np.sqrt((MAD * 0.1 * 2) ** 2 - 0.02**2 / 3)),
        ([0.3, 0.3], 0.02, np.sqrt((MAD * 0.2 * (1 + 1 / np.sqrt(2))) ** 2 - 0.02**2 / 3)),  # at most ten sigma
        ([0.3, 0.3], 0.0, MAD * 0.3 * (1 + 1 / np.sqrt(2))),
        ([0.01, -0.01], 0.2, 0.0),  # what the noise of a mean explains
        ([0.1], np.inf, 0.0),
    ],
)
def test_lasting_offsets_beyond_the_noise_of_a_mean(means: list[float], sigma: float, offset: float) -> None:
    """Three steps are known of each rank; two of another, which are too few."""
    x = np.array([[*means, 9.0], [*means, 9.0], [NAN] * (len(means) + 1), [*means, NAN]])
    assert _offset(x, sigma) == pytest.approx(offset)
    assert _offset(x[:2], sigma) == 0.0
