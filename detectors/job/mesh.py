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

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of group with more than one member, outermost first: ``world`` and the axes longer than one."""
        return (WORLD, *(axis for axis in self.axes if self.length(axis) > 1))

    def length(self, axis: str) -> int:
        """How many places the axis has; 1 for one that the job does not have."""
        if axis not in self.axes or not self.size:
            return 1
        return int(self.index[self.axes.index(axis)].max()) + 1

    def on(self, axis: str) -> npt.NDArray[np.int64]:
        """[R] place on one axis; zeros for one that the job does not have."""
        if axis not in self.axes:
            return np.zeros(self.size, np.int64)
        place: npt.NDArray[np.int64] = self.index[self.axes.index(axis)]
        return place

    def labels(self, kind: str) -> npt.NDArray[np.int64]:
        """[R] number of each rank's group of this kind: equal for members of one group, counted from 0."""
        if kind == WORLD:
            return np.zeros(self.size, np.int64)
        others = [row for axis, row in zip(self.axes, self.index, strict=True) if axis != kind]
        if not others or not self.size:
            return np.zeros(self.size, np.int64)
        _, label = np.unique(np.stack(others), axis=1, return_inverse=True)
        return label.astype(np.int64).reshape(-1)

    def groups(self, kind: str) -> list[Rows]:
        """Rows of the members of each group of this kind, in order of label."""
        label = self.labels(kind)
        if not len(label):
            return []
        order = np.argsort(label, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(label[order])) + 1)

    @cached_property
    def row_of(self) -> Mapping[int, int]:
        """Rank number to row."""
        return {int(rank): row for row, rank in enumerate(self.ranks)}

    def rows(self, ranks: Sequence[int | None]) -> Rows:
        """Rows of rank numbers; -1 for a rank that the mesh does not have."""
        return np.array([-1 if rank is None else self.row_of.get(rank, -1) for rank in ranks], np.intp)


def mesh_of(job: str, topology: Mapping[str, Any], switches: Mapping[str, tuple[str, ...]] | None = None) -> JobMesh:
    """From a job's topology as ``PUT /v1/jobs/{id}`` has it: ``ranks: [{rank, dp, pp, tp, node, device}]``.

    Where pipelines differ in depth (``pipeline_depths``), stages are counted on from those of deeper pipelines: the
    same stage of another depth is another part of the model, and has no peer.
    """
    above = switches or {}
    ranks = sorted(topology["ranks"], key=lambda place: place["rank"])
    axes = ("dp", "pp", "tp")
    index = np.array([[place[axis] for place in ranks] for axis in axes], np.int64).reshape(len(axes), len(ranks))
    stages = topology.get("pipeline_depths") or ()
    deeper = [sum(other for other in {*stages} if other > depth) for depth in stages]
    if deeper:
        index[1] += np.array(deeper, np.int64)[index[0]]
    return JobMesh(
        job=job,
        axes=axes,
        ranks=np.array([place["rank"] for place in ranks], np.int64),
        index=index,
        nodes=tuple(place["node"] for place in ranks),
        devices=tuple(place.get("device") for place in ranks),
        switches=tuple(above.get(place["node"], ()) for place in ranks),
    )
