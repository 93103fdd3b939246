"""The mesh: who this rank is, and its process groups in the generation that is alive now.

A recovery replaces the groups, so read ``mesh.dp`` and its siblings where they are used; never keep them over a step.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from mainstay.recovery.mesh_shape import GenerationRanks, MeshShape
from mainstay.recovery.pipeline_schedule import PipelinePass, numbered, schedule
from mainstay.recovery.protocol.worker_messages import CollectiveFailed, Joined, Regroup
from mainstay.recovery.sdk.launcher_client import LauncherClient
from mainstay.recovery.sdk.process_groups import Communicator, GenerationGroups
from mainstay.recovery.work_assignment import WorkAssignment


class Mesh:
    """``dp`` x ``pp`` x ``tp`` ranks; ``rank = (dp_index * pp + pp_index) * tp + tp_index``. Made by ``init``.

    Where pipelines are of unlike depth (``shape.depths``), ``pp`` is the deepest's and ``dp`` groups those cut alike.
    """

    def __init__(self, communicator: Communicator, link: LauncherClient | None) -> None:
        self.communicator = communicator
        self.link = link
        self.shape = communicator.world.shape
        self.rank = communicator.rank
        self.world_size = self.shape.world_size
        self.dp_rank, self.pp_rank, self.tp_rank = self.shape.place(self.rank)
        self.order: Regroup | None = None
        """The launcher's order that formed the present generation."""
        self.assigned = 0
        """Micro-batches that this rank has in a step, once its script has asked."""
        self.routed = False
        """Whether the script has asked for its schedule in this generation, and so with whom to exchange."""
        self._schedules: dict[int, tuple[PipelinePass, ...]] = {}
        """By micro-batches of a step, of this generation and of the replica that is played."""
        self._position = self.rank
        """This process's own rank, also while it plays another."""

    @property
    def stages(self) -> int:
        """Of this rank's pipeline; others may have more, or fewer."""
        return self.shape.stages[self.shape.place(self._position)[0]]

    @property
    def generation(self) -> int:
        return self._groups.generation

    @property
    def world(self) -> dist.ProcessGroup:
        return self._groups.world

    @property
    def dp(self) -> dist.ProcessGroup:
        """Ranks that hold the same parameters; see ``LayerGradientAccumulator`` for pipelines of unlike depth."""
        return self._groups.dp

    @property
    def pp(self) -> dist.ProcessGroup:
        """The stages of this rank's pipeline."""
        return self._groups.pp

    @property
    def tp(self) -> dist.ProcessGroup:
        return self._groups.tp

    @property
    def ep(self) -> dist.ProcessGroup:
        """Data-parallel ranks that hold each expert once among them; this rank's place is ``ep_rank``."""
        return _asked(self._groups.ep)

    @property
    def expert_dp(self) -> dist.ProcessGroup:
        """Data-parallel ranks that hold the same experts."""
        return _asked(self._groups.expert_dp)

    @property
    def ep_rank(self) -> int:
        """Index in ``ep``."""
        return self.dp_rank % (self.communicator.ep or 1)

    @property
    def all_groups(self) -> tuple[dist.ProcessGroup, ...]:
        return self.world, self.dp, self.pp, self.tp

    @property
    def replicas(self) -> tuple[int, ...]:
        """Data-parallel indices of the ranks in ``dp``, in their order; in a replay this rank's alone."""
        return (self.dp_rank,) if self._alone else self._work_assignment.occupied(self.pp_rank)

    @property
    def crossed(self) -> bool:
        """Whether micro-batches leave their pipelines in this generation, because a stage of one is away."""
        return bool(self._work_assignment.absent_positions)

    def assignment(self, total: int) -> dict[int, tuple[int, ...]]:
        """Replica -> ids of the micro-batches that its rank at this stage computes of each step of this generation.

        Args:
            total: micro-batches of all replicas in one step, however many take part.

        Raises:
            ValueError: there are fewer than replicas.
        """
        assigned = self._work_assignment.micro_batches(total, self.shape.dp, self.pp_rank)
        self.assigned = len(assigned[self.dp_rank])
        return {replica: assigned[replica] for replica in self.replicas}

    def micro_batches(self, total: int) -> tuple[int, ...]:
        """Ids of this rank's micro-batches in each step of this generation: ask in every step, see ``assignment``."""
        return self.assignment(total)[self.dp_rank]

    def schedule(self, total: int) -> tuple[PipelinePass, ...]:
        """The passes that this rank makes in each step of this generation, in order, and the ranks to exchange with.

        Of a pipeline, one forward, one backward. While a stage of another pipeline is away, perhaps some of its
        micro-batches too: a script that asks here in every step continues without that rank alone (``--on-loss
        reroute``). ``source`` and ``target`` are what ``recv`` and ``send`` take.

        Raises:
            ValueError: there are fewer micro-batches than replicas.
        """
        self.routed = True
        tasks = self._schedules.get(total)
        if tasks is None:
            found = schedule(self._work_assignment, total, self.shape, (self.dp_rank, self.pp_rank))
            tasks = numbered(found, self.pp_rank, lambda dp, pp: self.rank_of(dp=dp, pp=pp, tp=self.tp_rank))
            self._schedules[total] = tasks
        self.assigned = len(tasks) // 2
        return tasks

    def require_schedule(self) -> None:
        """Before the update of a step.

        Raises:
            ValueError: micro-batches leave their pipelines, and the script has not asked where to.
        """
        if self.crossed and not self.routed:
            raise ValueError(
                "a stage of a pipeline is away, and this script did not ask mesh.schedule where its micro-batches go"
            )

    @property
    def _alone(self) -> bool:
        """In a replay a replica is a job of its own."""
        return self.order is not None and self.order.replay_request is not None

    @property
    def _work_assignment(self) -> WorkAssignment:
        order = self.order
        if order is None or order.assignment is None or self._alone:
            return WorkAssignment(replicas=tuple(range(self.shape.dp)), shares=self.shape.depths)
        return order.assignment

    def rank_of(self, *, dp: int, pp: int, tp: int = 0) -> int:
        """The rank at these indices, as torch numbers ranks in this generation: for ``send`` and ``recv``.

        Raises:
            ValueError: it takes no part. In a replay none of another replica does.
        """
        world = self.communicator.world
        if self._alone and dp == self.dp_rank:
            return world.shape.rank_of(dp=0, pp=pp, tp=tp)
        rank = self.shape.rank_of(dp=dp, pp=pp, tp=tp)
        if self._alone or rank not in world.places:
            raise ValueError(f"stage {pp} of replica {dp} takes no part in this generation")
        return world.places[rank]

    def number_of(self, rank: int) -> int:
        """The number in the whole job of the rank that torch calls ``rank`` in this generation."""
        number = self.communicator.world.ranks[rank]
        if not self._alone:
            return number
        _, pp, tp = self.communicator.world.shape.place(number)
        return self.shape.rank_of(dp=self.dp_rank, pp=pp, tp=tp)

    @property
    def _groups(self) -> GenerationGroups:
        if self.communicator.groups is None:
            raise RuntimeError("the process groups of the last generation are gone and the next is not formed yet")
        return self.communicator.groups

    def play(self, replica: int) -> None:
        """Be the rank of this place in ``replica``, as far as the script can see: its data and seeds follow."""
        self.rank = self.shape.rank_of(dp=replica, pp=self.pp_rank, tp=self.tp_rank)
        self.dp_rank = replica
        self._schedules.clear()

    def follow(self, order: Regroup) -> bool:
        """Form the generation of ``order``. False when it was fenced meanwhile; any other failure is raised."""
        link = self.link
        assert link is not None
        alone = order.replay_request
        communicator = self.communicator
        self.play(self.shape.place(self._position)[0])
        communicator.rank, communicator.world = self._place(order)
        self.routed = False
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
                link.send(
                    CollectiveFailed(generation=order.generation, reason=f"forming the groups failed: {error}"[:500])
                )
            if link.wait_fence(order.generation, _PATIENCE_SECONDS):
                return False
            raise
        self.order = order
        return True

    def _place(self, order: Regroup) -> tuple[int, GenerationRanks]:
        """This rank's number in the world of ``order``, and that world."""
        shape, position = self.shape, self._position
        if order.replay_request is not None:  # a group of ranks is a job of one replica
            return order.replay_request.place, GenerationRanks.whole(MeshShape(dp=1, pp=self.stages, tp=shape.tp))
        if order.assignment is None:
            return position, GenerationRanks.whole(shape)
        occupied = [frozenset(order.assignment.occupied(stage)) for stage in range(shape.pp)]
        places = [shape.place(rank) for rank in range(shape.world_size)]
        here = tuple(rank for rank, (dp, pp, _) in enumerate(places) if dp in occupied[pp])
        return here.index(position), GenerationRanks(shape, here)


