"""Runs that swing, get more work, or start slowly: what the detector of slow jobs says of them, and of whose ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bench.lib_pace import pace_of
from mainstay.detectors.base import Floats
from mainstay.detectors.finding import Finding
from mainstay.detectors.generator.catalog import generate
from mainstay.detectors.generator.world import JOB
from mainstay.detectors.job.slowdown import SlowdownDetector
from mainstay.probes.core_types import Severity

RANKS = 8


def noise(seed: int, steps: int, ranks: int = RANKS) -> Floats:
    return np.exp(0.005 * np.random.default_rng(seed).standard_normal((steps, ranks)))


def findings_of(seconds: Floats, signals: Mapping[str, Floats] | None = None, known_blocks: int = 192) -> list[Finding]:
    """Of a job whose ranks [T, R] all report the same step times."""
    wide = {
        name: np.broadcast_to(value[: len(seconds)], (len(seconds), RANKS)) for name, value in (signals or {}).items()
    }
    step = np.repeat(seconds[:, None], RANKS, axis=1)
    config = SlowdownDetector.Config(known_blocks=known_blocks)
    return SlowdownDetector(config).update(pace_of(seconds, {"step_time_seconds": step, **wide}))


def statements(found: list[Finding]) -> list[str]:
    return [f.evidence.summary for f in found if f.active and f.severity is not Severity.INFO]


@pytest.mark.parametrize("square", [True, False])
def test_a_run_that_swings_by_five_per_cent_is_not_slow_and_ten_more_are(square: bool) -> None:
    wave = np.sin(2 * np.pi * np.arange(1000) / 300)
    seconds = 4.0 * noise(1, 1000)[:, 0] * (1.0 + 0.026 * (np.sign(wave) if square else wave))
    assert statements(findings_of(seconds, known_blocks=30)) == []
    for since in (680, 830):  # at the top and at the bottom of a swing
        slower = seconds[: since + 10].copy()
        slower[since:] *= 1.1
        (summary,) = statements(findings_of(slower, known_blocks=30))
        assert f"since step {since}" in summary


def test_a_level_that_ended_twice_is_one_of_the_job() -> None:
    seconds = 4.0 * noise(2, 1000)[:, 0]
    for start in (100, 300, 500, 700):
        seconds[start : start + 60] *= 1.15
    assert len(statements(findings_of(seconds))) == 2
    seconds[900:] *= 1.3
    assert len(statements(findings_of(seconds))) == 3, "a slower one is new"


@pytest.mark.parametrize("steadily", [True, False])
def test_longer_sequences_explain_longer_steps(steadily: bool) -> None:
    k = np.arange(600)
    grown = 1.0 + (np.maximum(k - 100, 0) / 500 if steadily else np.floor(k / 200) / 2)
    seconds = 4.0 * noise(3, 600)[:, 0] * (0.6 + 0.4 * grown)
    assert steadily or statements(findings_of(seconds)) != []
    work = {"tokens": np.full((600, 1), 8192.0), "sequence_squares": 1e7 * grown[:, None]}
    assert statements(findings_of(seconds, work)) == []
    seconds[550:] *= 1.1
    assert len(statements(findings_of(seconds, work))) == 1, "the work does not explain everything"


def test_lengths_that_vary_hide_no_slowdown() -> None:
    lengths = np.exp(0.1 * np.random.default_rng(4).standard_normal((200, RANKS)))
    seconds = 4.0 * noise(4, 200)[:, 0] * lengths.max(axis=1)
    work = {"tokens": 8192.0 * lengths, "sequence_squares": lengths**2}
    assert statements(findings_of(seconds, work)) == []
    seconds[150:] *= 1.1
    (found,) = findings_of(seconds[:160], work)
    assert found.evidence.numbers["ratio"] == pytest.approx(1.1, abs=0.02)


def test_micro_batches_of_a_lost_rank_are_work() -> None:
    count = np.where(np.arange(200) < 100, 8.0, 10.0)
    seconds = 4.0 * noise(5, 200)[:, 0] * (0.1 + 0.9 * count / 8)
    assert statements(findings_of(seconds)) != []
    assert statements(findings_of(seconds, {"micro_batches": count[:, None]})) == []


@pytest.mark.parametrize(
    ("slow", "words"),
    [(slice(None), "; all ranks alike."), ([5], ": rank 5 computes 12% longer, the others do not."), ([], "no rank")],
)
def test_whose_compute_rose(slow: slice | list[int], words: str) -> None:
    own = 4.0 * noise(6, 110)
    own[100:, slow] *= 1.12
    seconds = 4.2 * noise(7, 110)[:, 0] * np.where(np.arange(110) < 100, 1.0, 1.12)
    (summary,) = statements(findings_of(seconds, {"compute_time_seconds": own}))
    assert words in summary


def test_a_slow_start_is_told_once_as_information() -> None:
    seconds = 4.0 * noise(8, 900)[:, 0]
    seconds[:200] *= 1.09
    begun, ended = findings_of(seconds)
    assert (begun.severity, begun.active, ended.active) == (Severity.INFO, True, False)
    assert begun.evidence.summary.startswith("The run started slowly: its first steps took 4.3")
    assert begun.evidence.numbers["ratio"] == pytest.approx(1.09, abs=0.01)
    seconds[400:] *= 1.08
    assert not [f for f in findings_of(seconds) if f.severity is Severity.INFO], "it was faster for 200 samples only"


def test_garbage_that_all_wait_for_is_no_slowdown() -> None:
    """Ranks collect by turns, eight steps in a row now and then; who is not last to be ready delays no rank."""
    k = np.arange(200)
    gc = np.where((k[:, None] % 40 == 20 + np.arange(RANKS)), 0.6, 0.0)
    own = 4.0 * noise(9, 200)
    seconds = (own + gc).max(axis=1) + 0.2
    assert statements(findings_of(seconds)) != []
    told = {"communication_wait_seconds": seconds[:, None] - own - gc, "gc_seconds": gc}
    assert statements(findings_of(seconds, told)) == []
    slow = np.where(k < 150, 1.0, 1.1) * seconds
    (summary,) = statements(findings_of(slow, told | {"communication_wait_seconds": slow[:, None] - own - gc}))
    assert "since step 150" in summary
    hidden = {"communication_wait_seconds": np.where(gc > 0.0, 1.0, 0.2), "gc_seconds": gc}
    assert statements(findings_of(np.where(k < 150, 4.0, 4.4), hidden)) != [], "no step became shorter without it"


@pytest.mark.parametrize("seed", [12000, 12009])
def test_ranks_that_wander_by_turns_are_no_slowdown_and_a_tenth_more_is(seed: int) -> None:
    """The load of experts: the slowest of the ranks varies less than each, and stays as long."""
    shape: dict[str, Any] = {"dp": 2, "pp": 2, "tp": 4, "seconds": 2.5, "steps": 160}
    world, _ = generate("expert_imbalance", seed, **shape)
    assert statements(SlowdownDetector().update(next(world.recording().steps(JOB)))) == []
    world.slow(100, np.arange(world.mesh.size), 1.15)
    assert len(statements(SlowdownDetector().update(next(world.recording().steps(JOB))))) == 1
