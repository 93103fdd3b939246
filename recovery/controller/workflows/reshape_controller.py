"""A planned change of shape: all stop after a step, it goes to disk, and the same launchers start the new shape.

request   from ``mainstay job reshape`` or the service (``mainstay.recovery.controller.job_requests``); rejected in a
          line if invalid. Or the job's own, when nodes are back (``reinstantiation``)
fence     right after a step all ranks stop, a generation up; every process stays
save      the newest step that all ranks hold is written whole. If it cannot be, all continue where they were
restart   every rank gets a new process in the new shape, a run of its own begins, and each takes its tensors out of
          what was saved (``checkpoint.reshape``). All vote, as after any start

Until the step is whole on disk nothing is given up; from then on it is what the job goes back to on any failure. The
fence may cut the copy of the step that has just ended: that one is made again. Varuna (Athlur et al. 2022) morphs
through its checkpoints in the same order; here no launcher, store, agent or warm process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mainstay.probes.ids import uuid7
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.reshape import sources
from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.failure import EndedGeneration, GenerationFailure, WorkflowName
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.job_requests import JobRequests, RequestRejectedError
from mainstay.recovery.controller.participation import ParticipationPolicy
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.controller.state.events import ShapeChanged
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.job_request import JobRequest, RequestKind, RequestState
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.protocol.messages import DiscardCommand

SAVE_SECONDS: Final = 600.0
"""As long as an agent gives one transfer."""


@dataclass(slots=True)
class ShapeChange:
    """A change of shape that is under way."""

    shape: MeshShape
    request: JobRequest | None = None
    """None: there was no request, and no caller waits for an answer."""
    begun: bool = False
    """Processes in the old shape were ended."""
    saving_s: float = 0.0
    """That the save took."""


class ReshapeController:
    """One a coordinator: one change at a time, only while the job runs."""

    def __init__(
        self, job: Job, checkpoints: CheckpointManager, participation: ParticipationPolicy, requests: JobRequests
    ) -> None:
        self._job = job
        self._requests = requests
        self._checkpoints = checkpoints
        self._participation = participation
        self._current: ShapeChange | None = None
        self.home: MeshShape | None = None
        """As the job was started, or as a person asked for it since: what it goes back to."""

    def obstacle(self, _: RequestKind) -> str:
        """Why the job cannot change its shape now; empty: it can."""
        members = self._job.members
        problems = {
            "the job changes its shape just now": self._current is not None,
            "there is no --checkpoint-dir: the state goes from one shape to the other through it": (
                not self._checkpoints.enabled
            ),
            members.fixed_shape(): True,
            "ranks are away, and the job waits for them first": any(rank.away for rank in members.ranks),
        }
        return next((problem for problem, holds in problems.items() if problem and holds), "")

    def start(self, request: JobRequest) -> None:
        """Begin the change that ``request`` asks for.

        Raises:
            RequestRejectedError: the job cannot have that shape; one line.
        """
        shape = self._job.members.known_shape
        problems = self._unfit(request, shape)
        problem = next((problem for problem, holds in problems.items() if holds), "")
        if problem:
            raise RequestRejectedError(problem)
        change = ShapeChange(request.shape(shape), request)
        self._requests.answer(request, RequestState.ACCEPTED, f"it becomes {change.shape} after this step")
        self._start(change)

    def grow(self, grown: Callable[[], MeshShape | None]) -> None:
        """Called every second or so: become ``grown`` if the job has time for it."""
        job = self._job
        if self._current or job.state.phase is not JobPhase.RUNNING or job.busy or job.state.over:
            return
        shape = grown()
        if shape is not None:
            self._start(ShapeChange(shape))

    def _start(self, change: ShapeChange) -> None:
        self._current = change
        self._job.spawn(self._begin(change))

    def _unfit(self, request: JobRequest, shape: MeshShape) -> dict[str, bool]:
        """Problem -> whether it has it."""
        try:
            wanted = request.shape(shape)
        except ValueError as error:
            return {str(error): True}
        most = min(self._job.options.world_size, self._job.members.places())
        all_ranks = {shape.world_size, self._job.options.world_size}
        return {
            f"{wanted} needs {wanted.world_size} ranks, and the job has {shape.world_size}": (
                not request.stages and wanted.world_size not in all_ranks
            ),
            f"{wanted} needs {wanted.world_size} ranks, and there is room for {most}": wanted.world_size > most,
            "another tp needs a script that says how it cuts tensors: give mainstay.attach sharding=": (
                wanted.tp != shape.tp and not self._job.members.cuts_tensors()
            ),
            f"the job has {shape} already": wanted == shape,
        }

    # Before any rank stops

    async def _begin(self, change: ShapeChange) -> None:
        """Wait for the next step to be committed by all: then the least is made again."""
        job = self._job
        self._checkpoints.configure()  # a node that is back has not heard of the run

        problem = await job.next_step()
        if problem:
            self._finish(change, f"no rank was stopped: {problem}")
            return
        quiet = change.request is not None
        reason = f"change to {change.shape}"
        job.control.replay(
            GenerationFailure(reason=reason, counts=False, changes=not quiet, workflow=WorkflowName.RESHAPE)
        )

    # While everybody waits

    async def carry_out(self, executor: RecoveryExecutor, recovery: RecoveryRecord, ended: EndedGeneration) -> None:
        """All ranks are fenced by ``executor``; what follows ends like a start, in the new shape or in the old one."""
        change = self._current
        assert change is not None
        problem = "something failed meanwhile, which came first"
        try:
            if ended.victims:  # lost in the very moment: a recovery like any other
                await executor.recover_job(recovery, ended.victims, ended.waiting)
            else:
                problem = await self._change(executor, recovery, ended.waiting, change)
        finally:  # cancelled too: by any failure meanwhile, or by the end of the job
            self._finish(change, problem, recovery)

    async def _change(
        self, executor: RecoveryExecutor, recovery: RecoveryRecord, waiting: set[int], change: ShapeChange
    ) -> str:
        if not await executor.fencing.wait_for_survivors(recovery, waiting):
            return "not all ranks left their collectives"
        begun = time.time()
        problem = await self.save(change.shape)
        change.saving_s = time.time() - begun
        if problem:
            log.warning("change of shape given up, all continue as they were: %s", problem)
            await executor.recover_job(recovery, set(), waiting)
            return problem
        recovery.marks.clear()
        recovery.acted_at = time.time()  # what came before is not the price of a fence
        if change.request is not None:
            self.home = change.shape
        await self.turn_over(executor, recovery, change)
        return ""

    async def save(self, shape: MeshShape) -> str:
        """Have the newest common step written, and make it what the job continues from; why not, or nothing."""
        epoch, problem = await self._checkpoints.write_newest(SAVE_SECONDS)
        return problem or self.adopt(shape, epoch)

    def adopt(self, shape: MeshShape, epoch: int | None = None) -> str:
        """Continue from the newest whole step of this run (``epoch``, if one is given); why not, or nothing."""
        directory = self._job.options.checkpoint_dir
        assert directory is not None
        try:
            source = find(directory, self._job.state.run)
            if epoch is not None and source.manifest.epoch != epoch:
                return f"step {epoch} is not whole in {directory}, which all nodes must share"
            if source.manifest.quantized is not msgspec.UNSET:
                return f"step {source.manifest.epoch} is quantized: a job that runs continues only from the same bits"
            for rank in range(shape.world_size):
                sources(source.manifest, shape, rank)
        except CheckpointError as error:
            return str(error)
        self._job.source = source
        return ""

    async def turn_over(self, executor: RecoveryExecutor, recovery: RecoveryRecord, change: ShapeChange) -> None:
        """End all processes of the old shape, and start those of the new one from ``job.source``."""
        job, change.begun = self._job, True
        job.begin_generation(f"the job becomes {change.shape}")
        # What belongs to the old shape is forgotten: steps of the new one lie in a run of their own.
        homes = job.members.homes(change.shape.world_size)
        job.apply(ShapeChanged(shape=change.shape, homes=homes, run=uuid7()))
        self._participation.paces.forget()
        # Before any rank starts: a slot of the new shape must not be written into the run of the old one.
        self._checkpoints.configure()
        job.broadcast(DiscardCommand(epoch=0))
        everybody = {rank.number for rank in job.members.ranks}
        if executor.fencing.replace(everybody):
            await executor.recover_job(recovery, everybody, set())

    def _finish(self, change: ShapeChange, problem: str, recovery: RecoveryRecord | None = None) -> None:
        """Say what became of it: done when all ranks train on in the new shape."""
        if self._current is not change:
            return
        self._current = None
        job, shape, request = self._job, change.shape, change.request
        went_on = recovery is not None and any(phase == "first_step" for phase, _ in recovery.marks)
        figures: dict[str, Any] = {}
        if recovery is None or not (went_on and change.begun and job.members.shape == shape):
            state, detail = RequestState.FAILED, problem or "it was not finished"
        else:
            state, detail, step = RequestState.COMPLETED, self._told(change, recovery), job.begun_at
            # The fence may cut the copy of the last step: that one is made again.
            lost = max(0, recovery.step_before - step)
            figures = {"seconds": recovery.seconds()["total"], "steps_lost": lost, "step": step}
        log.warning("change to %s %s: %s", shape, state, detail)
        if request is not None:
            self._requests.answer(request, state, detail, **figures)

    def _told(self, change: ShapeChange, recovery: RecoveryRecord) -> str:
        return (
            f"{change.shape} after step {self._job.begun_at}: training stood still for "
            f"{recovery.seconds()['total']:.3f} s, {change.saving_s:.3f} s of them for the save"
        )
