"""Who is who in a job: ranks on the axes of parallelism, the nodes they run on, the switches above those.

A process group of kind ``dp`` holds the ranks that differ in ``dp`` only, and so on; ``world`` holds all. Axes stand
outermost first, as process groups nest: ``("dp", "pp", "tp")``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]
WORLD = "world"
AXES = ("dp", "pp", "tp")


@dataclass(frozen=True, kw_only=True, eq=False)
class JobMesh:
    """One row a rank, in any order.

    Raises:
        ValueError: shapes disagree, or a rank stands twice; the message names which.
    """

    job: str
    axes: tuple[str, ...]
    """A names, outermost first."""
    ranks: npt.NDArray[np.int64]
    """[R] rank numbers."""
    index: npt.NDArray[np.int64]
    """[A, R] place of each rank on each axis."""
    nodes: tuple[str, ...]
    """[R]"""
    devices: tuple[str | None, ...] = ()
    """[R], or empty where it is unknown."""
    switches: tuple[tuple[str, ...], ...] = ()
    """[R] the switches above a rank's node, nearest first: ``("leaf-3", "spine-1")``; or empty."""

    def __post_init__(self) -> None:
        size = len(self.ranks)
        if self.index.shape != (len(self.axes), size):
            raise ValueError(f"index has shape {self.index.shape}, expected [axis, rank] = {(len(self.axes), size)}")
        for name, given in (("nodes", self.nodes), ("devices", self.devices), ("switches", self.switches)):
            if len(given) != size and (name == "nodes" or given):
                raise ValueError(f"{len(given)} {name} for {size} ranks")
        if len(np.unique(self.ranks)) != size:
            numbers, counts = np.unique(self.ranks, return_counts=True)
            raise ValueError(f"rank {numbers[counts > 1][0]} stands twice in the mesh")

    @property
    def size(self) -> int:
        return len(self.ranks)

    def length(self, axis: str) -> int:
        """How many places the axis has; 1 for one that the job does not have."""
        if axis not in self.axes or not self.size:
            return 1
        return int(self.index[self.axes.index(axis)].max()) + 1

    def on(self, axis: str) -> npt.NDArray[np.int64]:
        """[R] place on one axis; zeros for one that the job does not have."""
        if axis not in self.axes:
            return np.zeros(self.size, np.int64)
        return np.asarray(self.index[self.axes.index(axis)])

    def labels(self, *within: str) -> npt.NDArray[np.int64]:
        """[R] number of each rank's group: equal for ranks that differ only on these axes, counted from 0.

        Of the kind ``world`` there is one group.
        """
        others = [row for axis, row in zip(self.axes, self.index, strict=True) if axis not in within]
        if WORLD in within or not others or not self.size:
            return np.zeros(self.size, np.int64)
        _, label = np.unique(np.stack(others), axis=1, return_inverse=True)
        return label.astype(np.int64).reshape(-1)

    @cached_property
    def row_of(self) -> Mapping[int, int]:
        """Rank number to row."""
        return {int(rank): row for row, rank in enumerate(self.ranks)}

    def rows(self, ranks: Sequence[int | None]) -> Rows:
        """Rows of rank numbers; -1 for a rank that the mesh does not have."""
        return np.array([-1 if rank is None else self.row_of.get(rank, -1) for rank in ranks], np.intp)


def rows_by_label(labels: npt.NDArray[Any]) -> list[Rows]:
    """Rows of each label, in order of label."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1) if len(labels) else []


def mesh_of(
    job: str,
    topology: Mapping[str, Any],
    switches: Mapping[str, tuple[str, ...]] | None = None,
    axes: tuple[str, ...] = AXES,
) -> JobMesh:
    """From a job's topology as ``PUT /v1/jobs/{id}`` has it: ``ranks: [{rank, dp, pp, tp, node, device}]``.

    A place on an axis that is not given is 0; a node that is not given has no name.
    Where pipelines differ in depth (``pipeline_depths``), stages are counted on from those of deeper pipelines: the
    same stage of another depth is another part of the model, and has no peer.
    """
    ranks = sorted(topology["ranks"], key=lambda place: int(place["rank"]))
    nodes = tuple(place.get("node") or "" for place in ranks)
    above = tuple((switches or {}).get(node, ()) for node in nodes)
    index = np.array([[place.get(axis) or 0 for place in ranks] for axis in axes], np.int64)
    index = index.reshape(len(axes), len(ranks))
    stages = topology.get("pipeline_depths") or ()
    deeper = [sum(other for other in {*stages} if other > depth) for depth in stages]
    if deeper:
        index[1] += np.array(deeper, np.int64)[index[0]]
    return JobMesh(
        job=job,
        axes=axes,
        ranks=np.array([int(place["rank"]) for place in ranks], np.int64),
        index=index,
        nodes=nodes,
        devices=tuple(place.get("device") for place in ranks),
        switches=above if any(above) else (),
    )


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
