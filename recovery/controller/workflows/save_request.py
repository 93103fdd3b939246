"""A step goes to the checkpoint directory on request.

With three snapshot slots a rank the agents write one of the next steps while training continues. With two the slot
would be overwritten meanwhile: then all ranks stop after a step until it is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.failure import EndedGeneration, GenerationFailure, WorkflowName
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.job_requests import JobRequests, RequestRejectedError
from mainstay.recovery.controller.monitors.durability_monitor import DurabilityMonitor
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.job_request import JobRequest, RequestKind, RequestState

SAVE_SECONDS: Final = 600.0
AHEAD: Final = 2
AHEAD_SECONDS: Final = 1.0
"""So many steps, or as many as that takes, until the one that is written: agents must hear of it before its slot is
overwritten."""
SLOTS: Final = 3
"""A rank that has so many keeps a pinned step and the newest two."""


@dataclass(eq=False)
class SaveRequests:
    """One a coordinator."""

    _job: Job
    _checkpoints: CheckpointManager
    _inputs: PlannerInputBuilder
    _durability: DurabilityMonitor
    _requests: JobRequests
    _current: JobRequest | None = None
    """Under way with all ranks stopped."""
    _writing: int | None = None
    """The step that is written beside training."""

    def obstacle(self, _: RequestKind) -> str:
        """Why nothing can be saved; empty: it can."""
        return "" if self._checkpoints.enabled else "there is no --checkpoint-dir"

    def start(self, request: JobRequest) -> None:
        """Begin to save.

        Raises:
            RequestRejectedError: nothing can be saved now; one line.
        """
        job = self._job
        slots = min((rank.attached.slots if rank.attached else 0 for rank in job.members.present), default=0)
        if self._writing is not None:
            raise RequestRejectedError(f"step {self._writing} is being written on another request")
        ahead = max(AHEAD, math.ceil(AHEAD_SECONDS / self._inputs.step_seconds) if self._inputs.step_seconds else AHEAD)
        step, last = job.state.committed + ahead, job.state.steps_total
        if last is not None and step > last:
            raise RequestRejectedError("the job ends with one of the next steps, and saves it then")
        if slots >= SLOTS:
            job.spawn(self._save_beside(request, step))
        elif job.busy:
            raise RequestRejectedError(f"ranks have {slots} snapshot slots and must stop for it, and some are away now")
        else:
            job.spawn(self._stop_and_save(request))

    async def _save_beside(self, request: JobRequest, step: int) -> None:
        job, self._writing = self._job, step
        self._checkpoints.once = step
        self._checkpoints.configure()
        self._requests.answer(request, RequestState.ACCEPTED, f"step {step} is written", step=step)

        def saved() -> bool:
            kept = self._durability.kept
            return kept is not None and step in kept.on_disk

        try:
            await job.until(lambda: saved() or job.state.over, SAVE_SECONDS)
            if saved():  # all parts are there: have whoever wrote the last one finish the manifest too
                await self._checkpoints.write(job.members.alive(), step, SAVE_SECONDS)
        finally:
            self._writing = None
        if saved():
            self._saved(request, step)
        else:
            detail = "the job has ended" if job.state.over else f"step {step} is not whole after {SAVE_SECONDS:g} s"
            self._requests.answer(request, RequestState.FAILED, detail)

    def _saved(self, request: JobRequest, step: int, seconds: float = 0.0) -> None:
        detail = f"step {step} is on disk: continue from it with --resume {self._job.state.run}"
        self._requests.answer(request, RequestState.COMPLETED, detail, seconds=seconds, step=step)

    # With all ranks stopped

    async def _stop_and_save(self, request: JobRequest) -> None:
        job = self._job
        self._requests.answer(request, RequestState.ACCEPTED, "all ranks stop after this step until it is written")
        problem = await job.next_step()
        if problem or self._current is not None:
            self._requests.answer(request, RequestState.FAILED, problem or "another save is under way")
            return
        self._current = request
        reason = f"save: {request.reason or 'no reason'}"
        job.control.replay(GenerationFailure(reason=reason, counts=False, workflow=WorkflowName.SAVE))

    async def carry_out(self, executor: RecoveryExecutor, recovery: RecoveryRecord, ended: EndedGeneration) -> None:
        """All ranks are fenced by ``executor``: write the newest step, then continue with it."""
        request, self._current = self._current, None
        assert request is not None
        problem, step = "something failed meanwhile, which came first", 0
        try:
            if ended.victims:  # lost in the very moment: a recovery like any other
                await executor.recover_job(recovery, ended.victims, ended.waiting)
            elif await executor.fencing.wait_for_survivors(recovery, ended.waiting):
                step, problem = await self._checkpoints.write_newest(SAVE_SECONDS)
                await executor.recover_job(recovery, set(), ended.waiting)
        finally:  # cancelled too, by a failure meanwhile
            if not problem:
                self._saved(request, step, recovery.seconds()["total"])
            else:
                self._requests.answer(request, RequestState.FAILED, problem)