_PATIENCE_SECONDS = 30.0
"""A peer that died while groups were formed is fenced within a second; if no rank is fenced, the failure is ours."""


def told_shape(tp: int) -> MeshShape:
    """What the launcher was told, or has chosen since; where it was not: ``tp``, one stage, the rest are replicas.

    Raises:
        ValueError: pipelines are of unlike depth, and ``tp`` is not 1.
    """
    tp = int(os.environ.get("MAINSTAY_TP", tp))
    stages = os.environ.get("MAINSTAY_STAGES")
    if stages:
        return MeshShape.from_stages([int(number) for number in stages.split(",")], tp)
    pp = int(os.environ.get("MAINSTAY_PP", "1"))
    replicas = max(1, int(os.environ.get("WORLD_SIZE", "1")) // max(1, pp * tp))
    return MeshShape(dp=int(os.environ.get("MAINSTAY_DP", replicas)), pp=pp, tp=tp)


def _asked(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    if group is None:
        raise RuntimeError("this mesh has no groups of experts: give mainstay.init ep=")
    return group


def build_mesh(shape: MeshShape, ep: int | None, *, backend: str | None, link: LauncherClient | None) -> Mesh:
    """See ``mainstay.recovery.sdk.init``."""
    dp, pp, tp = shape.dp, shape.pp, shape.tp
    if min(dp, pp, tp) < 1:
        raise ValueError(f"dp={dp}, pp={pp}, tp={tp}: each must be at least 1")
    if ep is not None and (ep < 1 or dp % ep or shape.depths):
        raise ValueError(f"ep={ep} must divide dp={dp}, and all pipelines must have the same number of stages")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if shape.world_size != world:
        size = f"stages={list(shape.depths)}" if shape.depths else f"dp={dp} x pp={pp} x tp={tp}"
        raise ValueError(f"{size} needs {shape.world_size} ranks, this job has {world}")
    chosen = backend or ("nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo")
    mesh = Mesh(Communicator(int(os.environ.get("RANK", "0")), GenerationRanks.whole(shape), chosen, ep), link)
    if link is None:
        mesh.communicator.form_from_environment(0)
    else:
        _join(mesh, link)
    return mesh


def _join(mesh: Mesh, link: LauncherClient) -> None:
    assert link.assignment is not None
    link.on_fence = mesh.communicator.unblock_until_left
    generation = max(link.assignment.generation, link.fence)
    while True:
        shape = mesh.shape
        link.send(Joined(generation=generation, dp=shape.dp, pp=shape.pp, tp=shape.tp, depths=shape.depths))
        order = link.wait_regroup(generation)
        if order is not None:
            if mesh.follow(order):
                return
            mesh.communicator.leave()
        generation = link.fence
