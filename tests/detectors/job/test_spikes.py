"""A jump and its end, sample by sample: how far it must stand out, how long it must rest."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest

from mainstay.detectors.job.spikes import SpikeDetectorState


def state(values: list[float], *, multiplies: bool = False) -> SpikeDetectorState:
    made = SpikeDetectorState(multiplies=multiplies)
    assert not any(made.add_value(x) for x in values)
    return made


def jumps(made: SpikeDetectorState, x: float) -> bool:
    """Whether it would begin with ``x``."""
    trial = copy.deepcopy(made)
    changed = trial.add_value(x)
    assert trial.on is changed
    assert trial.rising is False
    return changed


@pytest.mark.parametrize("learned", [19, 20])
def test_twenty_samples_are_learned_before_anything_is_said(learned: int) -> None:
    made = state([1.0] * learned)
    assert not made.add_value(math.nan)
    assert jumps(made, 100.0) is (learned == 20)


@pytest.mark.parametrize(
    ("values", "multiplies", "edge"),
    [
        ([1.0] * 20, False, 4.0),  # four times: three levels above it
        ([-1.0] * 20, False, 2.0),
        ([1.0] * 10 + [2.0] + [1.0] * 10, False, 4.0),
        ([1.0] * 10 + [3.5] + [1.0] * 10, False, 6.0),  # what it has seen, and its span again
        ([0.0] * 20, True, math.log(4.0)),
        ([-7.0] * 20, True, -7.0 + math.log(4.0)),
    ],
)
def test_a_jump_is_four_times_the_level_and_beyond_what_was_seen(
    values: list[float], multiplies: bool, edge: float
) -> None:
    made = state(values, multiplies=multiplies)
    assert not jumps(made, edge - 1e-6)
    assert jumps(made, edge + 1e-6)


@pytest.mark.parametrize(("multiplies", "deviations"), [(False, 10.0), (True, 6.0)])
def test_a_jump_stands_out_of_the_noise(multiplies: bool, deviations: float) -> None:
    made = state(np.random.default_rng(2).normal(0.0, 0.5, 60).tolist(), multiplies=multiplies)
    assert made.noise * deviations > max(math.log(4.0), 4 * abs(made.level))
    assert not jumps(made, made.level + 0.999 * deviations * made.noise)
    assert jumps(made, made.level + 1.001 * deviations * made.noise)


def test_the_level_is_the_median_of_the_last_nine_and_its_noise_the_spread_about_it() -> None:
    made = state([100.0] * 20 + [99.0] * 4)
    assert made.level == 100.0
    made.add_value(99.0)
    assert (made.level, made.noise) == (99.0, pytest.approx(0.099)), "a thousandth at least"
    assert state([0.0] * 20).noise == 1e-12
    assert state([100.0] * 20, multiplies=True).noise == 1e-3
    wide = state([float(x) for x in itertools.islice(itertools.cycle((10, 13, 16)), 40)])
    assert wide.noise == pytest.approx(3 * 1.4826)


@pytest.mark.parametrize(("calm", "over"), [((True,) * 5, True), ((True,) * 4 + (False,) + (True,) * 4, False)])
def test_it_is_over_after_five_samples_in_a_row_at_the_level(calm: tuple[bool, ...], over: bool) -> None:
    made = state([1.0] * 25)
    assert made.add_value(9.0)
    near = iter((1.25, 1.0, 0.5, 1.2) * 2)  # a quarter above the level is still at it
    changed = [made.add_value(next(near) if rests else 1.26) for rests in calm]
    assert changed == [False] * (len(calm) - 1) + [over]
    assert made.on is not over
    assert made.level == 1.0, "it is frozen while one holds"


def test_what_lasts_for_two_hundred_samples_is_the_new_level() -> None:
    made = state([1.0] * 25)
    assert made.add_value(9.0)
    assert not any(made.add_value(9.0) for _ in range(199))
    assert made.add_value(9.0)
    assert not made.on
    assert not any(made.add_value(9.0) for _ in range(20))
    assert made.level == 9.0
    assert not jumps(made, 35.9)
    assert jumps(made, 36.1)


def test_a_slow_rise_is_told_when_it_has_come_half_as_far_again() -> None:
    made = state([1.0] * 32)
    for k in itertools.count(1):
        if made.add_value(1.0 + 0.05 * k):
            break
    # each adds 2.5 at most: the eighth reaches 20, but the median of the last five comes to 1.5 with the twelfth
    assert (k, made.rising, made.level) == (12, True, 1.0)
