"""Limits that healthy samples pass, and the share of them that fails."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainstay.detectors.statistics.conformal import ConformalScores, Views, _tail_reach, healthy, thresholds
from mainstay.detectors.validation.criterion_limits import NotAGateError, reach, robust_scale
from mainstay.detectors.validation.sessions import VarianceComponent


def views(n: int, seed: int = 0) -> Views:
    spread = np.random.default_rng(seed).normal(0.0, 0.02, n)
    scores = ConformalScores(worse=np.maximum(spread, 0.0), signed=spread)
    return Views(median=scores, whole=scores)


@pytest.mark.parametrize("budget", [0.04, 0.1])
def test_the_budget_is_the_share_that_fails(budget: float) -> None:
    known = views(4000)
    limits = thresholds(known, math.nan, budget)
    for limit in (limits.median, limits.whole):
        assert limit.warn <= limit.fail
        assert np.mean(views(40_000, seed=1).median.worse > limit.fail) == pytest.approx(budget / 2, rel=0.2)


def test_what_lies_far_out_is_not_healthy() -> None:
    known = views(200)
    signed = known.median.signed.copy()
    signed[7] = 0.4
    scores = ConformalScores(worse=np.maximum(signed, 0.0), signed=signed)
    kept = healthy(Views(median=scores, whole=scores), math.nan)
    assert not kept[7]
    assert kept.sum() >= 195


def test_few_samples_all_pass() -> None:
    assert thresholds(views(20), math.nan, 0.02).median.fail >= views(20).median.worse.max()


def alike(signed: np.ndarray, overlap: float = 0.0) -> Views:
    scores = ConformalScores(worse=np.maximum(signed, 0.0) + overlap, signed=signed)
    return Views(median=scores, whole=scores)


STEPS = np.arange(1, 100) / 1000  # 99 samples: 0.1 % to 9.9 %


@pytest.mark.parametrize(
    ("budget", "independent", "fail"),
    [
        (0.2, None, 0.090),  # the 90th of 99: of 100 one in ten lies above it
        (0.4, None, 0.080),
        (0.2, 9, 0.099),  # nine independent ones: the last of ten parts
        (0.4, 9, 0.088),  # the 8th of 9
        (0.2, 10, 0.099),  # of ten the tenth
        (0.4, 10, 0.090),  # the ninth of ten: 89.1 of 99, rounded up
        (0.02, None, 0.099),  # 1 / (n + 1) is all that n samples can show
    ],
)
def test_the_limit_is_the_sample_that_the_budget_names(budget: float, independent: int | None, fail: float) -> None:
    found = thresholds(alike(STEPS), math.nan, budget, independent)
    assert found.median == found.whole
    assert found.median.fail == pytest.approx(fail)
    needed = fail - (1 + 0.05 * 98) / 1000  # what a device at the fifth percentile must lose
    assert found.detectable == pytest.approx(needed / (1 - needed))
    assert found.sessions is None


@pytest.mark.parametrize("overlap", [0.0, 0.01])
def test_beyond_the_samples_the_limit_is_the_prediction_but_never_below_the_worst(overlap: float) -> None:
    part = VarianceComponent(robust_scale(STEPS) ** 2 * (1 + 1 / 99), 49)
    found = thresholds(alike(STEPS, overlap), math.nan, 0.01).median
    assert found.fail == pytest.approx(0.05 + reach([part], 0.005) + overlap)
    assert found.warn == pytest.approx(0.095 + overlap), "ten times the budget: one in twenty"
    worst = np.append(np.zeros(49), 0.3)
    assert thresholds(alike(worst), math.nan, 0.01).median.fail == 0.3


def test_only_the_whole_distribution_has_a_tail_that_is_extrapolated() -> None:
    worse = -0.02 * np.log(1 - (np.arange(150) + 0.5) / 150)  # exponential: 1 in 20,000 lies beyond 0.2
    scores = ConformalScores(worse=worse, signed=np.zeros(150))
    found = thresholds(Views(median=scores, whole=scores), math.nan, 1e-4)
    assert found.median.fail == worse.max()
    assert found.whole.fail == pytest.approx(0.02 * math.log(20_000), rel=0.15)
    short = ConformalScores(worse=worse[-99:], signed=np.zeros(99))
    few = thresholds(Views(median=short, whole=short), math.nan, 1e-4)
    assert few.whole.fail == few.median.fail, "fewer than a hundred show no tail"


@pytest.mark.parametrize(
    ("signed", "repeatability", "fail", "warn"),
    [
        (np.zeros(99), math.nan, 0.02, 0.02),
        (np.zeros(99), 0.004, 0.02, 0.02),
        (np.zeros(99), 0.01, 0.04, 0.02),  # four repeatability distances; a warning needs no more than 2 %
        (np.append(np.zeros(98), 0.9), math.nan, 0.5, 0.02),  # twice as slow fails
    ],
)
def test_no_limit_is_below_two_percent_or_above_one_half(
    signed: np.ndarray, repeatability: float, fail: float, warn: float
) -> None:
    found = thresholds(alike(signed), repeatability, 0.01).median
    assert (found.fail, found.warn) == (fail, warn)


def test_samples_that_scatter_make_no_gate() -> None:
    def scattered(by: float) -> Views:
        return alike(np.tile([-by, 0.0, by], 20) / 1.4826)

    assert thresholds(scattered(0.147), math.nan, 0.1).median.fail > 0.09
    with pytest.raises(NotAGateError, match="runs scatter by 16%: more than 15% proves nothing"):
        thresholds(scattered(0.16), math.nan, 0.1)


@pytest.mark.parametrize(
    ("repeatability", "far", "kept"), [(math.nan, 0.0199, True), (math.nan, 0.02, False), (0.01, 0.0399, True),
                                       (0.01, 0.04, False)],
)  # fmt: skip
@pytest.mark.parametrize("which", ["median", "whole"])
def test_among_equals_two_percent_or_four_repeats_are_an_outlier(
    which: str, repeatability: float, far: float, kept: bool
) -> None:
    plain, odd = alike(np.zeros(50)).median, alike(np.append(np.zeros(49), far)).median
    found = healthy(Views(**{"median": plain, "whole": plain, which: odd}), repeatability)
    assert found.tolist() == [True] * 49 + [kept]


def test_the_tail_beyond_nine_tenths_is_continued_as_an_exponential() -> None:
    assert _tail_reach(np.arange(99.0)) == 0.0, "too few show no tail"
    # of 0 to 99 nine tenths end at 89.1, and 97 hundredths at 96.03
    assert _tail_reach(np.arange(100.0)) == pytest.approx(89.1 + 6.93 / math.log(10 / 3) * math.log(100))
