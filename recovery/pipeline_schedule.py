"""What one rank does in a step, in which order and with whom: one forward, one backward, whoever is away. Pure.

Each forward and backward pass of a micro-batch at a stage has a slot: the one in which a pipeline that is alone would
make it under 1F1B (PipeDream-Flush, as in Megatron-LM). A rank makes its passes in the order of their slots, those of
several pipelines in turns: first those of one that has lost a rank, since what waits for them has others waiting behind
it. With no absent position that is 1F1B. A rank that computes a lost peer's micro-batches too makes them between its
own, holds no more activations of each pipeline than 1F1B does, and fills bubbles where there are some (ReCycle, SOSP
2024, adaptive pipelining; without decoupled backward or staggered optimizer).

No rank waits for ever, whoever is away: a pass needs passes of the same micro-batch in lower slots only, and every
rank makes lower slots first. Two ranks meet the micro-batches that they exchange in the same order at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.work_assignment import WorkAssignment


class PipelinePass(NamedTuple):
    """One pass of one micro-batch through one stage."""

    micro_batch: int
    backward: bool
    source: int | None
    """Who gives its input: a replica, or the rank that ``numbered`` put in its place. None: no other rank does."""
    target: int | None
    """Who takes its output; likewise."""


def schedule(
    assignment: WorkAssignment, total: int, shape: MeshShape, position: tuple[int, int]
) -> tuple[PipelinePass, ...]:
    """The passes that the rank on ``position`` makes in one step, in order.

    Args:
        assignment: of the generation.
        total: micro-batches of all replicas in one step.
        shape: of the whole job.
        position: replica and stage.

    Raises:
        ValueError: fewer micro-batches than replicas, the position is absent, no rank computes some stage, or one
            is away of pipelines of unlike depth: none of them could do the other's.
    """
    (replica, stage), dp, pp = position, shape.dp, shape.stages[position[0]]
    if assignment.absent_positions and shape.depths:
        raise ValueError(f"pipelines of stages {list(shape.depths)} cannot compute one another's micro-batches")
    if replica not in assignment.occupied(stage):
        raise ValueError(f"replica {replica} has no mesh position at stage {stage} in this generation")
    before, after = (_owners(assignment, total, dp, at) if 0 <= at < pp else {} for at in (stage - 1, stage + 1))
    mine = frozenset(assignment.micro_batches(total, dp, stage)[replica])
    crossing = {gap[0] for gap in assignment.absent_positions}
    tasks = []
    for home, ids in assignment.micro_batches(total, dp).items():
        for place, number in enumerate(ids):
            if number in mine:
                forward = PipelinePass(number, False, before.get(number), after.get(number))
                backward = PipelinePass(number, True, after.get(number), before.get(number))
                order = (home not in crossing, home)
                tasks += [(schedule_slot(place, stage, pp, t.backward), *order, t) for t in (forward, backward)]
    return tuple(task for *_, task in sorted(tasks))


def schedule_slot(place: int, stage: int, pp: int, backward: bool) -> int:
    """When ``stage`` of ``pp`` makes a pass of its pipeline's ``place``-th micro-batch, all passes taking one slot.

    The first ``pp - stage`` forward passes are made as early as can be; then a backward and a forward take turns.
    """
    if backward:
        return 2 * pp - 1 - stage + 2 * place
    return stage + (place if place < pp - stage else 2 * place)


def numbered(
    tasks: tuple[PipelinePass, ...], stage: int, rank_of: Callable[[int, int], int]
) -> tuple[PipelinePass, ...]:
    """``tasks`` of ``stage`` with ranks in place of replicas; ``rank_of`` is asked for (replica, stage)."""

    def rank(replica: int | None, at: int) -> int | None:
        return None if replica is None else rank_of(replica, at)

    ways = [1 if task.backward else -1 for task in tasks]
    return tuple(
        task._replace(source=rank(task.source, stage + way), target=rank(task.target, stage - way))
        for task, way in zip(tasks, ways, strict=True)
    )


def _owners(assignment: WorkAssignment, total: int, dp: int, stage: int) -> Mapping[int, int]:
    """Micro-batch -> replica whose mesh position computes it at ``stage``."""
    return {number: replica for replica, ids in assignment.micro_batches(total, dp, stage).items() for number in ids}
