"""Runs made from seeds, replayed through every detector: the right one is blamed, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from bench.lib_runs import Outcome, outcome
from mainstay.detectors.generator.catalog import FAULTS, SIZES, TRAPS, generate
from mainstay.detectors.recording.replay import replay

pytestmark = pytest.mark.slow  # two seconds each, and many of them
SHAPE: dict[str, Any] = {"steps": 96, "seconds": 2.5}
"""Enough for a fault after two thirds of them: 80 seconds, where some detectors wait for a minute."""


def play(name: str, seed: int, *, damaged: bool = False, **shape: Any) -> Outcome:
    world, truth = generate(name, seed, damaged=damaged, **(SHAPE | shape))
    return outcome(world, truth, replay(world.recording()))


def describe(result: Outcome) -> str:
    return "; ".join(f"{f.kind} of {f.entity.key}: {f.evidence.summary}" for f in result.wrong[:5])


@pytest.mark.parametrize("name", sorted(FAULTS)[::4])
def test_a_fault_is_found_and_nobody_else_is_blamed(name: str) -> None:
    """A quarter of them; ``bench.judgment`` plays all in three sizes."""
    result = play(name, 0)
    assert result.seconds is not None, f"missed; said instead: {describe(result)}"
    assert not result.wrong, describe(result)


@pytest.mark.parametrize("name", sorted(FAULTS)[2::4])
def test_lost_samples_skewed_clocks_and_stuck_timers_change_nothing(name: str) -> None:
    result = play(name, 5, damaged=True)
    assert result.seconds is not None, f"missed; said instead: {describe(result)}"
    assert not result.wrong, describe(result)


@pytest.mark.parametrize("name", sorted(TRAPS)[::2])
def test_healthy_runs_are_left_alone(name: str) -> None:
    result = play(name, 1, **SIZES[0])
    assert not result.wrong, describe(result)


@pytest.mark.parametrize("nature", [{"last_stage": 1.6}, {"lengths": 0.1}, {"dp": 2, "pp": 1, "tp": 8}], ids=str)
def test_imbalance_by_design_is_left_alone(nature: dict[str, Any]) -> None:
    result = play("nothing", 1, **nature)
    assert not result.wrong, describe(result)
