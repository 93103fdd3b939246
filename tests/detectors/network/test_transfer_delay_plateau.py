"""One slow level is shown in few steps; rare large values, two-way noise and bursts of it are not."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Floats
from mainstay.detectors.network.transfer_delay_plateau import WINDOWS, evidence, tail_of

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
