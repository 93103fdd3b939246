"""Advice where the layout, the lengths or the garbage slow a job; nothing else, and blame never."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import Floats, Samples
from mainstay.detectors.finding import ADVICE, Entity, Finding, FindingKind
from mainstay.detectors.straggler.imbalance import ImbalanceDetector
from mainstay.probes.core_types import Severity

SIGNALS = ("compute_time_seconds", "forward_seconds", "backward_seconds", "gc_seconds")


def job(
    seed: int, *, dp: int = 8, stages: tuple[float, ...] = (1.0, 1.0), steps: int = 120, lengths: float = 0.0
) -> Samples:
    """Forward one part, backward two; ``lengths``: deviation of the replicas' work from step to step."""
    rng = np.random.default_rng(seed)
    ranks = dp * len(stages)
    work = np.repeat(np.exp(rng.normal(0, lengths, (steps, dp))), len(stages), axis=1) if lengths else 1.0
    forward, backward = (
        part * np.tile(stages, dp) * work * np.exp(rng.normal(0, 0.005, (steps, ranks))) for part in (1.0, 2.0)
    )
    gc = np.full((steps, ranks), 0.001)
    return pack(forward, backward, gc, len(stages))


def pack(forward: Floats, backward: Floats, gc: Floats, stages: int) -> Samples:
    steps, ranks = forward.shape
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=f"node-{r // 8}") for r in range(ranks)),
        groups=tuple(f"stage {r % stages}" for r in range(ranks)),
        signals=SIGNALS,
        t=1.7e9 + 3.0 * np.arange(steps, dtype=np.float64),
        x=np.stack((forward + backward + gc, forward, backward, gc), axis=1).astype(np.float32),
        steps=np.arange(steps),
    )


def example(seed: int) -> Samples:
    """A slow last stage, until layers are moved."""
    data = job(seed, stages=(1.0, 1.0, 1.3), steps=160)
    data.x[80:, :3, 2::3] /= 1.3
    return data


def others() -> list[Samples]:
    """Lengths that vary, and garbage collected by turns."""
    data, rng = job(0, stages=(1.0,)), np.random.default_rng(0)
    for step in range(0, 120, 2):
        data.x[step, (0, 3), rng.integers(8)] += 0.3
    return [job(0, lengths=0.1), data, job(0, dp=2, stages=(1.0, 1.3, 1.0, 1.0), steps=160)]


def findings_of(data: Samples) -> list[Finding]:
    return ImbalanceDetector().update(data)


def test_a_stage_that_computes_for_a_lost_rank_is_not_long() -> None:
    data = job(0, stages=(1.0, 1.0, 1.0), steps=160)
    assigned = np.full((160, 24), 4.0, np.float32)
    assigned[80:, 2::3] = 5.0
    data.x[:, :3] *= assigned[:, None] / 4
    assert [f.kind for f in findings_of(data)] == [FindingKind.STAGE_IMBALANCE]
    told = replace(data, signals=(*SIGNALS, "micro_batches"), x=np.concatenate((data.x, assigned[:, None]), axis=1))
    assert findings_of(told) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_long_stage_is_told_with_what_balance_would_give(seed: int) -> None:
    begins, ends = findings_of(example(seed))
    assert (begins.kind, begins.active, ends.active) == (FindingKind.STAGE_IMBALANCE, True, False)
    assert begins.entity == Entity(job="demo")
    assert begins.evidence.numbers["excess"] == pytest.approx(0.3, abs=0.02)
    assert begins.evidence.numbers["speedup_at_most"] == pytest.approx(1.3 / 1.1, abs=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_varying_lengths_are_told(seed: int) -> None:
    (finding,) = findings_of(job(seed, lengths=0.1))
    assert finding.kind is FindingKind.SEQUENCE_IMBALANCE
    assert finding.severity is Severity.INFO
    assert finding.evidence.numbers["correlation"] > 0.95


def test_one_slow_rank_is_no_matter_of_lengths() -> None:
    data = job(0, dp=4)
    data.x[:, :3, 5] *= 1.5
    assert [f.kind for f in findings_of(data) if f.kind is not FindingKind.STAGE_IMBALANCE] == []


@pytest.mark.parametrize("seed", range(3))
def test_garbage_by_turns_is_told(seed: int) -> None:
    data = job(seed, stages=(1.0,))
    rng = np.random.default_rng(seed)
    for step in range(0, 120, 2):
        rank = rng.integers(8)
        data.x[step, 0, rank] += 0.3
        data.x[step, 3, rank] += 0.3
    (finding,) = findings_of(data)
    assert finding.kind is FindingKind.GC_JITTER
    assert finding.evidence.numbers["share"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_balanced_job_needs_no_advice(seed: int) -> None:
    assert findings_of(job(seed, steps=200)) == []


def test_all_that_it_says_is_advice() -> None:
    assert ImbalanceDetector.kinds == ADVICE
