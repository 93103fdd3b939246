"""A batch split over unlike pipelines one micro-batch at a time: what the faster ways are held against."""

from __future__ import annotations

from collections.abc import Sequence


def mixed_batches(pipelines: Sequence[tuple[int, float]], micro_batches: int) -> tuple[float, tuple[int, ...]]:
    """Split a batch over unlike pipelines so that the slowest is as fast as can be (Oobleck's re-instantiation).

    A pipeline of S stages with slot t takes (b + S - 1) t for b micro-batches. Each next micro-batch goes where it ends
    first, which is best for makespans that grow evenly.

    Args:
        pipelines: (stages, slot in seconds) of each.
        micro_batches: of the whole job; at least one a pipeline.

    Returns:
        Seconds of the iteration, and the micro-batches of each pipeline.

    Raises:
        ValueError: fewer micro-batches than pipelines.
    """
    if micro_batches < len(pipelines) or not pipelines:
        raise ValueError(f"{micro_batches} micro-batches cannot keep {len(pipelines)} pipelines busy")
    split = [1] * len(pipelines)

    def ends(i: int, more: int = 0) -> float:
        stages, slot = pipelines[i]
        return (split[i] + more + stages - 1) * slot

    for _ in range(micro_batches - len(pipelines)):
        split[min(range(len(pipelines)), key=lambda i: ends(i, 1))] += 1
    return max(ends(i) for i in range(len(pipelines))), tuple(split)
