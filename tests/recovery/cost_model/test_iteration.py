"""Iteration times: the formulas by hand, and against the schedule that really places the micro-batches."""

from __future__ import annotations

from itertools import product

import pytest

from bench.lib_schedule import Work, makespan, period
from mainstay.recovery.cost_model.iteration import (
    IterationShape,
    dropped_rate,
    rerouted,
    slowed_rate,
    spread_rate,
)
from tests.recovery.pricing.greedy import mixed_batches

SLOT_S = 3.0
TALK = IterationShape(dp=3, pp=4, micro_batches=6)
"""ReCycle's talk: three pipelines of four stages, six micro-batches, one worker of stage 2 dead."""


def test_the_example_of_recycles_talk() -> None:
    assert TALK.slots * SLOT_S == 27.0
    found = rerouted(TALK, SLOT_S, [0, 0, 1, 0])
    assert found is not None
    assert (found.coupled_s, found.decoupled_s, found.staggered_s) == (36.0, 29.0, 27.0)


@pytest.mark.parametrize("pipeline", range(3))
def test_a_schedule_that_places_each_micro_batch_agrees_with_the_talk(pipeline) -> None:
    dead = Work(dp=3, pp=4, micro_batches=6, dead=frozenset({(pipeline, 2)}))
    assert makespan(Work(dp=3, pp=4, micro_batches=6)) == 27.0
    assert (makespan(dead), makespan(dead, decoupled=True), period(dead)) == (36.0, 29.0, 27.0)


@pytest.mark.parametrize(
    ("dp", "pp", "m", "stage"), [(3, 4, 6, s) for s in range(4)] + [(4, 4, 8, s) for s in range(4)]
)
def test_schedules_meet_the_decoupled_formulas(dp, pp, m, stage) -> None:
    lost = [int(s == stage) for s in range(pp)]
    formula = rerouted(IterationShape(dp=dp, pp=pp, micro_batches=m), SLOT_S, lost)
    work = Work(dp=dp, pp=pp, micro_batches=m, dead=frozenset({(1, stage)}))
    assert formula is not None
    assert makespan(work, decoupled=True) == formula.decoupled_s
    assert period(work) == formula.staggered_s


@pytest.mark.parametrize(("dp", "pp", "m"), [(2, 4, 8), (4, 2, 8), (8, 4, 16), (16, 2, 16)])
def test_each_technique_helps_and_none_beats_the_healthy_job(dp, pp, m) -> None:
    shape = IterationShape(dp=dp, pp=pp, micro_batches=m)
    for stage, f in product(range(pp), range(1, dp)):
        found = rerouted(shape, SLOT_S, [f if s == stage else 0 for s in range(pp)])
        assert found is not None
        assert shape.slots * SLOT_S <= found.staggered_s <= found.decoupled_s <= found.coupled_s + stage


def test_re_routing_needs_a_peer() -> None:
    assert rerouted(TALK, SLOT_S, [0, 3, 0, 0]) is None
    with pytest.raises(ValueError, match="stage 1 has no worker left"):
        Work(dp=1, pp=2, micro_batches=2, dead=frozenset({(0, 1)}))


def test_dropping_a_pipeline_gives_its_work_to_the_others() -> None:
    assert dropped_rate(TALK, 1) == pytest.approx(9.0 / 12.0)
    assert dropped_rate(TALK, 3) == 0.0
    assert spread_rate(TALK, 4) == pytest.approx(1.0)
    assert spread_rate(TALK, 12) == 0.0


def test_a_slow_stage_slows_the_pipeline() -> None:
    assert slowed_rate(TALK, [1.0] * 4) == 1.0
    assert slowed_rate(TALK, [1.0, 0.5, 1.0, 1.0]) == pytest.approx(27.0 / (5 * 6.0 + 15.0))
    assert slowed_rate(TALK, [1.0, 0.0, 1.0, 1.0]) == 0.0


@pytest.mark.parametrize("pipelines", [((2, 1.0), (3, 0.7)), ((1, 2.0), (2, 1.0), (4, 0.5)), ((3, 1.0), (3, 1.0))])
@pytest.mark.parametrize("batch", [5, 8, 13])
def test_batches_are_split_as_well_as_brute_force(pipelines, batch) -> None:
    seconds, split = mixed_batches(pipelines, batch)
    tried = (c for c in product(range(1, batch + 1), repeat=len(pipelines)) if sum(c) == batch)
    best = min(max((b + s - 1) * t for b, (s, t) in zip(c, pipelines, strict=True)) for c in tried)
    assert seconds == pytest.approx(best)
    assert sum(split) == batch


def test_too_small_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="1 micro-batches cannot keep 2 pipelines busy"):
        mixed_batches(((1, 1.0), (1, 1.0)), 1)
    with pytest.raises(ValueError, match="at least 1"):
        IterationShape(dp=0, pp=1, micro_batches=1)
    with pytest.raises(ValueError, match="at least 1 and times above 0"):
        Work(dp=1, pp=1, micro_batches=1, weight=0.0)
    with pytest.raises(ValueError, match="between two iterations"):
        period(Work(dp=1, pp=1, micro_batches=1), iterations=1)
