"""Limits that healthy samples pass, and the share of them that fails."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainstay.detectors.statistics.conformal import ConformalScores, Views, healthy, thresholds


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
