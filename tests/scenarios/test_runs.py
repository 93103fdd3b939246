"""Runs made from seeds, replayed through every detector: the right one is blamed, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.recording.replay import replay
from tests.scenarios.runs.faults import FAULTS, QUIET, Fault, Outcome, outcome
from tests.scenarios.runs.world import World

pytestmark = pytest.mark.slow  # two seconds each, and many of them
SHORT = 90
"""Steps that are enough for a fault after two thirds of them; false alarms need their time."""


def play(fault: Fault, seed: int, **shape: float) -> Outcome:
    world = World(seed=seed, **shape)  # type: ignore[arg-type]
    rng = np.random.default_rng(seed + 100)
    truth = fault(world, world.steps * 2 // 3, rng)
    return outcome(world, truth, replay(world.recording()))


def describe(result: Outcome) -> str:
    return "; ".join(f"{f.kind} of {f.entity.key}: {f.evidence.summary}" for f in result.wrong[:5])


@pytest.mark.parametrize("name", sorted(FAULTS)[::3])
def test_a_fault_is_found_and_nobody_else_is_blamed(name: str) -> None:
    """Some, as all are played with damaged telemetry below; ``bench/detect.py`` plays all with many seeds."""
    result = play(FAULTS[name], 0, steps=SHORT)
    assert result.seconds is not None, f"missed; said instead: {describe(result)}"
    assert not result.wrong, describe(result)


@pytest.mark.parametrize(
    ("name", "nature"),
    [
        ("nothing", {}), ("nothing", {"last_stage": 1.6}), ("nothing", {"lengths": 0.1}),
        ("nothing", {"dp": 2, "pp": 1, "tp": 1}), ("evaluation", {"last_stage": 1.6}), ("compilation", {}),
    ],
    ids=str,
)  # fmt: skip
def test_healthy_runs_are_left_alone(name: str, nature: dict[str, float]) -> None:
    result = play(QUIET[name], 1, **nature)
    assert not result.wrong, describe(result)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_lost_samples_skewed_clocks_and_stuck_timers_change_nothing(name: str) -> None:
    result = play(FAULTS[name], 5, steps=SHORT, missing=0.05, skew=0.05, stuck=0.01)
    assert result.seconds is not None, f"missed; said instead: {describe(result)}"
    assert not result.wrong, describe(result)
