"""The area between distribution functions: exact, one-sided, and never smaller for a worse sample."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.lib_similarity import distances, similarity
from mainstay.detectors.statistics.similarity import medoid, shortfalls, two_sided
from mainstay.probes.benchmarks.result import Better

BOTH = pytest.mark.parametrize("better", [Better.LOWER, Better.HIGHER])
values = st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=1, max_size=12).map(np.array)
directions = st.sampled_from([Better.LOWER, Better.HIGHER])


def by_definition(observed: np.ndarray, reference: np.ndarray, better: Better) -> float:
    """The reference's integral over x, step by step."""
    xs = np.sort(np.concatenate([observed, reference]))
    area = 0.0
    for left, right in pairwise(xs):
        gap = float(np.mean(reference <= left) - np.mean(observed <= left))
        area += max(gap if better is Better.LOWER else -gap, 0.0) * (right - left)
    return area / xs[-1]


@settings(deadline=None)
@given(values, values, directions)
def test_it_is_the_definition(observed: np.ndarray, reference: np.ndarray, better: Better) -> None:
    expected = by_definition(observed, reference, better)
    assert distances([observed], reference, better)[0] == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(values, values)
def test_both_sides_make_the_whole(observed: np.ndarray, reference: np.ndarray) -> None:
    sides = [distances([observed], reference, better)[0] for better in (Better.LOWER, Better.HIGHER)]
    assert two_sided([observed], reference)[0] == pytest.approx(sum(sides), abs=1e-12)
    assert two_sided([reference], observed)[0] == pytest.approx(sum(sides), abs=1e-12)


@BOTH
@pytest.mark.parametrize("slowdown", [0.02, 0.05, 1.0])
def test_a_uniform_slowdown(better: Better, slowdown: float) -> None:
    """``s / (1 + s)``, as the reference derives it; alpha = 0.95 is a slowdown of 5.3 %."""
    reference = np.full(10, 100.0)
    slow = reference * (1 + slowdown) if better is Better.LOWER else reference / (1 + slowdown)
    assert 1 - similarity(slow, reference, better) == pytest.approx(slowdown / (1 + slowdown))


def test_a_slow_share_counts_by_its_share() -> None:
    reference = np.full(10, 100.0)
    slow = np.where(np.arange(10) < 3, 120.0, 100.0)
    assert distances([slow], reference, Better.LOWER)[0] == pytest.approx(0.3 * 0.2 / 1.2)


@BOTH
def test_a_better_sample_is_no_distance_away(better: Better) -> None:
    reference = np.array([90.0, 100.0, 110.0])
    faster = reference * (0.5 if better is Better.LOWER else 2.0)
    assert distances([faster], reference, better)[0] == 0.0
    assert shortfalls([faster], reference, better)[0] == 0.0


@settings(deadline=None)
@given(values, values, directions, st.data())
def test_a_worse_value_never_lies_nearer(
    observed: np.ndarray, reference: np.ndarray, better: Better, data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(observed) - 1))
    factor = data.draw(st.floats(min_value=1.0, max_value=1e6))
    worse = observed.copy()
    worse[which] = worse[which] * factor if better is Better.LOWER else worse[which] / factor
    before, after = shortfalls([observed, worse], reference, better)
    assert after >= before - 1e-12


@settings(deadline=None)
@given(values, values, directions)
def test_what_judges_is_never_below_the_definition(observed: np.ndarray, reference: np.ndarray, better: Better) -> None:
    judged = shortfalls([observed], reference, better)[0]
    assert distances([observed], reference, better)[0] - 1e-12 <= judged < 1.0


@pytest.mark.parametrize(
    ("better", "slow", "absurd"), [(Better.LOWER, 200.0, 1e5), (Better.HIGHER, 50.0, 1e5)], ids=["time", "rate"]
)
def test_one_absurd_repetition_hides_nothing(better: Better, slow: float, absurd: float) -> None:
    """By the definition it does: it is the normalizer."""
    reference = np.full(10, 100.0)
    sample = np.array([slow] * 9 + [absurd])
    assert distances([sample], reference, better)[0] < 0.2
    assert shortfalls([sample], reference, better)[0] > 0.4


def test_samples_of_any_lengths_keep_their_places() -> None:
    random = np.random.default_rng(1)
    samples = [random.uniform(90, 110, n) for n in (3, 7, 3, 1, 7)]
    together = shortfalls(samples, samples[1], Better.LOWER)
    alone = [shortfalls([sample], samples[1], Better.LOWER)[0] for sample in samples]
    assert together == pytest.approx(alone, rel=1e-12)


def test_the_medoid_is_the_most_usual_sample() -> None:
    samples = [np.full(4, speed) for speed in (100.0, 101.0, 99.0, 150.0, 60.0)]
    assert medoid(samples) == 0
    assert medoid(samples[3:4]) == 0


def test_the_medoid_of_samples_of_many_lengths() -> None:
    rng = np.random.default_rng(4)
    samples = [np.geomspace(80.0 + k, 120.0 + k, 70 + 5 * k) for k in range(-10, 11)]
    samples = [rng.permutation(sample) for sample in samples]
    assert medoid(samples) == 10


@pytest.mark.parametrize("sample", [[], [0.0], [-1.0, 1.0], [np.nan], [np.inf]])
def test_broken_samples_are_refused(sample: list[float]) -> None:
    good, bad = np.ones(3), np.array(sample)
    for observed, reference in ((good, bad), (bad, good)):
        with pytest.raises(ValueError, match="finite and above zero"):
            distances([observed], reference, Better.LOWER)
        with pytest.raises(ValueError, match="finite and above zero"):
            two_sided([observed], reference)


def test_a_fingerprint_has_no_distance() -> None:
    with pytest.raises(ValueError, match="right or wrong"):
        distances([np.ones(2)], np.ones(2), Better.EQUAL)
    with pytest.raises(ValueError, match="no samples"):
        medoid([])
