"""A budget of alarms is kept where the data shift, and changes nothing where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.statistics.alarm_budget import LOWEST, AlarmBudget
from mainstay.detectors.statistics.spot import Tail, tail

DAYS, A_DAY = 40, 1440
RATE = 0.5 / A_DAY


def alarms(score: np.ndarray, learned: Tail, gain: float) -> int:
    budget, count = AlarmBudget(rate=RATE, gain=gain), 0
    for rate in learned.log_rate(score).tolist():
        budget.pass_samples(1)
        if rate <= budget.log_rate:
            budget.note_alarm()
            count += 1
    return count


def healthy(seed: int, days: int = DAYS) -> np.ndarray:
    return np.random.default_rng(seed).exponential(1.0, days * A_DAY)


@pytest.mark.parametrize("seed", range(3))
def test_a_shift_breaks_a_fixed_threshold_and_not_the_budget(seed: int) -> None:
    learned = tail(healthy(seed), apart=0)
    shifted = 1.5 * healthy(seed + 10)
    asked = RATE * len(shifted)
    assert alarms(shifted, learned, 0.0) > 5 * asked
    assert 0.7 * asked < alarms(shifted, learned, AlarmBudget(rate=RATE).gain) < 1.5 * asked


@pytest.mark.parametrize("gain", [0.35, 0.7, 1.4])
def test_alarms_are_bounded_whatever_comes(gain: float) -> None:
    """As long as the strictest threshold is not passed: scores that the tail gives a chance of e^-13."""
    learned = Tail(start=0.0, rate=1.0, shape=0.0, scale=1.0)
    count = alarms(np.full(DAYS * A_DAY, 13.0), learned, gain)
    assert count <= RATE * DAYS * A_DAY + 1 - LOWEST / gain


def test_without_a_shift_most_of_the_alarms_stay() -> None:
    learned = tail(healthy(0), apart=0)
    fixed, adapted = (alarms(healthy(5), learned, gain) for gain in (0.0, 0.7))
    assert fixed / 2 <= adapted <= fixed


def test_it_tightens_by_half_recovers_and_never_loosens() -> None:
    budget = AlarmBudget(rate=0.01, gain=np.log(2.0))
    budget.pass_samples(1e6)
    assert budget.log_rate == pytest.approx(np.log(0.01))
    budget.note_alarm()
    assert budget.log_rate == pytest.approx(np.log(0.005))
    budget.pass_samples(100)
    assert budget.log_rate == pytest.approx(np.log(0.01))
    for _ in range(100):
        budget.note_alarm()
    assert budget.shift == LOWEST
