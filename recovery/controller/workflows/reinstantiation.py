"""``--on-loss reinstantiate``: when a lost rank has no place to run, those that are left form other pipelines.

With ``auto`` they do where that is expected to cost less than to continue as they are (``strategy_controller``).

3+3 stages on six nodes, one is lost, no place is spare: 3+2 on the five that are left, and 3+3 again when it is back.

loss      at the fence: a lost rank lacks a place; the rest hold the model (``mainstay.recovery.pipeline_templates``)
save      the newest step of which the living hold the whole model, in one cut or another, is written: a living replica
          stands in for what was lost. Where there is none, the newest step that is on disk already
restart   like a planned change (``reshape_controller``): each rank gets a new process even if its part stays
growth    a node is back and warm: a planned change, without a step lost

Oobleck (SOSP'23) re-instantiates its pipelines from templates and copies missing layers from rank to rank; here they go
through the checkpoint directory, and a rank whose part of the model stays reads it too.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine

from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.participation import RemainingRanks
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.controller.state.events import RanksUnplaced
from mainstay.recovery.controller.workflows.reshape_controller import ReshapeController, ShapeChange
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.pipeline_templates import best_shape
from mainstay.recovery.work_assignment import LossPolicy


class PipelineReinstantiation:
    """One a coordinator."""

    def __init__(
        self, job: Job, checkpoints: CheckpointManager, inputs: PlannerInputBuilder, reshaping: ReshapeController
    ) -> None:
        self._job = job
        self._checkpoints = checkpoints
        self._inputs = inputs
        self._reshaping = reshaping

    @property
    def _asked(self) -> bool:
        return self._job.state.on_loss is LossPolicy.REINSTANTIATE

    def _home(self) -> MeshShape | None:
        """A coordinator that took over knows only what the job was started with."""
        options, shape = self._job.options, self._job.members.shape
        if self._reshaping.home is None and shape is not None:
            pp, tp = options.pp or 1, options.tp or shape.tp
            started = MeshShape(dp=options.dp or options.world_size // (pp * tp), pp=pp, tp=tp)
            told = (options.dp or options.pp) and started.world_size == options.world_size
            self._reshaping.home = started if told else shape
        return self._reshaping.home

    def _best(self, places: int) -> MeshShape | None:
        home = self._home()
        return None if home is None else best_shape(home, places)

    # A loss

    def instead(
        self, executor: RecoveryExecutor, recovery: RecoveryRecord, victims: set[int], failure: GenerationFailure
    ) -> Coroutine[None, None, None] | None:
        """Where ``victims`` have no place to run all others are fenced, and this is to follow; None: nothing for it."""
        unplaced = self._asked and isinstance(self._inputs.homes(victims, failure.exclude), str)
        shape = self._shape(victims, failure) if unplaced else None
        if shape is None:
            return None
        waiting = {rank.number for rank in self._job.members.ranks if rank.live} - victims
        executor.participation.choose(RemainingRanks(None, None), failure, None)
        members = self._job.members
        without = {r.number for r in members.ranks if r.number in victims or not members.nodes[r.node].alive}
        self._job.apply(RanksUnplaced(ranks=tuple(sorted(without))))  # so that nothing looks for a place for them
        executor.fencing.fence_all()
        return self._carry_out(executor, recovery, waiting, shape)

    def preferred(
        self, executor: RecoveryExecutor, recovery: RecoveryRecord, victims: set[int], failure: GenerationFailure
    ) -> Coroutine[None, None, None] | None:
        """The same where it was weighed and costs least, behind the fence; None: some have a place, or it cannot be."""
        placed = any(not self._job.members.ranks[number].unplaced for number in victims)
        shape = None if placed or self._job.state.on_loss is not LossPolicy.AUTO else self._shape(victims, failure)
        if shape is None:
            return None
        executor.participation.choose(RemainingRanks(None, None), failure, None)
        waiting = {rank.number for rank in self._job.members.ranks if rank.live} - victims
        return self._carry_out(executor, recovery, waiting, shape)

    def _shape(self, victims: set[int], failure: GenerationFailure) -> MeshShape | None:
        """To continue in."""
        job, disk = self._job, self._checkpoints
        if job.members.shape is None or not victims or failure.replay is not None:
            return None
        began = job.state.formed_once or job.source is not None
        places = job.members.places()
        shape = self._best(places)
        if shape is None:
            places = job.members.places(last_resort=True)
            shape = self._best(places)
        problems = {
            "there is no --checkpoint-dir: the state goes from one shape to the other through it": not disk.enabled,
            "no rank has trained yet": not began,
            self._job.members.fixed_shape() if job.state.formed_once else "": True,
            "ranks have left the training loop already": any(rank.gone for rank in job.members.ranks),
            f"the {places} ranks that there is room for do not hold the model": shape is None,
        }
        problem = next((problem for problem, holds in problems.items() if problem and holds), "")
        if problem:
            log.warning("no other pipelines: %s", problem)
            return None
        return shape

    async def _carry_out(
        self, executor: RecoveryExecutor, recovery: RecoveryRecord, waiting: set[int], shape: MeshShape
    ) -> None:
        """All ranks are fenced by ``executor``; what follows ends like a start, in ``shape``."""
        job, change = self._job, ShapeChange(shape)
        if not await executor.fencing.wait_for_survivors(recovery, waiting):
            return
        begun = time.time()
        problem = await self._source(shape)
        change.saving_s = time.time() - begun
        if problem:
            job.control.fail(f"nothing is left to continue from in {shape}: {problem}")
            return
        recovery.mark("save")
        log.warning(
            "DEGRADED %s: continues as %s from step %d, on %d of %d ranks",
            job.options.job, shape, job.begun_at, shape.world_size, job.options.world_size,
        )  # fmt: skip
        await self._reshaping.turn_over(executor, recovery, change)

    async def _source(self, shape: MeshShape) -> str:
        """Have ``Job.source`` say what to continue from: the newest step there is; why there is none, or nothing."""
        if not self._job.state.formed_once:  # lost while another shape was formed: nothing newer was made
            return self._checkpoints.incompatibility(shape)
        problem = await self._reshaping.save(shape)
        if not problem:
            return ""
        log.warning("the newest step cannot be had (%s): an older one that is on disk is looked for", problem)
        older = self._reshaping.adopt(shape)
        if older and self._job.source is not None:
            older = self._checkpoints.incompatibility(shape)
        return f"{problem}; {older}" if older else ""

    # Back

    def grown(self) -> MeshShape | None:
        """The shape for which there is room again, once every process that it needs is warm."""
        job, shape = self._job, self._job.members.shape
        wanted = self._asked or self._job.state.on_loss is LossPolicy.AUTO
        if not wanted or shape is None or job.state.ends_soon:
            return None
        home = self._home()
        if home is None or shape.world_size >= home.world_size or self._job.members.fixed_shape():
            return None
        warm = sum(count for name, count in job.members.standbys().items() if job.members.nodes[name].endpoint)
        best = self._best(min(shape.world_size + warm, job.members.places()))
        return best if best is not None and best.world_size > shape.world_size else None
