"""Who waits for batches that others have; and the job whose storage drags."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.straggler.data_stall import DataStallDetector
from mainstay.probes.core_types import StepPhase


def job(seed: int, *, ranks: int = 8, steps: int = 80) -> Samples:
    """Two-second steps; a loader refills now and then, each rank at steps of its own, a fifth of a step long."""
    rng = np.random.default_rng(seed)
    wait = 0.01 * rng.gamma(2.0, 1.0, (steps, ranks)) + 0.4 * (rng.random((steps, ranks)) < 0.02)
    step = 2.0 + wait.max(axis=1, keepdims=True) * np.ones((1, ranks))
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=f"node-{r // 4}") for r in range(ranks)),
        groups=("stage 0",) * ranks,
        signals=("data_wait_seconds", "step_time_seconds"),
        t=1.7e9 + 2.0 * np.arange(steps, dtype=np.float64),
        x=np.stack((wait, step), axis=1).astype(np.float32),
        steps=np.arange(steps),
    )


def stall(data: Samples, ranks: list[int] | slice, seconds: float, start: int, stop: int | None = None) -> Samples:
    data.x[start:stop, 0, ranks] += seconds
    data.x[start:stop, 1] += seconds
    return data


def example(seed: int) -> Samples:
    return stall(job(seed), [3], 3.0, 40)


def others() -> list[Samples]:
    return [stall(job(0), [3], 3.0, 40, 50), stall(job(1), slice(None), 1.5, 40, 60)]


def findings_of(data: Samples) -> list[Finding]:
    return DataStallDetector().update(data)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("seconds", "within"), [(3.0, 1), (1.5, 3)])
def test_the_stalled_rank_is_named(seed: int, seconds: float, within: int) -> None:
    (finding,) = findings_of(stall(job(seed), [3], seconds, 40))
    assert (finding.kind, finding.entity.rank) == (FindingKind.DATA_STALL, 3)
    assert (finding.time - 1.7e9) / 2.0 < 40 + within


@pytest.mark.parametrize("seed", range(8))
def test_refills_are_no_stall(seed: int) -> None:
    assert findings_of(job(seed, steps=300)) == []


def test_it_ends_when_batches_come_in_time() -> None:
    begins, ends = findings_of(stall(job(0), [3], 3.0, 40, 50))
    assert (begins.active, ends.active) == (True, False)


def test_storage_that_drags_for_all_is_the_jobs() -> None:
    found = findings_of(stall(job(0), slice(None), 1.5, 40, 60))
    assert [(f.entity, f.active) for f in found] == [(Entity(job="demo"), True), (Entity(job="demo"), False)]


def test_without_the_signal_it_abstains() -> None:
    data = job(0)
    detector = DataStallDetector()
    silent = Samples(
        entities=data.entities, groups=data.groups, signals=(), t=data.t, x=data.x[:, :0], steps=data.steps
    )
    assert detector.update(silent) == []
    assert detector.status().state is DetectorState.ABSTAINING


def even(steps: int = 120, wait: float = 0.01) -> Samples:
    """Two-second steps whose waits are all alike, so that each limit can be worked out: 0.2 s of excess count."""
    data = job(0, steps=steps)
    data.x[:, 0], data.x[:, 1] = wait, 2.0 + wait
    return data


def at_steps(data: Samples) -> list[tuple[int | None, int, bool]]:
    """(rank, step, whether it begins)"""
    return [(f.entity.rank, round((f.time - 1.7e9) / 2.0), f.active) for f in findings_of(data)]


@pytest.mark.parametrize(("start", "stop"), [(40, 60), (40, 43), (30, 100)])
def test_a_job_that_waits_is_told_at_the_third_step_and_over_at_the_eighth_calm_one(start: int, stop: int) -> None:
    """However long it lasts: its own waits do not become what is usual."""
    data = stall(even(), slice(None), 1.5, start, stop)
    assert at_steps(data) == [(None, start + 2, True), (None, stop + 7, False)]
    begins, ends = findings_of(data)
    assert begins.evidence.numbers == pytest.approx({"wait_seconds": 1.51, "share": 1.51 / 2.0}, rel=1e-3)
    assert begins.evidence.summary == "The job's ranks all wait for data, 1.51 s a step (75% of a step)."
    assert ends.evidence.summary == "The job's ranks get their batches in time again."


def test_two_slow_steps_or_half_of_the_ranks_are_not_the_job() -> None:
    assert at_steps(stall(even(), slice(None), 1.5, 40, 42)) == []
    half = at_steps(stall(even(), slice(0, 4), 1.5, 40, 60))
    assert None not in {rank for rank, _, _ in half}
    most = at_steps(stall(even(), slice(0, 5), 1.5, 40, 60))
    assert (None, 42, True) in most


@pytest.mark.parametrize(
    ("seconds", "begins"),
    [
        (2.05, 40),  # more than a typical step of 2 s counts at once
        (1.95, 41),  # less counts when it comes twice
        (0.25, 41),
        (0.15, None),  # less than a tenth of a step
    ],
)
def test_how_much_longer_a_rank_must_wait(seconds: float, begins: int | None) -> None:
    expected = [] if begins is None else [(3, begins, True), (3, 60 + 7, False)]
    assert at_steps(stall(even(), [3], seconds, 40, 60)) == expected


@pytest.mark.parametrize(
    ("usual", "extra", "begins"), [(1.0, 0.45, None), (1.0, 0.55, 41), (2.0, 3.9, 41), (2.0, 4.1, 40)]
)
def test_a_wait_must_be_many_times_the_usual_one(usual: float, extra: float, begins: int | None) -> None:
    """Half as much again where it comes twice, three times as much where it counts at once."""
    expected = [] if begins is None else [(3, begins, True)]
    assert at_steps(stall(even(60, usual), [3], extra, 40)) == expected


def test_what_a_stalled_rank_is_told_of() -> None:
    begins, ends = findings_of(stall(even(), [3], 3.0, 40, 60))
    assert begins.evidence.summary == "Rank 3 waited 3.01 s for its batch where 0.01 s are usual: 150% of a step."
    assert begins.evidence.numbers == pytest.approx({"wait_seconds": 3.01, "usual_seconds": 0.01, "share": 1.5}, 1e-3)
    (series,) = begins.evidence.series
    assert series.x == tuple(float(step) for step in range(41 - 32, 41))
    assert series.y[-2:] == pytest.approx((0.01, 3.01))
    assert (begins.confidence, ends.evidence.summary) == (0.9, "Rank 3 gets its batches in time again.")


def test_the_first_five_steps_are_no_history_and_five_more_make_one() -> None:
    slow_start = even()
    slow_start.x[:5, 0] = 10.0
    assert at_steps(stall(slow_start, [3], 3.0, 20, 25)) == [(3, 20, True), (3, 32, False)]
    assert at_steps(stall(even(), [3], 3.0, 8, 9)) == []
    assert at_steps(stall(even(), [3], 3.0, 9, 10)) == [(3, 9, True), (3, 17, False)]


@pytest.mark.parametrize(
    ("wait", "phase", "state"),
    [
        (0.0, StepPhase.TRAIN, DetectorState.ACTIVE),
        (0.0, np.nan, DetectorState.ACTIVE),
        (-0.5, np.nan, DetectorState.ABSTAINING),
        (0.01, StepPhase.EVALUATE, DetectorState.ABSTAINING),
    ],
)
def test_which_waits_count(wait: float, phase: float, state: DetectorState) -> None:
    data = even(10, wait)
    phases = np.full((10, 1, 8), phase, np.float32)
    detector = DataStallDetector()
    told = replace(data, signals=(*data.signals, "step_phase"), x=np.concatenate((data.x, phases), axis=1))
    detector.update(told.part(0, 9))
    assert detector.status().state is (DetectorState.LEARNING if state is DetectorState.ACTIVE else state)
    detector.update(told.part(9, 10))
    assert detector.status().state is state


def test_a_job_without_ranks_is_over() -> None:
    data = stall(even(), slice(None), 1.5, 40)
    detector = DataStallDetector()
    assert len(detector.update(data)) == 1
    nobody = replace(data, entities=(), groups=(), x=data.x[:, :, :0])
    (over,) = detector.update(nobody)
    assert (over.entity, over.active) == (Entity(job="demo"), False)
    assert detector.update(nobody) == []
    assert detector.status().state is DetectorState.IDLE
