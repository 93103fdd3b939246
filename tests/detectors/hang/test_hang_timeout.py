"""Limits of a standstill, each from the formula that its configuration states."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.hang.timeout import HangTimeoutConfig, HangTimeoutModel
from mainstay.probes.core_types import StepPhase


def model(gaps: int = 0, steps: int = 0, *, gap: float = 2.0, step: float = 5.0) -> HangTimeoutModel:
    found = HangTimeoutModel(HangTimeoutConfig())
    for _ in range(gaps):
        found.learn_gap(gap)
    for _ in range(steps):
        found.learn_steps(step)
    return found


@pytest.mark.parametrize(
    ("seen", "gap", "counted", "waiting", "limit"),
    [
        ((10, 3), 2.0, True, True, 3 * 2.0 * np.log(1000) / np.log(10) + 0.5),
        ((1000, 3), 2.0, True, True, 3 * 2.0 + 0.5),
        ((1500, 3), 2.0, True, True, 3 * 2.0 + 0.5),
        ((1000, 3), 1.0, True, True, 4.0),  # no shorter standstill is a hang
        ((9, 3), 2.0, True, True, 300.0),  # ten gaps and three steps must be known
        ((10, 2), 2.0, True, True, 300.0),
        ((0, 3), 0.0, False, True, 3 * 5.0 + 2.0),
        ((0, 2), 0.0, False, True, 300.0),
        ((0, 3), 0.0, False, False, 60.0),  # where no rank is inside a call: three times, and at least a minute
        ((1000, 3), 10.0, True, False, 3 * (3 * 10.0 + 0.5)),
        ((9, 3), 2.0, True, False, 300.0),
    ],
)
def test_limit_of_training(seen: tuple[int, int], gap: float, counted: bool, waiting: bool, limit: float) -> None:
    gaps, steps = seen
    known = model(gaps, steps, gap=gap)
    assert known.limit(StepPhase.TRAIN, 0.5, counted=counted, waiting=waiting) == pytest.approx(limit)
    assert known.learned is (gaps >= 10 and steps >= 3)
    assert known.step_seconds == (5.0 if steps else 0.0)


@pytest.mark.parametrize(
    ("phase", "longest", "limit"),
    [
        (StepPhase.CHECKPOINT, [], 600.0),
        (StepPhase.CHECKPOINT, [30.0] * 2, 600.0),
        (StepPhase.CHECKPOINT, [300.0], 1500.0),
        (StepPhase.EVALUATE, [30.0] * 2, 1800.0),
        (StepPhase.CHECKPOINT, [30.0] * 3, 150.0),
        (StepPhase.CHECKPOINT, [10.0] * 3, 60.0),
        (StepPhase.EVALUATE, [13.0, 12.0, 14.0], 70.0),
        (StepPhase.COMPILE, [13.0] * 3, 600.0),
        (StepPhase.WARM_UP, [13.0] * 3, 600.0),
        (StepPhase.WARM_UP, [130.0] * 3, 650.0),
        (StepPhase.CHECKPOINT, [500.0] + [30.0] * 64, 150.0),  # the last 64 count
        (StepPhase.CHECKPOINT, [500.0] + [30.0] * 63, 2500.0),
    ],
)
def test_limit_of_a_phase_that_may_be_silent(phase: StepPhase, longest: list[float], limit: float) -> None:
    known = model()
    for seconds in longest:
        known.learn_masked_phase(phase, seconds)
    assert known.limit(phase, 0.5, counted=True, waiting=True) == pytest.approx(limit)
    other = StepPhase.EVALUATE if phase is not StepPhase.EVALUATE else StepPhase.COMPILE
    assert known.limit(other, 0.5, counted=True, waiting=True) == 1800.0


def test_a_gap_that_alarmed_counts_only_when_it_comes_again() -> None:
    known = model(1000, 3)
    known.learn_gap(40.0, alarmed=True)
    assert known.limit(StepPhase.TRAIN, 0.0, counted=True, waiting=True) == 6.0
    known.learn_gap(40.0, alarmed=True)
    known.learn_gap(40.0, alarmed=True)
    assert known.limit(StepPhase.TRAIN, 0.0, counted=True, waiting=True) == 120.0


def test_the_last_gaps_count() -> None:
    known = model(0, 3)
    known.learn_gap(9.0)
    known.learn_gap(9.0)
    for _ in range(2046):
        known.learn_gap(2.0)
    assert len(known._gaps) == 2048
    known.learn_gap(2.0)
    assert sorted(known._gaps)[-2:] == [2.0, 9.0]
