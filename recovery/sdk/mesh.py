"""The mesh: who this rank is, and its process groups in the generation that is alive now.

A recovery replaces the groups, so read ``mesh.dp`` and its siblings where they are used; never keep them over a step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from recovery.deal import Deal
from recovery.launcher.worker_messages import Joined, Regroup, Trouble
from recovery.sdk.comm import Communicator, Groups
from recovery.sdk.link import Link
from recovery.shape import Shape


class Mesh:
    """``dp`` x ``pp`` x ``tp`` ranks; ``rank = (dp_index * pp + pp_index) * tp + tp_index``. Made by ``init``."""

    def __init__(self, communicator: Communicator, link: Link | None) -> None:
        self.communicator = communicator
        self.link = link
        self.shape = communicator.shape
        self.rank = communicator.rank
        self.world_size = self.shape.world_size
        self.dp_rank, self.pp_rank, self.tp_rank = self.shape.place(self.rank)
        self.order: Regroup | None = None
        """The launcher's order that formed the present generation."""
        self.dealt = 0
        """Micro-batches that this rank has in a step, once its script has asked."""
        self._seat = self.rank
        """This process's own rank, also while it plays another."""

    @property
    def generation(self) -> int:
        return self._groups.generation

    @property
    def world(self) -> dist.ProcessGroup:
        return self._groups.world

    @property
    def dp(self) -> dist.ProcessGroup:
        """Ranks that hold the same parameters."""
        return self._groups.dp

    @property
    def pp(self) -> dist.ProcessGroup:
        """The stages of this rank's pipeline."""
        return self._groups.pp

    @property
    def tp(self) -> dist.ProcessGroup:
        return self._groups.tp

    @property
    def all_groups(self) -> tuple[dist.ProcessGroup, ...]:
        return self.world, self.dp, self.pp, self.tp

    @property
    def members(self) -> dict[str, Sequence[int]]:
        """Kind of group -> ranks of this rank's own, as torch numbers them in this generation."""
        shape, rank = self.communicator.shape, self.communicator.rank
        return {
            "world": range(shape.world_size),
            "dp": shape.dp_peers(rank),
            "pp": shape.pp_peers(rank),
            "tp": shape.tp_peers(rank),
        }

    @property
    def replicas(self) -> tuple[int, ...]:
        """Data-parallel indices of the replicas that take part in this generation; in a replay this rank's alone."""
        if self.order is not None and self.order.rehearsal is not None:
            return (self.dp_rank,)
        return self._deal.replicas

    def deal(self, total: int) -> dict[int, tuple[int, ...]]:
        """Replica -> ids of the micro-batches that it computes of each step of this generation.

        Args:
            total: micro-batches of all replicas in one step, however many take part.

        Raises:
            ValueError: there are fewer than replicas.
        """
        dealt = self._deal.micro_batches(total, self.shape.dp)
        self.dealt = len(dealt[self.dp_rank])
        return {replica: dealt[replica] for replica in self.replicas}

    def micro_batches(self, total: int) -> tuple[int, ...]:
        """Ids of this rank's micro-batches in each step of this generation: ask in every step, see ``deal``."""
        return self.deal(total)[self.dp_rank]

    @property
    def _deal(self) -> Deal:
        order = self.order
        if order is None or order.deal is None or order.rehearsal is not None:
            return Deal(replicas=tuple(range(self.shape.dp)))
        return order.deal

    def rank_of(self, *, dp: int, pp: int, tp: int = 0) -> int:
        """The rank at these indices, as torch numbers ranks in this generation: for ``send`` and ``recv``.

        Raises:
            ValueError: replica ``dp`` takes no part. In a replay none but one's own does.
        """
        if dp not in self.replicas:
            raise ValueError(f"replica {dp} takes no part in this generation: {list(self.replicas)} do")
        return self.communicator.shape.rank_of(dp=self.replicas.index(dp), pp=pp, tp=tp)

    def number_of(self, rank: int) -> int:
        """The number in the whole job of the rank that torch calls ``rank`` in this generation."""
        dp, pp, tp = self.communicator.shape.place(rank)
        return self.shape.rank_of(dp=self.replicas[dp], pp=pp, tp=tp)

    @property
    def _groups(self) -> Groups:
        if self.communicator.groups is None:
            raise RuntimeError("the process groups of the last generation are gone and the next is not formed yet")
        return self.communicator.groups

    def play(self, replica: int) -> None:
        """Be the rank of this place in ``replica``, as far as the script can see: its data and seeds follow."""
        self.rank = self.shape.rank_of(dp=replica, pp=self.pp_rank, tp=self.tp_rank)
        self.dp_rank = replica

    def follow(self, order: Regroup) -> bool:
        """Form the generation of ``order``. False when it was fenced meanwhile; any other failure is raised."""
        link = self.link
        assert link is not None
        alone = order.rehearsal
        communicator = self.communicator
        self.play(self.shape.place(self._seat)[0])
        communicator.rank, communicator.shape = self._place(order)
        try:
            communicator.form_with_server(
                order.generation,
                order.store_host,
                order.store_port,
                lambda: link.fence > order.generation,
                "" if alone is None else alone.group,
            )
        except RuntimeError as error:
            if link.fence <= order.generation:
                link.send(Trouble(generation=order.generation, reason=f"forming the groups failed: {error}"[:500]))
            if link.wait_fence(order.generation, _PATIENCE_SECONDS):
                return False
            raise
        self.order = order
        return True

    def _place(self, order: Regroup) -> tuple[int, Shape]:
        """This rank's number in the world of ``order``, and that world's shape."""
        shape, seat = self.shape, self._seat
        if order.rehearsal is not None:  # a group of ranks is a job of one replica
            return order.rehearsal.place, Shape(dp=1, pp=shape.pp, tp=shape.tp)
        if order.deal is None:
            return seat, shape
        dp, pp, tp = shape.place(seat)
        fewer = Shape(dp=len(order.deal.replicas), pp=shape.pp, tp=shape.tp)
        return fewer.rank_of(dp=order.deal.replicas.index(dp), pp=pp, tp=tp), fewer


_PATIENCE_SECONDS = 30.0
"""A peer that died while groups were formed is fenced within a second; with nobody to blame, the failure is ours."""


def build_mesh(*, dp: int, pp: int, tp: int, backend: str | None, link: Link | None) -> Mesh:
    """See ``recovery.sdk.init``."""
    shape = Shape(dp=dp, pp=pp, tp=tp)
    if min(dp, pp, tp) < 1:
        raise ValueError(f"dp={dp}, pp={pp}, tp={tp}: each must be at least 1")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if shape.world_size != world:
        raise ValueError(f"dp={dp} x pp={pp} x tp={tp} needs {shape.world_size} ranks, this job has {world}")
    chosen = backend or ("nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo")
    mesh = Mesh(Communicator(int(os.environ.get("RANK", "0")), shape, chosen), link)
    if link is None:
        mesh.communicator.form_from_environment(0)
    else:
        _join(mesh, link)
    return mesh


def _join(mesh: Mesh, link: Link) -> None:
    assert link.assignment is not None
    link.on_fence = mesh.communicator.unblock_until_left
    generation = max(link.assignment.generation, link.fence)
    while True:
        link.send(Joined(generation=generation, dp=mesh.shape.dp, pp=mesh.shape.pp, tp=mesh.shape.tp))
        order = link.wait_regroup(generation)
        if isinstance(order, Regroup):
            if mesh.follow(order):
                return
            mesh.communicator.leave()
        generation = link.fence
