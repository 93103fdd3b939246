"""Which pipelines a job forms of the ranks that are left: Oobleck's templates, without a profile of the layers. Pure.

The shape that the job was started in says what is known of its model: it can be cut into that many stages, and a rank
holds one of them. A rank is trusted to hold what one stage fewer leaves it, and no more; deeper pipelines than those of
the start are not formed, because the script declared no layers for them. Two consecutive depths make every number
of ranks but a few (Frobenius); where they do not, ranks idle.
"""

from __future__ import annotations

from typing import Final

from mainstay.recovery.cost_model.layouts import LayoutModel, Mix, mix_s, mixes
from mainstay.recovery.mesh_shape import MeshShape

MICRO_BATCHES: Final = 4
"""That a pipeline is taken to compute: as many as its stages or more keep it busy."""


def least_stages(home: MeshShape) -> int:
    """Fewest stages that are trusted to hold the model of a job that was started as ``home``."""
    return max(1, min(home.stages) - 1)


def best_shape(home: MeshShape, places: int) -> MeshShape | None:
    """The shape in which a step takes least on ``places`` ranks; None if they do not hold the model.

    Stages are taken to be of equal work, and a step of S stages to end b micro-batches after (b + S - 1) / S.

    Args:
        home: as the job was started; what it goes back to when there is room.
        places: ranks that there is room for.
    """
    if places >= home.world_size:
        return home
    sizes = list(range(least_stages(home), home.pp + 1))
    batch = MICRO_BATCHES * home.dp
    model = LayoutModel(layers=home.pp, layer_s=1.0, batch=batch, least=sizes[0])
    found = [
        (mix_s(model, mix), -sum(count * stages for count, stages, _ in mix), mix)
        for used in range(sizes[0], places // home.tp + 1)
        for counts in mixes(used, sizes)
        if sum(counts) <= batch and (home.tp == 1 or sum(map(bool, counts)) == 1)
        for mix in [_mix(counts, sizes)]
    ]
    if not found:
        return None
    _, _, best = min(found)
    deepest_first = [stages for count, stages, _ in reversed(best) for _ in range(count)]
    return MeshShape.from_stages(deepest_first, home.tp)


def _mix(counts: tuple[int, ...], sizes: list[int]) -> Mix:
    return tuple((count, stages, 1.0 / stages) for count, stages in zip(counts, sizes, strict=True) if count)
