"""Which ranks share a process group, and their counters as ``mainstay.detectors.hang.wait_graph`` takes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.hang.wait_graph import INNERMOST_FIRST, GroupProgress
from mainstay.detectors.job.mesh import WORLD, JobMesh
from mainstay.probes.core_types import GROUP_KINDS

Ints = npt.NDArray[np.int64]


class GroupLabels:
    """Group labels of a job's entities, kept while neither the job's mesh nor its entities change."""

    def __init__(self) -> None:
        self._of: tuple[object, object] | None = None
        self.labels: Ints
        """[K, E]"""
        self.comparable: Bools
        """[K] whether counts of the members of one group say who is behind."""

    def _follow(self, samples: Samples) -> None:
        key = (samples.mesh, samples.entities)
        if self._of is not None and self._of[0] is key[0] and self._of[1] == key[1]:
            return
        mesh, size = samples.mesh, len(samples.entities)
        labels = np.zeros((len(GROUP_KINDS), size), np.int64)
        self.comparable = np.array([_comparable(kind, mesh) for kind in GROUP_KINDS])
        if mesh is not None:
            place = mesh.rows([entity.rank for entity in samples.entities])
            for number, kind in enumerate(GROUP_KINDS):
                if kind == WORLD or kind not in mesh.axes:
                    continue
                label = mesh.labels(kind)
                # A rank that the mesh does not have stands alone: its communication is unknown.
                labels[number] = np.where(place >= 0, label[np.maximum(place, 0)], mesh.size + np.arange(size))
        self.labels, self._of = labels, key

    def progress(self, samples: Samples, rows: EntityState, frozen_before: int) -> GroupProgress:
        """Counters at the standstill.

        Ranks whose counters did not change since move ``frozen_before`` and were passed by their own group have a stuck
        sensor: what they tell counts for nothing.
        """
        self._follow(samples)
        enqueued, completed = _repaired(rows["enqueued"], rows["completed"], rows["inside"])
        known = np.isfinite(enqueued) & np.isfinite(completed)
        passed = np.stack([self._passed(k, enqueued[k], completed[k], known[k]) for k in range(len(GROUP_KINDS))])
        stuck = passed.any(axis=0) & (rows["changed"] <= frozen_before)
        enqueued[:, stuck] = completed[:, stuck] = np.nan
        kinds, member, group, pairwise, depth = [], [], [], [], []
        base = 0
        ranks = np.array([-1 if e.rank is None else e.rank for e in samples.entities], np.int64)
        for k, kind in enumerate(GROUP_KINDS):
            if not known[k].any():
                continue
            label, number = np.unique(self.labels[k], return_inverse=True)
            number = number.reshape(-1)
            takes = np.zeros(len(label), np.bool_)
            takes[number[known[k]]] = True  # groups without any report give no information
            # A member whose counts others passed though it moves restarted its count: compare no counts there.
            anew = np.zeros(len(label), np.bool_)
            anew[number[passed[k] & ~stuck]] = True
            entries = np.flatnonzero(takes[number])
            member.append(entries)
            group.append(base + number[entries])
            kinds += [kind] * len(label)
            pairwise.append(anew | ~self.comparable[k])
            depth.append(np.full(len(label), INNERMOST_FIRST.index(kind)))
            base += len(label)
        if not member:
            return _uncounted(ranks, rows["inside"])
        rows_of = np.concatenate(member)
        which = np.repeat([k for k in range(len(GROUP_KINDS)) if known[k].any()], [len(m) for m in member])
        return GroupProgress(
            rank=ranks[rows_of],
            group=np.concatenate(group),
            enqueued=enqueued[which, rows_of],
            completed=completed[which, rows_of],
            kinds=tuple(kinds),
            pairwise=np.concatenate(pairwise),
            depth=np.concatenate(depth),
            role=self._role(samples.mesh)[rows_of],
        )

    def _role(self, mesh: JobMesh | None) -> Ints:
        """[E] mates of a pipeline stage: ranks of one group of the innermost axis that is no pipeline."""
        mates = ("tp", "cp", "ep", "dp")
        axis = next((axis for axis in mates if mesh is not None and mesh.length(axis) > 1), WORLD)
        label: Ints = self.labels[GROUP_KINDS.index(axis)]
        return np.arange(len(label)) if axis == WORLD else label

    def _passed(self, k: int, enqueued: Floats, completed: Floats, known: Bools) -> Bools:
        """[E] members that never entered what others of their group completed: impossible, so a report is wrong."""
        passed = np.zeros(len(enqueued), np.bool_)
        if not self.comparable[k] or not known.any():
            return passed
        label = self.labels[k]
        order = np.argsort(label, kind="stable")
        starts = np.flatnonzero(np.diff(label[order], prepend=-1))
        done = np.where(known, completed, -np.inf)[order]
        most = np.repeat(np.maximum.reduceat(done, starts), np.diff(starts, append=len(order)))
        passed[order] = most > np.where(known, enqueued, np.inf)[order]
        return passed


def _repaired(enqueued: Floats, completed: Floats, inside: Floats) -> tuple[Floats, Floats]:
    """[K, E] counters of ranks that block in their calls, where one of the two is stuck: the other tells it.

    Such a rank has begun at most one call more than it ended, and one more just when it is inside a call. Where counts
    run ahead of the calls (NCCL) nothing is known to be wrong.
    """
    enqueued, completed = enqueued.copy(), completed.copy()
    ahead = enqueued - completed
    with np.errstate(invalid="ignore"):
        odd = (ahead < 0) | (ahead > 1)
        sound = (ahead == 0) | (ahead == 1)
        elsewhere = (ahead == 1).any(axis=0)
    if int(odd.sum()) > 0.1 * int(sound.sum()):  # more than sensors are stuck anywhere: it is their way
        return enqueued, completed
    here = np.where((inside > 0.0) & ~elsewhere, 1.0, 0.0)
    for k, row in np.argwhere(odd):
        if ahead[k, row] < 0:  # it cannot have ended more than it began
            enqueued[k, row] = completed[k, row] + here[row]
        else:
            completed[k, row] = enqueued[k, row] - here[row]
    return enqueued, completed


def _comparable(kind: str, mesh: JobMesh | None) -> bool:
    """Everybody of a world group does all its collectives; of other kinds one must know who belongs together."""
    return kind == WORLD or (kind != "pp" and mesh is not None and kind in mesh.axes)


def _uncounted(ranks: Ints, inside: Floats) -> GroupProgress:
    """No counters: one group of all, of which is known at most who is inside a call."""
    open_call = np.nan_to_num(inside) > 0.0
    return GroupProgress(
        rank=ranks,
        group=np.zeros(len(ranks), np.int64),
        enqueued=open_call.astype(np.float64),
        completed=np.zeros(len(ranks)),
        kinds=(WORLD,),
        pairwise=np.ones(1, np.bool_),
        depth=np.array([INNERMOST_FIRST.index(WORLD)], np.int64),
    )
