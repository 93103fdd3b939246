"""Schedules of a step: 1F1B with no absent position, and never a rank that waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstay.recovery.cost_model.iteration import IterationShape as Grid
from mainstay.recovery.cost_model.iteration import rerouted
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.pipeline_schedule import PipelinePass, numbered, schedule
from mainstay.recovery.work_assignment import WorkAssignment

MeshPosition = tuple[int, int]


def assignment_without(shape: MeshShape, away: set[MeshPosition]) -> WorkAssignment:
    """What the coordinator would assign."""
    here = tuple(d for d in range(shape.dp) if any((d, s) not in away for s in range(shape.pp)))
    return WorkAssignment(
        replicas=here, absent_positions=tuple(sorted(position for position in away if position[0] in here))
    )


@st.composite
def losses(draw: st.DrawFn) -> tuple[MeshShape, int, WorkAssignment]:
    """A job, its micro-batches, and any mesh positions away as long as every stage keeps one."""
    shape = MeshShape(dp=draw(st.integers(1, 5)), pp=draw(st.integers(1, 5)))
    kept = [draw(st.sets(st.integers(0, shape.dp - 1), min_size=1)) for _ in range(shape.pp)]
    away = {(d, s) for s in range(shape.pp) for d in range(shape.dp) if d not in kept[s]}
    return shape, shape.dp * draw(st.integers(1, 6)), assignment_without(shape, away)


def schedules(shape: MeshShape, total: int, assignment: WorkAssignment) -> dict[MeshPosition, tuple[PipelinePass, ...]]:
    positions = [(d, s) for d in range(shape.dp) for s in range(shape.pp) if d in assignment.occupied(s)]
    return {position: schedule(assignment, total, shape, position) for position in positions}


def one_forward_one_backward(count: int, pp: int, stage: int) -> list[tuple[int, bool]]:
    """The textbook's loop: warm up, take turns, drain."""
    ahead = min(pp - 1 - stage, count)
    found = [(k, False) for k in range(ahead)]
    for k in range(ahead, count):
        found += [(k, False), (k - ahead, True)]
    return found + [(k, True) for k in range(count - ahead, count)]


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_with_nobody_away_it_is_one_forward_one_backward(pp: int, count: int) -> None:
    shape = MeshShape(dp=3, pp=pp)
    for (replica, stage), tasks in schedules(shape, 3 * count, WorkAssignment(replicas=(0, 1, 2))).items():
        order = [(task.micro_batch - replica * count, task.backward) for task in tasks]
        assert order == one_forward_one_backward(count, pp, stage)
        assert {task.source for task in tasks} | {task.target for task in tasks} <= {replica, None}


@settings(deadline=None)
@given(losses())
def test_every_pass_is_made_once_and_with_whom_the_other_end_says(job: tuple[MeshShape, int, WorkAssignment]) -> None:
    shape, total, assignment = job
    made: dict[tuple[int, int, bool], tuple[int, PipelinePass]] = {}
    for (replica, stage), tasks in schedules(shape, total, assignment).items():
        for task in tasks:
            assert made.setdefault((task.micro_batch, stage, task.backward), (replica, task)) == (replica, task)
    assert len(made) == 2 * total * shape.pp
    for (number, stage, backward), (replica, task) in made.items():
        after = made.get((number, stage + (-1 if backward else 1), backward))
        assert task.target == (None if after is None else after[0])
        assert after is None or after[1].source == replica


@settings(deadline=None)
@given(losses())
def test_nobody_waits_for_ever_and_messages_keep_their_order(job: tuple[MeshShape, int, WorkAssignment]) -> None:
    """Sends never block, receives do, and what one rank sends another arrives in that order."""
    shape, total, assignment = job
    left = {position: list(tasks) for position, tasks in schedules(shape, total, assignment).items()}
    wires: dict[tuple[MeshPosition, MeshPosition], list[int]] = {}
    while any(left.values()):
        moved = False
        for position, tasks in left.items():
            while tasks and _goes(position, tasks[0], wires):
                tasks.pop(0)
                moved = True
        assert moved, f"{assignment}: all wait: {left}"
    assert not any(wires.values()), "sent and never received"


def _goes(
    position: MeshPosition, task: PipelinePass, wires: dict[tuple[MeshPosition, MeshPosition], list[int]]
) -> bool:
    stage, way = position[1], 1 if task.backward else -1
    if task.source is not None:
        wire = wires.get(((task.source, stage + way), position), [])
        if not wire:
            return False
        assert wire.pop(0) == task.micro_batch
    if task.target is not None:
        wires.setdefault((position, (task.target, stage - way)), []).append(task.micro_batch)
    return True


@settings(deadline=None)
@given(losses())
def test_no_rank_holds_more_of_a_pipeline_than_one_forward_one_backward_does(
    job: tuple[MeshShape, int, WorkAssignment],
) -> None:
    shape, total, assignment = job
    home = {number: d for d, ids in assignment.micro_batches(total, shape.dp).items() for number in ids}
    for (_, stage), tasks in schedules(shape, total, assignment).items():
        held: dict[int, int] = {}
        for task in tasks:
            pipeline = home[task.micro_batch]
            held[pipeline] = held.get(pipeline, 0) + (-1 if task.backward else 1)
            assert held[pipeline] <= shape.pp - stage


