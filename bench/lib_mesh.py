"""A full grid of ranks, for benches and tests."""

from __future__ import annotations

import numpy as np

from mainstay.detectors.job.mesh import JobMesh


def regular(
    job: str, *, dp: int = 1, pp: int = 1, tp: int = 1, ranks_per_node: int = 8, leaf_nodes: int = 0
) -> JobMesh:
    """A full grid, ``rank = (dp * PP + pp) * TP + tp``, nodes filled in order; ``leaf_nodes`` nodes under each leaf."""
    size = dp * pp * tp
    index = np.stack(np.unravel_index(np.arange(size), (dp, pp, tp))).astype(np.int64)
    hosts = np.arange(size) // ranks_per_node
    above = tuple((f"leaf-{host // leaf_nodes}",) for host in hosts) if leaf_nodes else ()
    return JobMesh(
        job=job,
        axes=("dp", "pp", "tp"),
        ranks=np.arange(size, dtype=np.int64),
        index=index,
        nodes=tuple(f"node-{host}" for host in hosts),
        devices=tuple(f"gpu{rank % ranks_per_node}" for rank in range(size)),
        switches=above,
    )
