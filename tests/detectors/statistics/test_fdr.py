"""How many false alarms are allowed, and how heavy tails really are."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.statistics.fdr import Tails, discoveries, level_per_tick, normal_tail


def slow_discoveries(p: np.ndarray, level: float) -> np.ndarray:
    """The definition, over all p-values."""
    order = np.argsort(p, kind="stable")
    last = max((i for i, at in enumerate(order) if p[at] <= level * (i + 1) / len(p)), default=-1)
    found = np.zeros(len(p), np.bool_)
    found[order[: last + 1]] = True
    return found


@pytest.mark.parametrize("seed", range(5))
def test_leaving_out_what_is_above_the_level_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = np.concatenate([rng.random(2000), rng.random(30) * 1e-5])
    worth = p < 1e-3
    expected = slow_discoveries(p, 1e-3)
    assert expected.sum() >= 20
    np.testing.assert_array_equal(discoveries(p[worth], 1e-3, tests=len(p)), expected[worth])


def test_scale_is_the_mean_excess_of_the_tail() -> None:
    tails = Tails(2, threshold=3.0, censor=6.0)
    for _ in range(100):
        tails.note(0, 1000, np.array([3.25, 3.35], np.float32))
    np.testing.assert_allclose(tails.scale, [0.3, 0.0], rtol=1e-6)
    assert tails.p(np.zeros(1, np.intp), np.array([3.6]))[0] == pytest.approx(2e-3 * np.exp(-2.0), rel=1e-3)


def test_the_textbook_case() -> None:
    """Benjamini and Hochberg 1995, section 3.2: 15 tests, the four smallest are found at 0.05."""
    p = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    assert discoveries(np.array(p), 0.05, tests=15).sum() == 4


def test_what_begins_together_passes_more_easily_than_alone() -> None:
    alone = discoveries(np.array([2e-7]), 1e-3, tests=10_000)
    together = discoveries(np.full(5, 2e-7), 1e-3, tests=10_000)
    assert (alone.any(), together.all()) == (False, True)


def test_false_ticks_stay_within_the_level() -> None:
    rng = np.random.default_rng(1)
    ticks = sum(discoveries(p[p < 0.1], 0.1, tests=200).any() for p in rng.random((2000, 200)))
    assert ticks / 2000 == pytest.approx(0.1, abs=0.02)


def test_a_day_is_spent_evenly() -> None:
    assert level_per_tick(2.0) * 86_400 == pytest.approx(2.0)


def test_fewer_tests_than_values_are_refused() -> None:
    with pytest.raises(ValueError, match="2 p-values of 1 tests"):
        discoveries(np.zeros(2), 0.1, tests=1)
    assert discoveries(np.zeros(0), 0.1, tests=0).shape == (0,)


def taught(draw: np.ndarray) -> Tails:
    tails = Tails(1, threshold=3.0, censor=6.0)
    for values in draw:
        tails.note(0, len(values), values[values >= 3.0].astype(np.float32))
    return tails


def test_normal_tails_stay_normal_and_heavy_ones_are_seen() -> None:
    rng = np.random.default_rng(2)
    z, first = np.array([6.5]), np.zeros(1, np.intp)
    light = taught(rng.standard_normal((50, 20_000))).p(first, z)[0]
    heavy = taught(rng.standard_t(4, (50, 20_000))).p(first, z)[0]
    assert light < 1e-6
    truth = 0.0015  # P(t4 >= 6.5)
    assert heavy == pytest.approx(truth, rel=0.6), "an exponential tail is a fair guess one octave out"


def test_before_enough_is_seen_the_normal_is_taken() -> None:
    tails = Tails(2, threshold=3.0, censor=6.0)
    tails.note(0, 1000, np.full(20, 5.5, np.float32))
    np.testing.assert_allclose(tails.p(np.array([0, 1]), np.array([4.0, 4.0])), normal_tail(np.array([4.0, 4.0])))
