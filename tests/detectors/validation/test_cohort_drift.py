"""An update that moved everybody is the update's; a device that moved alone is its own."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.finding import Cause
from mainstay.detectors.validation.cohort_drift import TooFewDevicesError, compare
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
    assert shift.cause is Cause.DEPENDENCY
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
    assert (shift.moved, shift.cause, shift.slower, shift.explained) == (False, None, ("gpu3",), ())


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
