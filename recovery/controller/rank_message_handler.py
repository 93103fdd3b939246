"""What ranks say, and what follows from it. Words of a process that was replaced are not heard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import log
from mainstay.recovery.controller.monitors.flight_recorder import FlightRecorderCollector
from mainstay.recovery.controller.monitors.numeric_monitor import NumericMonitor
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.retry_policy import RetryPolicy
from mainstay.recovery.controller.state.events import RankMessage, RankMessageReceived
from mainstay.recovery.controller.workflows.registry import Workflows
from mainstay.recovery.membership.members import AllRanks, RankMember
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.protocol import worker_messages
from mainstay.recovery.protocol.messages import FromRank

TROUBLE_SECONDS: Final = 1.0
"""A collective failed but no rank died: after this the fault is the connection's, and all meet again."""


class RankMessageHandler:
    """One handler for each kind of message."""

    def __init__(
        self,
        executor: RecoveryExecutor,
        numerics: NumericMonitor,
        workflows: Workflows,
        recorder: FlightRecorderCollector,
    ) -> None:
        self._job = executor.job
        self._executor = executor
        self._numerics = numerics
        self._replays = workflows.replays
        self._retries = RetryPolicy()
        self._all_joined, self._all_resumed = AllRanks(), AllRanks()
        self._silent: set[int] = set()
        """Ranks that had not come to the last generation whose collectives failed."""
        self._handlers: dict[type, Callable[[RankMember, Any], None]] = {
            worker_messages.Joined: self._joined,
            worker_messages.Ready: self._ready,
            worker_messages.Resumed: self._resumed,
            worker_messages.StepRecord: self._step,
            worker_messages.Transfers: lambda rank, message: self._job.reporter.transfers(rank.number, message),
            worker_messages.CollectiveFailed: self._trouble,
            worker_messages.StepFailed: self._raised,
            worker_messages.Attached: self._attached,
            worker_messages.StepsTotal: self._apply,
            worker_messages.Replayed: lambda rank, message: self._replays.handle_replayed(rank.number, message),
            worker_messages.RankDone: self._apply,
            worker_messages.ScriptFailed: self._apply,
            worker_messages.FlightRecorderDump: lambda rank, answer: recorder.add_answer(rank.number, answer),
            worker_messages.SpeedMeasured: lambda rank, answer: workflows.speeds.add_answer(rank.number, answer),
        }

    def handle(self, wrapped: FromRank) -> None:
        """Hear one message."""
        rank = self._job.members.held_by(wrapped.rank, wrapped.pid)
        handler = self._handlers.get(type(wrapped.message))
        if rank is not None and handler is not None:
            handler(rank, wrapped.message)

    def _apply(self, rank: RankMember, message: RankMessage) -> None:
        self._job.apply(RankMessageReceived(rank=rank.number, message=message, at=time.time()))

    @property
    def _forming(self) -> bool:
        """No rank has trained yet, and no recovery is under way that would see to it.

        Not the same as the job's state: until the first rank speaks, a script might be one without the SDK.
        """
        job = self._job
        return not (job.active or job.state.formed_once or job.state.inheriting or job.state.over)

    def _joined(self, rank: RankMember, message: worker_messages.Joined) -> None:
        job = self._job
        shape = MeshShape(dp=message.dp, pp=message.pp, tp=message.tp, depths=message.depths)
        if job.members.shape not in {None, shape}:
            job.control.fail(f"rank {rank.number} asked for {shape}, others for {job.members.shape}")
            return
        if misfit := self._executor.checkpoints.incompatibility(shape):
            job.control.fail(misfit)
            return
        self._apply(rank, message)
        # Replacements get their order from recovery; at the first start the last one to come starts it.
        current = job.state.generation
        if self._forming and self._all_joined.have(job.members.ranks, lambda r: r.joined == current):
            self._executor.regroup({})

    def _ready(self, rank: RankMember, message: worker_messages.Ready) -> None:
        if message.generation == self._job.state.generation:
            self._apply(rank, message)

    def _resumed(self, rank: RankMember, message: worker_messages.Resumed) -> None:
        job = self._job
        if message.generation != job.state.generation:
            return
        self._apply(rank, message)
        if not message.ok and self._forming:
            why = f"rank {rank.number} cannot continue from step {message.epoch}: {message.reason}"
            if not (message.damaged and self._executor.note_damage(why)):
                job.control.fail(f"{why}{self._executor.checkpoints.by_hand}")
                return
        if self._forming and self._all_resumed.have(job.members.ranks, lambda r: r.resumed is not None):
            if all(r.resumed is not None and r.resumed.ok for r in job.members.ranks):
                self._executor.formed()
            else:
                job.control.replay(GenerationFailure(reason="the step to begin with is damaged", counts=False))

    def _step(self, rank: RankMember, message: worker_messages.StepRecord) -> None:
        job = self._job
        self._apply(rank, message)
        if message.generation == job.state.generation:
            self._executor.durability.corrupt_steps.committed(message.epoch)
            self._executor.inputs.step_took(rank.number, message)
            self._executor.strategies.committed(rank.number, message)
            if message.digest is not None:
                job.history.note(rank.number, message.epoch, message.digest)
                self._executor.inputs.compare_replicas(message.epoch)
            self._numerics.step(rank.number, message)
            self._executor.participation.committed(rank, message)
            if not rank.number:
                self._replays.committed(message.epoch)
        job.reporter.step(rank.number, message)

    def _trouble(self, rank: RankMember, message: worker_messages.CollectiveFailed) -> None:
        if message.generation == self._job.state.generation:
            self._apply(rank, message)
            self._job.spawn(self._explain(rank, message))

    async def _explain(self, rank: RankMember, message: worker_messages.CollectiveFailed) -> None:
        """Wait for the death that explains a broken collective; without one the connection itself was at fault."""
        await asyncio.sleep(TROUBLE_SECONDS)
        job = self._job
        if job.state.generation == message.generation and not job.state.over:
            reason = f"a collective failed on rank {rank.number} though every rank is alive: {message.reason}"
            ranks = self._retries.replaced_for(rank.number, job.state.committed, raised=False) | self._still_silent()
            began = time.time() - TROUBLE_SECONDS
            job.control.failed(GenerationFailure(ranks=ranks, time=began, reason=reason, erred=rank.number))

    def _still_silent(self) -> set[int]:
        """Ranks that did not come to this generation, nor to the one before, while others gave up waiting for them.

        A new process that hangs before it is restored fails no collective and has no state that a fence waits for.
        """
        before = self._silent
        self._silent = {r.number for r in self._job.members.present if r.resumed is None and not r.troubled}
        return before & self._silent

    def _raised(self, rank: RankMember, message: worker_messages.StepFailed) -> None:
        """No rank is lost, and the reason is known: there is nothing to wait for."""
        job = self._job
        if message.generation == job.state.generation and not job.state.over:
            ranks = self._retries.replaced_for(rank.number, job.state.committed, raised=True)
            then = "it gets a new process" if ranks else "all make the step again"
            reason = f"rank {rank.number} raised {message.error}; {then}"
            job.control.failed(GenerationFailure(ranks=ranks, reason=reason, own=True, erred=rank.number))

    def _attached(self, rank: RankMember, message: worker_messages.Attached) -> None:
        self._apply(rank, message)
        if not message.protected:
            log.warning("DEGRADED rank %d is not protected: %s", rank.number, message.reason)
