"""An update that moved everybody is the update's; a device that moved alone is its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.validation.cohort_drift import (
    CohortShift,
    TooFewDevicesError,
    _interval,
    _lower_rank,
    _shift,
    compare,
)
from mainstay.probes.benchmarks.result import Better

BOTH = pytest.mark.parametrize("better", [Better.LOWER, Better.HIGHER])


def cohort(
    n: int,
    seed: int = 0,
    *,
    slowdown: float = 0.0,
    between: float = 0.02,
    better: Better = Better.LOWER,
    first: int = 0,
) -> dict[str, np.ndarray]:
    """Devices 2 % apart for good, 0.3 % from run to run."""
    lasting, noise = np.random.default_rng(99), np.random.default_rng(seed)
    factor = 1 + slowdown if better is Better.LOWER else 1 / (1 + slowdown)
    levels = 100 * np.exp(between * lasting.standard_normal(first + n))[first:]
    return {
        f"gpu{first + i}": factor * level * np.exp(0.003 * noise.standard_normal(5)) for i, level in enumerate(levels)
    }


@BOTH
def test_a_shift_of_all_blames_the_update(better: Better) -> None:
    shift = compare(cohort(24, better=better), cohort(24, 1, slowdown=0.03, better=better), better)
    assert shift.worse
    assert shift.moved
    assert shift.low < 0.03 < shift.high
    assert shift.slower == (), "no device is blamed for what happened to all"
    assert len(shift.explained) == 24
    assert "blame the update, not the nodes" in shift.description


@BOTH
def test_a_device_beyond_the_shift_is_blamed_itself(better: Better) -> None:
    after = cohort(24, 1, slowdown=0.03, better=better)
    after["gpu7"] = after["gpu7"] * (1.05 if better is Better.LOWER else 1 / 1.05)
    shift = compare(cohort(24, better=better), after, better)
    assert shift.worse
    assert shift.slower == ("gpu7",)
    assert "gpu7" not in shift.explained
    assert shift.description.endswith("slower by themselves: gpu7")


def test_one_slow_device_moves_no_cohort() -> None:
    after = cohort(24, 1)
    after["gpu3"] = after["gpu3"] * 1.5
    shift = compare(cohort(24), after, Better.LOWER)
    assert (shift.moved, shift.slower, shift.explained) == (False, ("gpu3",), ())


def test_a_faster_cohort_wants_new_criteria() -> None:
    shift = compare(cohort(24), cohort(24, 1, slowdown=-0.05), Better.LOWER)
    assert shift.better
    assert not shift.worse
    assert "learn the criteria again" in shift.description


def test_nothing_is_blamed_where_nothing_moved() -> None:
    said = [compare(cohort(16, 2 * seed), cohort(16, 2 * seed + 1), Better.LOWER) for seed in range(200)]
    assert not any(shift.moved or shift.slower for shift in said)
    assert all(shift.sure for shift in said)


def test_two_populations_without_a_common_device() -> None:
    still = compare(cohort(30), cohort(30, 1, first=30), Better.LOWER)
    moved = compare(cohort(30), cohort(30, 1, first=30, slowdown=0.08), Better.LOWER)
    assert not still.paired
    assert not still.moved
    assert moved.worse
    assert moved.slower == (), "without its own past no device differs from the shift"


def test_too_few_devices_say_nothing() -> None:
    with pytest.raises(TooFewDevicesError, match="4 devices before and 9 after"):
        compare(cohort(4), cohort(9), Better.LOWER)
    few = compare(cohort(5), cohort(5, 1, slowdown=0.5), Better.LOWER)
    assert not few.moved, "five devices fix no median at a budget of 0.5 %"
    assert few.low == -1.0
    assert not few.sure, "unknown, not healthy"
    assert few.description.startswith("too few or too noisy to tell")


@pytest.mark.parametrize("bad", [[], [0.0], [np.nan]])
def test_broken_samples_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        compare(cohort(9), cohort(9) | {"gpu1": np.array(bad)}, Better.LOWER)
    with pytest.raises(ValueError, match="does not drift"):
        compare(cohort(9), cohort(9), Better.EQUAL)


@pytest.mark.parametrize(
    ("false_alarms", "edges"),
    [(0.007, (-np.inf, np.inf)), (0.008, (1, 8)), (0.07, (1, 8)), (0.071, (2, 7)), (0.289, (2, 7)), (0.29, (3, 6))],
)
def test_an_interval_lies_between_order_statistics(false_alarms: float, edges: tuple[float, float]) -> None:
    """Of 8 values, P(no more than k heads) = 1, 9, 37 of 256 on either side."""
    assert _interval(np.arange(8.0, 0.0, -1.0), false_alarms) == edges


def test_large_samples_take_the_normal_approximation() -> None:
    """1001 / 2 - 1.96 sqrt(1001) / 2 = 469.49; the sum of binomials gives the same rank within one."""
    assert _lower_rank(1001, 0.025) == 469
    assert abs(_lower_rank(1000, 0.025) - (500 - 1.96 * np.sqrt(1000) / 2)) <= 1


def test_two_populations_by_hand() -> None:
    """Half of 15 % on each side: the second and seventh of eight bound each median."""
    early = {f"a{i}": np.array([np.exp(i / 100)]) for i in range(8)}
    late = {f"b{i}": np.array([np.exp(0.5 + i / 100)]) for i in range(8)}
    found = compare(early, late, Better.LOWER, false_alarms=0.15)
    assert (found.shift, found.low, found.high) == pytest.approx(np.expm1([0.5, 0.45, 0.55]))
    assert (found.paired, found.devices, found.worse, found.better, found.sure) == (False, 8, True, False, True)
    back = compare(early, late, Better.HIGHER, false_alarms=0.15)
    assert (back.shift, back.worse, back.better) == (pytest.approx(np.expm1(-0.5)), False, True)


@pytest.mark.parametrize(("own", "slower"), [(0.15, ()), (0.2, ("d19",))])
def test_a_device_is_slower_by_itself_beyond_a_quantile_of_the_others(own: float, slower: tuple[str, ...]) -> None:
    """Others scatter by 2 %: 1.4826 x 20 / 19.2 of it is 0.031, and t(0.99975) with 9 freedoms is 5.3 times that."""
    moved = [0.02 * (-1) ** i for i in range(19)] + [own]
    before = {f"d{i}": np.array([1.0]) for i in range(20)}
    after = {f"d{i}": np.array([np.exp(change)]) for i, change in enumerate(moved)}
    assert compare(before, after, Better.LOWER).slower == slower


@pytest.mark.parametrize(
    ("low", "high", "worse", "better"),
    [
        (0.0099, 0.05, False, False),
        (0.0101, 0.05, True, False),
        (-0.05, -0.0101, False, True),
        (-0.05, -0.0099, False, False),
    ],
)
def test_a_shift_matters_from_one_percent(low: float, high: float, *, worse: bool, better: bool) -> None:
    """log 1.01 is 0.00995."""
    found = _shift(0.0, low, high, paired=True, devices=5, explained=("x",))
    assert (found.worse, found.better) == (worse, better)
    assert found.explained == (("x",) if found.worse else ())


@pytest.mark.parametrize(("high", "sure"), [(0.05, True), (0.051, False)])
def test_nothing_moved_where_a_slowdown_of_five_percent_is_ruled_out(high: float, *, sure: bool) -> None:
    found = CohortShift(shift=0.0, low=-0.1, high=high, paired=True, devices=5, worse=False, better=False)
    assert found.sure is sure
    assert found.description.startswith("5 devices did not move" if sure else "too few or too noisy to tell: 5 devices")
    assert replace(found, slower=("d",)).sure


@pytest.mark.parametrize(
    ("n", "tail", "rank"), [(1, 0.49, 0), (1, 0.5, 1), (3, 0.125, 1), (3, 0.4999, 1), (3, 0.5, 2), (4, 0.06, 0)]
)
def test_the_rank_is_the_most_heads_that_stay_within_the_tail(n: int, tail: float, rank: int) -> None:
    """Of three coins none is heads with 1/8, at most one with 4/8."""
    assert _lower_rank(n, tail) == rank
