"""Areas and volumes against cases that can be worked out by hand, and against the published table's own figures."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_events import alarms, hit_rate, judge
from bench.lib_vus import auc_pr, ranges_of, softened, vus_pr
from tests.data import DATA, needs


def flags(text: str) -> np.ndarray:
    return np.array([c == "1" for c in text])


def test_ranges_are_half_open() -> None:
    assert ranges_of(flags("0110001")) == [(1, 3), (6, 7)]
    assert ranges_of(flags("000")) == []


def test_area_by_hand() -> None:
    labels, score = flags("0101"), np.array([0.1, 0.9, 0.5, 0.4])
    assert auc_pr(labels, score) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert auc_pr(labels, np.zeros(4)) == pytest.approx(0.5), "all tie: one step at the share of positives"


def test_margins_by_hand() -> None:
    soft = softened(flags("0000110000"), 4)
    np.testing.assert_allclose(soft, [0, 0, 0.5**0.5, 0.75**0.5, 1, 1, 0.75**0.5, 0.5**0.5, 0, 0])
    np.testing.assert_array_equal(softened(flags("010"), 0), [0, 1, 0])


def test_without_a_margin_the_volume_is_the_area_scaled_by_ranges_found() -> None:
    rng = np.random.default_rng(0)
    labels = np.zeros(250, np.bool_)
    labels[100:140] = True
    score = rng.permutation(250).astype(float)  # as many thresholds as samples, one range: recall counts at once
    assert vus_pr(labels, score, 0) == pytest.approx(auc_pr(labels, score))


def test_a_perfect_score_fills_the_volume_and_a_late_one_nearly() -> None:
    labels = np.zeros(2000, np.bool_)
    labels[500:700] = labels[1200:1400] = True
    assert vus_pr(labels, labels.astype(float), 0) == pytest.approx(1.0)
    late = np.roll(labels, 20).astype(float)
    assert 0.85 < vus_pr(labels, late, 100) < 1.0
    assert vus_pr(labels, late, 100) > auc_pr(labels, late) + 0.02
    noise = np.random.default_rng(1).random(2000)
    assert vus_pr(labels, noise, 100) == pytest.approx(0.25, abs=0.1)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="no sample is labeled"):
        auc_pr(np.zeros(3, np.bool_), np.zeros(3))
    with pytest.raises(ValueError, match="not finite"):
        vus_pr(flags("01"), np.array([0.0, np.nan]), 1)


@needs("smd")
def test_the_metric_is_that_of_the_published_table() -> None:
    """Reference table over the four machines: random .107 and .137, mean clipped z^2 .474 and .501."""
    from bench.lib_machine_scores import FITS, held_out, standardized
    from bench.machines import machines

    data = list(machines(DATA / "smd"))
    draws = [np.random.default_rng(0).random(len(m.train) + len(m.test))[len(m.train) :] for m in data]
    squares = [held_out(FITS["mean clipped z^2"], *standardized(m)).test for m in data]
    for scores, area, volume in ((draws, 0.107, 0.137), (squares, 0.474, 0.501)):
        scored = [(m.labels, score) for m, score in zip(data, scores, strict=True)]
        assert np.mean([auc_pr(*pair) for pair in scored]) == pytest.approx(area, abs=0.003)
        assert np.mean([vus_pr(*pair, 100) for pair in scored]) == pytest.approx(volume, abs=0.003)


def test_alarms_need_two_of_three_and_cool_down() -> None:
    score = np.zeros(100)
    score[[10, 40, 42, 60, 61]] = 1.0
    assert alarms(score, 0.5).tolist() == [42], "one is none, and the next pair comes too soon"
    score[80:] = 1.0
    assert alarms(score, 0.5).tolist() == [42, 81]
    assert alarms(np.ones(70), 0.5).tolist() == [1, 31, 61], "what stands is raised again"


def test_an_event_is_found_once_and_what_belongs_to_none_is_false() -> None:
    verdict = judge(np.array([5, 12, 31, 50, 90]), [(10, 40), (44, 46), (60, 70)])
    assert (verdict.events, verdict.delays, verdict.false) == (3, (2, 6), 2)
    assert verdict.recall == pytest.approx(2 / 3)


def test_hit_rate_by_hand() -> None:
    shares = np.array([[5.0, 1.0, 3.0, 0.0]])
    assert hit_rate(shares, [0, 1], 1.0) == 0.5
    assert hit_rate(shares, [0, 1], 1.5) == 1.0