def makespan(shape: MeshShape, total: int, assignment: WorkAssignment) -> int:
    """Slots of a step: a forward pass takes one, a backward pass two; to send takes none."""
    left = {position: list(tasks) for position, tasks in schedules(shape, total, assignment).items()}
    free, ends = dict.fromkeys(left, 0), dict[tuple[int, int, bool], int]()
    while any(left.values()):
        for (replica, stage), tasks in left.items():
            while tasks:
                task = tasks[0]
                before = (task.micro_batch, stage + (1 if task.backward else -1), task.backward)
                if task.source is not None and before not in ends:
                    break
                start = max(free[replica, stage], ends.get(before, 0))
                ends[task.micro_batch, stage, task.backward] = free[replica, stage] = start + 1 + task.backward
                tasks.pop(0)
    return max(free.values())


def test_recycles_talk() -> None:
    """Three pipelines of four stages, six micro-batches each: 27 slots, and 36 by the formula with a worker lost."""
    shape, everybody = MeshShape(dp=3, pp=4), (0, 1, 2)
    assert makespan(shape, 18, WorkAssignment(replicas=everybody)) == 27
    formula = rerouted(Grid(dp=3, pp=4, micro_batches=6), 3.0, [0, 0, 1, 0])
    assert formula is not None
    assert formula.coupled_s == 36
    found = [
        makespan(shape, 18, WorkAssignment(replicas=everybody, absent_positions=((2, stage),))) for stage in range(4)
    ]
    assert found == [31, 33, 34, 36], "none is longer than the formula, or than without the pipeline"
    assert makespan(shape, 18, WorkAssignment(replicas=(0, 1))) == 36
    assert makespan(shape, 18, WorkAssignment(replicas=everybody, absent_positions=((1, 0), (2, 3)))) == 36
    assert makespan(shape, 18, WorkAssignment(replicas=(0,))) == 63, (
        "two losses in two pipelines, where pipelines are dropped"
    )


@pytest.mark.parametrize(("dp", "pp", "of_each"), [(2, 2, 4), (3, 2, 4), (4, 4, 8), (8, 4, 16), (8, 8, 32)])
def test_one_loss_costs_about_what_the_formula_says(dp: int, pp: int, of_each: int) -> None:
    """Within a tenth: passes are made in one fixed order, so now and then a rank waits where another pass could go."""
    shape, total, replicas = MeshShape(dp=dp, pp=pp), dp * of_each, tuple(range(dp))
    for stage in range(pp):
        lost = [int(at == stage) for at in range(pp)]
        formula = rerouted(Grid(dp=dp, pp=pp, micro_batches=of_each), 3.0, lost)
        assert formula is not None
        assert (
            makespan(shape, total, WorkAssignment(replicas=replicas, absent_positions=((dp - 1, stage),)))
            <= 1.1 * formula.coupled_s
        )


def test_a_lost_middle_stage_by_hand() -> None:
    """Replica 1 of two lost stage 1 of three: (0, 1) computes both pipelines in turns."""
    shape, assignment = MeshShape(dp=2, pp=3), WorkAssignment(replicas=(0, 1), absent_positions=((1, 1),))
    tasks = schedule(assignment, 4, shape, (0, 1))
    assert [(t.micro_batch, t.backward) for t in tasks] == [
        (2, False), (0, False), (3, False), (1, False), (2, True), (0, True), (3, True), (1, True),
    ]  # fmt: skip
    assert [(t.source, t.target) for t in tasks] == [(1, 1), (0, 0)] * 4
    assert {(t.source, t.target) for t in schedule(assignment, 4, shape, (1, 0))} == {(None, 0), (0, None)}
    ranks = numbered(tasks[:2], 1, lambda dp, pp: 10 * dp + pp)
    assert [(t.source, t.target) for t in ranks] == [(10, 12), (0, 2)]


def test_pipelines_of_unlike_depth_each_have_their_own() -> None:
    shape, assignment = MeshShape.from_stages([3, 2]), WorkAssignment(replicas=(0, 1), shares=(3.0, 2.0))
    for (replica, stage), count in (((0, 0), 6), ((0, 2), 6), ((1, 0), 4), ((1, 1), 4)):
        tasks = schedule(assignment, 10, shape, (replica, stage))
        home = assignment.micro_batches(10, 2)[replica]
        places = [(home.index(task.micro_batch), task.backward) for task in tasks]
        assert places == one_forward_one_backward(count, shape.stages[replica], stage)
    assert {task.target for task in schedule(assignment, 10, shape, (1, 1)) if not task.backward} == {None}
    with pytest.raises(ValueError, match=r"pipelines of stages \[3, 2\] cannot compute"):
        schedule(WorkAssignment(replicas=(0, 1), absent_positions=((0, 2),)), 10, shape, (1, 1))


def test_a_position_that_is_away_has_no_schedule() -> None:
    assignment = WorkAssignment(replicas=(0, 1), absent_positions=((1, 1),))
    with pytest.raises(ValueError, match="replica 1 has no mesh position at stage 1"):
        schedule(assignment, 4, MeshShape(dp=2, pp=2), (1, 1))
    everybody = WorkAssignment(replicas=(0, 1), absent_positions=((0, 1), (1, 1)))
    with pytest.raises(ValueError, match="no replica has a mesh position at stage 1"):
        schedule(everybody, 4, MeshShape(dp=2, pp=2), (0, 0))
