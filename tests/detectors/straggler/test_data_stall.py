"""Who waits for batches that others have; and the job whose storage drags."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.straggler.data_stall import DataStallDetector


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
