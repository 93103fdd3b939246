"""One slow level is shown in few steps; rare large values, two-way noise and bursts of it are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import Floats
from mainstay.detectors.network.transfer_delay_plateau import WINDOWS, NoiseTail, _chance, evidence, tail_of

BULK, LEAST = 0.05, float(np.log(1.2))
RARE = 1e5
"""Windows to a false alarm, a tenth of what is simulated."""


def bulk(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.normal(0.0, BULK, shape)


def pareto(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """One transfer in fifty takes a Pareto-distributed time longer."""
    return bulk(rng, shape) + np.where(rng.random(shape) < 0.02, rng.exponential(0.67, shape), 0.0)


def two_ways(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """One transfer in twenty takes a way that is half as fast: always the same level."""
    return bulk(rng, shape) + np.where(rng.random(shape) < 0.05, np.log(2.0), 0.0)


def bursts(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Congestion that lasts three steps in the mean, at one level each time."""
    level, found = np.zeros(shape[1]), np.zeros(shape)
    for step in range(shape[0]):
        ends, begins = rng.random(shape[1]) < 1 / 3, rng.random(shape[1]) < 0.005
        level = np.where(level > 0.0, np.where(ends, 0.0, level), np.where(begins, rng.uniform(0.3, 1.2, shape[1]), 0))
        found[step] = level
    return bulk(rng, shape) + found


@pytest.mark.parametrize("noise", [pareto, two_ways, bursts])
def test_noise_is_no_fault(noise: object) -> None:
    assert callable(noise)
    rng = np.random.default_rng(3)
    tail = tail_of(noise(rng, (32, 500)), LEAST, BULK)
    fresh = noise(rng, (1_000, 1_000))
    alarms = np.zeros(fresh.shape[1])
    for end in range(max(WINDOWS), len(fresh)):
        for n in WINDOWS:
            alarms += evidence(fresh[end - n : end], np.full(fresh.shape[1], BULK), tail) >= np.log(RARE)
    assert alarms.sum() <= 10


@pytest.mark.parametrize(("ratio", "most"), [(2.0, 4), (1.5, 4), (5.0, 4)])
def test_a_lasting_slowdown_is_shown_in_few_steps(ratio: float, most: int) -> None:
    rng = np.random.default_rng(4)
    tail = tail_of(pareto(rng, (32, 500)), LEAST, BULK)
    slow = bulk(rng, (most, 1_000)) + np.log(ratio)
    shown = evidence(slow, np.full(1_000, BULK), tail) >= np.log(1e8)
    assert shown.mean() >= 0.95


def test_steps_of_different_levels_count_for_less() -> None:
    tail = tail_of(pareto(np.random.default_rng(5), (32, 500)), LEAST, BULK)
    noise = np.full(1, BULK)
    same, scattered = (evidence(np.array([[a], [b], [c]]), noise, tail) for a, b, c in ((0.7,) * 3, (0.4, 0.7, 1.0)))
    assert same[0] > scattered[0] + 5.0
    assert evidence(np.array([[0.7], [0.1], [0.7]]), noise, tail)[0] == -np.inf


def test_a_tail_that_few_samples_show_is_not_taken_for_thin() -> None:
    rng = np.random.default_rng(6)
    noise, slow = np.full(1, BULK), np.full((3, 1), 0.7)
    few, many = (tail_of(bulk(rng, (32, pairs)), LEAST, BULK) for pairs in (1, 1_000))
    assert evidence(slow, noise, few)[0] + 8.0 < evidence(slow, noise, many)[0]


def test_a_tail_is_what_lies_beyond_the_noise() -> None:
    """Two of twenty values lie beyond the start, one after the other; the last five are under test."""
    memory = np.zeros((25, 1))
    memory[[3, 4], 0] = 0.5, 0.55
    memory[20:] = 9.0
    tail = tail_of(memory, LEAST, BULK)
    assert tail.start == pytest.approx(4.5 * BULK)
    assert tail_of(memory, 0.3, BULK).start == 0.3
    assert (tail.share, tail.count, tail.bulk) == (3 / 21, 20, BULK)
    assert tail.mean == pytest.approx(0.525 - 4.5 * BULK)
    assert tail.values.tolist() == [0.5, 0.55]
    assert (tail.again, tail.level) == (tail.share, 0.0), "one of two is no burst"


def test_values_that_follow_each_other_are_bursts() -> None:
    memory = np.zeros((1005, 1))
    memory[100:110] = 0.5
    tail = tail_of(memory, LEAST, BULK)
    assert tail.again == 9 / 10
    assert tail.level == pytest.approx(9 / 10 / (4 * BULK)), "all of one level, within two deviations each way"


@pytest.mark.parametrize("known", [0, 1, 2, 60])
def test_what_was_never_seen_may_yet_be_as_often_as_three_in_all(known: int) -> None:
    memory = np.full((max(known, 1) + 5, 1), np.nan)
    memory[:known] = 0.0
    tail = tail_of(memory, LEAST, BULK)
    assert (tail.count, tail.share, tail.mean) == (max(known, 1), 1 / (known + 1), BULK)
    assert tail.log_density(np.array([9.0]))[0] == pytest.approx(np.log(3.0 / max(known, 1)))


def test_the_density_is_the_largest_of_fit_and_neighbors() -> None:
    tail = NoiseTail(
        start=0.2, share=0.1, mean=0.5, again=0.1, level=0.0, values=np.array([0.9, 1.0, 1.1, 3.0]), count=100, bulk=0.1
    )
    # At the start the fit, share / mean; at 1.0 three values within 0.2 each way; far out 3 of 100 at most.
    assert np.exp(tail.log_density(np.array([0.2, 1.0, 9.0]))).tolist() == pytest.approx([0.2, 3 / 100 / 0.4, 0.03])


def test_nats_of_one_level() -> None:
    """Three equal values: the two widths of the noise, less the prior of the level, less what chance says of each."""
    tail = NoiseTail(start=0.2, share=0.1, mean=0.5, again=0.2, level=0.0, values=np.array([]), count=10**6, bulk=0.1)
    r, n = 0.7, 3
    density = np.log(0.1 / 0.5) - 0.5 / 0.5
    healthy = n * density + 2 * np.log(0.2 / 0.1)  # all but the first are as rare as after another
    likely = [-(n - 1) / 2 * np.log(2 * np.pi * (width * 0.1) ** 2) - np.log(n) / 2 for width in (1.0, 2.0)]
    expected = np.log(np.exp(likely).mean()) - (r - 0.2) - healthy
    window = np.array([[r, r, 0.7], [r, r, 0.7], [r, 0.2, 0.2001]])
    found = evidence(window, np.full(3, 0.1), tail)
    assert found[:2].tolist() == pytest.approx([expected, -np.inf])
    assert np.isfinite(found[2])
    kept = evidence(window, np.full(3, 0.1), replace(tail, level=0.6))
    assert kept[0] == pytest.approx(expected + healthy - density - 2 * np.log(0.6))


@pytest.mark.parametrize(
    ("count", "expected", "chance"),
    [(0, 1.0, 1.0), (1, 1.0, 1 - np.exp(-1)), (2, 1.0, 1 - 2 * np.exp(-1)), (2, 0.5, 1 - 1.5 * np.exp(-0.5))],
)
def test_the_chance_of_so_many_or_more(count: int, expected: float, chance: float) -> None:
    assert _chance(count, expected) == pytest.approx(chance)
