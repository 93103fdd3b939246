"""One recovery, from the failure to the verified step. What fails meanwhile makes it begin again, a generation up.

fence     the lost processes are reaped, the generation is revoked at every agent, survivors leave their collectives
decide    the planner chooses; replacements are starting already
regroup   every rank forms the new generation, gets its state of the plan's epoch, and votes
continue  the first step commits: recovered
verify    three steps commit and data-parallel replicas hold equal parameters: verified
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from mainstay.probes.core_types import EventKind
from mainstay.probes.ids import uuid7
from mainstay.recovery import planner
from mainstay.recovery.checkpoint.catalog import ResumeSource
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.coordinator_lease import CoordinatorLease
from mainstay.recovery.controller.failure import EndedGeneration, GenerationFailure, ReplayTrigger, WorkflowName
from mainstay.recovery.controller.fencing import Fencing
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.monitors.durability_monitor import DurabilityMonitor
from mainstay.recovery.controller.participation import ParticipationPolicy
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.planning.strategy_controller import StrategyController, decision_event_data
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.controller.restore_verification import find_restore_mismatch
from mainstay.recovery.controller.state.events import TrainingFormed
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.membership.members import RankMember
from mainstay.recovery.options import NumericAnomalyPolicy
from mainstay.recovery.protocol.messages import DiscardCommand, RegroupRank, TrainingResumed
from mainstay.recovery.protocol.worker_messages import Regroup
from mainstay.recovery.recovery_plan import (
    Alternative,
    RecoveryPlan,
    RecoveryStrategyName,
    RestoreSource,
    summarize_plan,
)

VERIFY_STEPS: Final = 3
_RESTORE_FACTOR: Final = 5.0
"""Time-outs to wait for a restore: it may read from disk, and a cold process imports first."""


class Workflow(Protocol):
    """A recovery of another kind than to restore what is lost."""

    async def carry_out(self, executor: RecoveryExecutor, recovery: RecoveryRecord, ended: EndedGeneration) -> None:
        """All ranks are fenced by ``executor``; what follows ends with ranks that train, or with another failure."""


class PipelineChange(Protocol):
    """Forms other pipelines of the ranks that are left; see ``reinstantiation``."""

    def instead(
        self, executor: RecoveryExecutor, recovery: RecoveryRecord, victims: set[int], failure: GenerationFailure
    ) -> Coroutine[Any, Any, None] | None:
        """What is to follow where ``victims`` have no place to run, all others fenced; None: nothing for it."""

    def preferred(
        self, executor: RecoveryExecutor, recovery: RecoveryRecord, victims: set[int], failure: GenerationFailure
    ) -> Coroutine[Any, Any, None] | None:
        """The same where it costs least, behind the fence; None: some have a place, or it cannot be."""


@dataclass(eq=False)
class RecoveryExecutor:
    """Carries recoveries out. ``begin_recovery`` may be called at any time; only the newest attempt lives.

    The coordinator registers what an executor need not know: ``workflows``, ``pipelines``, ``on_rollback``, and
    ``request_replay``.
    """

    job: Job
    checkpoints: CheckpointManager
    inputs: PlannerInputBuilder
    participation: ParticipationPolicy
    durability: DurabilityMonitor
    strategies: StrategyController
    lease: CoordinatorLease
    workflows: dict[WorkflowName, Workflow] = field(default_factory=dict)
    pipelines: PipelineChange | None = None
    request_replay: Callable[[ReplayTrigger], bool] = lambda _: False
    """Asks for a replay that finds a rank which computes wrongly; whether one begins."""

    def __post_init__(self) -> None:
        self.fencing = Fencing(self.job, self.inputs)
        self.on_rollback: list[Callable[[int], None]] = [self.durability.corrupt_steps.went_back]
        """Called with the epoch that the job goes back to."""
        self._damaged: list[tuple[ResumeSource, str]] = []
        """Steps to begin with, and why a rank could not load each."""

    def formed(self) -> None:
        """Every rank has voted for its epoch: training runs, and what protects it is set up for this membership."""
        self.job.move(JobPhase.RUNNING)
        self.durability.protect()
        self.checkpoints.configure()
        self.job.apply(TrainingFormed())
        if self.job.members.shape is not None:
            self.strategies.prepare()  # decide single losses in advance
        self.job.replicate_state()

    def cancel(self) -> None:
        if self.job.attempt is not None:
            self.job.attempt.cancel()

    def begin_recovery(self, failure: GenerationFailure) -> None:
        """Fence at once; the rest follows in a task."""
        self.cancel()
        job, now = self.job, time.time()
        if job.recovery is None:
            job.recovery = RecoveryRecord(uuid7(), failure.time, job.state.committed, now, job.event)
        recovery = job.recovery
        recovery.acted_at = min(now, recovery.acted_at)
        recovery.marks.clear()
        victims = self.fencing.victims(failure)
        remaining = self.participation.refresh(victims, failure)
        costs = self.strategies.assess_quickly(victims, failure)
        recovery.quiet, recovery.requested = failure.quiet, failure.requested
        recovery.begins("fence", f"generation {job.state.generation}: {failure.reason}")
        others = self.pipelines.instead(self, recovery, victims, failure) if self.pipelines else None
        if others is not None:
            recovery.verdict = self.strategies.decide(costs, RecoveryStrategyName.REINSTANTIATE)
            job.attempt = job.spawn(others)
            return
        if not self.fencing.replace(victims, failure.exclude):
            return
        # Only now, while the fence is on its way: no decision may hold it up.
        recovery.verdict = verdict = self.strategies.decide(costs)
        if self.pipelines and verdict is not None and verdict.first is RecoveryStrategyName.REINSTANTIATE:
            others = self.pipelines.preferred(self, recovery, victims, failure)
            if others is not None:
                verdict.strategy = RecoveryStrategyName.REINSTANTIATE
                job.attempt = job.spawn(others)
                return
        self.participation.choose(remaining, failure, None if verdict is None else verdict.first)
        if self.fencing.wait_for_unplaced():
            return
        waiting = {r.number for r in job.members.ranks if r.live} - victims
        limits = failure if failure.replay is None else failure.replay
        if failure.before is not None or failure.replay is not None:
            recovery.before, recovery.odd = limits.before, limits.odd
        if failure.workflow is None:
            work = self.recover_job(recovery, victims, waiting)
        else:
            ended = EndedGeneration(failure, victims, waiting)
            work = self.workflows[failure.workflow].carry_out(self, recovery, ended)
        job.attempt = job.spawn(work)

    # The usual recovery

    async def recover_job(self, recovery: RecoveryRecord, victims: set[int], waiting: set[int]) -> None:
        if self.job.members.shape is None:
            await self._start_over(recovery)
            return
        if not await self.fencing.wait_for_survivors(recovery, waiting):
            return
        if self._may_have_trained():
            alternative = self._decide(recovery, victims)
            if alternative is None:
                return
            orders = self._orders(alternative)
            epoch = alternative.epoch or 0
        else:
            if not (await self.fencing.wait_for_joined(recovery) and await self._pass_over()):
                return
            orders, epoch = {}, self.job.begun_at
        if not await self.lease.check(self.job.state.generation):
            return
        self.discard(epoch)
        if not await self._regroup(recovery, orders):
            return
        await self._go_on(recovery, epoch)
        await self._verify(recovery, epoch)
        await self.participation.come_back()

    def _may_have_trained(self) -> bool:
        """Whether ranks have changed their tensors: they form before this coordinator has heard of all.

        A rank that begins again from nothing beside one that has made a step would train on other parameters.
        """
        job = self.job
        told = [rank.ready for rank in job.members.present if rank.ready is not None]
        begun_at = max([job.begun_at, *(step.manifest.epoch for step, _ in self._damaged)])
        return job.state.formed_once or any(
            ready.newest_epoch > begun_at or (ready.live_epoch is None and job.source is None) for ready in told
        )

    def note_damage(self, why: str) -> bool:
        """A rank cannot load the step to begin with: a file is damaged. Whether an older step may be taken."""
        source = self.job.source
        if source is None or source is not self.checkpoints.named:
            return False
        self._damaged.append((source, why))
        return True

    async def _pass_over(self) -> bool:
        """Begin with an older step if the present one is damaged; False: there is none, and the job ends.

        Nothing changes before one is found: a failure meanwhile cancels this, and the next attempt looks again.
        """
        job, (source, why) = self.job, self._damaged[-1] if self._damaged else (None, "")
        if source is None or source is not job.source:
            return True
        log.warning("step %d is passed over: %s", source.manifest.epoch, why)
        assert job.members.shape is not None
        try:
            before = (source.manifest.run, source.manifest.epoch)
            self.checkpoints.begin_with(await asyncio.to_thread(self.checkpoints.find, before))
            problem = self.checkpoints.incompatibility(job.members.shape)
        except (CheckpointError, OSError) as error:
            problem = str(error)
        if problem:
            job.control.fail(f"{self._damaged[0][1]}; {problem}")
        return not problem

    # Decide

    def plan(self, recovery: RecoveryRecord, victims: set[int], *, use_live: bool = True) -> RecoveryPlan:
        """The planner's choice among what is sound; where that brings nothing back, among all that there is."""
        inputs = self.inputs
        plan = planner.plan_recovery(inputs.situation(victims, recovery.bad, recovery.before, use_live=use_live))
        if plan.chosen is None and recovery.is_uncounted():
            log.warning("nothing else is left: sources that failed before are tried again")
            return self.plan(recovery, victims, use_live=use_live)
        if plan.chosen is not None or recovery.before is None:
            return plan
        log.warning("no snapshot is as old as step %d: newer ones may hold wrong numbers", recovery.before)
        unlike = inputs.minority_ranks(recovery.odd)
        situation = inputs.situation(victims | unlike, recovery.bad, use_live=use_live, unlike=unlike)
        anything = planner.plan_recovery(situation)
        if anything.chosen is not None:
            recovery.before, recovery.odd = None, frozenset()
        return anything

    def _decide(self, recovery: RecoveryRecord, victims: set[int]) -> Alternative | None:
        job = self.job
        plan = self.plan(recovery, victims)
        recovery.mark("decide")
        weighed = {} if recovery.verdict is None else {"decision": decision_event_data(recovery.verdict)}
        # Of the lost ranks the plan names only those that have a place.
        told = msgspec.to_builtins(summarize_plan(plan)) | {"failed_ranks": sorted(victims)}
        recovery.emit(EventKind.RECOVERY_PLANNED, {"plan": told, "requested": recovery.requested, **weighed})
        self.strategies.select_executed(recovery.verdict, plan)
        if plan.chosen is None:
            job.event(EventKind.RECOVERY_FAILED, {"recovery": recovery.id, "reason": plan.explanation})
            job.control.fail(plan.explanation)
            return None
        log.warning("plan: %s", plan.explanation)
        return plan.alternative()

    def _orders(self, alternative: Alternative) -> dict[int, Regroup]:
        order, assignment = self.job.regroup_order, self.participation.assignment()
        return {
            rank: order(restore, digest_steps=VERIFY_STEPS, assignment=assignment)
            for rank, restore in self.inputs.orders(alternative).items()
        }

    def discard(self, epoch: int) -> None:
        """Snapshots and parity of steps that will be repeated must not be taken for the repeated ones."""
        for notify in self.on_rollback:
            notify(epoch)
        self.job.history.record_rollback(epoch, self.job.state.generation)
        self.job.replicate_state()
        if epoch < self.job.state.committed:
            self.job.broadcast(DiscardCommand(epoch=epoch))

    # Regroup

    def regroup(self, orders: dict[int, Regroup]) -> None:
        """Tell every rank to form the present generation; ``orders`` holds what they restore."""
        # One digest at the very first step tells whether replicas are replicas: a job may shard its state among them.
        for rank in self.job.members.present:
            order = orders.get(rank.number)
            order = order or self.job.regroup_order(self.checkpoints.first(rank.number), digest_steps=1)
            self.job.send(self.job.members.nodes[rank.node], RegroupRank(rank=rank.number, order=order))

    async def _regroup(self, recovery: RecoveryRecord, orders: dict[int, Regroup]) -> bool:
        job = self.job  # One sequence on purpose: each branch is one way in which this generation can end.
        restores = {n: order.restore for n, order in orders.items() if order.restore}
        restoring = {n: restore for n, restore in restores.items() if restore.source is not RestoreSource.LIVE}
        for number, restore in restoring.items():
            recovery.begins(f"restore rank {number}", f"epoch {restore.epoch} from {restore.source}")
        self.regroup(orders)
        self.participation.log_absent_ranks()
        ranks = job.members.present
        await self.job.until(lambda: all(r.resumed for r in ranks), job.options.ready_seconds * _RESTORE_FACTOR)
        for number, restore in restoring.items():
            recovery.ends_restore(number, restore, job.members.ranks[number].resumed)
        recovery.mark("regroup")
        missing = {r.number for r in ranks if r.resumed is None}
        broken = {r.number for r in ranks if r.resumed is not None and not r.resumed.ok}
        if missing or broken:
            whys = [r.resumed.reason for r in ranks if r.resumed is not None and not r.resumed.ok]
            why = f"ranks {sorted(missing | broken)} could not be restored: {'; '.join(whys) or 'no answer'}"
            # A rank that answered keeps its process and tries again from another source; a silent one is replaced.
            damaged = any(r.resumed is not None and r.resumed.damaged for r in ranks)
            passes = not orders and damaged and self.note_damage(why)
            return not self._once_more(GenerationFailure(ranks=missing, reason=why, counts=bool(missing) or not passes))
        if self._once_more(find_restore_mismatch(job, recovery, restores)):
            return False
        if recovery.verdict is None or recovery.verdict.strategy is not RecoveryStrategyName.REINSTANTIATE:
            self.job.prices.learn(
                ranks, dict(recovery.marks), recovery.fenced_from, job.state.generation, cold=recovery.cold
            )
        # What was wrong is gone; of steps that this generation makes, none is to be left out by the next recovery.
        recovery.before, recovery.odd = None, frozenset()
        self.formed()
        return True

    def _once_more(self, failure: GenerationFailure | None) -> bool:
        """Begin again if there is a ``failure``. Not from within this task: beginning again cancels it."""
        if failure is not None:
            self.job.failed_soon(failure)
        return failure is not None

    # Continue

    async def _go_on(self, recovery: RecoveryRecord, epoch: int) -> None:
        job = self.job
        await self.job.until(lambda: all(self._past(r, epoch + 1) for r in job.members.present), None)
        recovery.mark("first_step")
        seconds = recovery.seconds()
        lost = max(0, recovery.step_before - epoch)
        gone = {"absent_ranks": self.job.members.absent, "absent_replicas": self.participation.absent_replicas}
        more: dict[str, Any] = {name: list(numbers) for name, numbers in gone.items() if numbers}
        more |= self.strategies.recovered(recovery.verdict, recovery.id, seconds, lost)
        recovery.emit(EventKind.RECOVERY_COMPLETED, {"seconds": seconds, "steps_lost": lost, "epoch": epoch, **more})
        log.warning("recovered in %.3f s: training continues after step %d", seconds["total"], epoch)
        self.job.recovery = None
        self.job.broadcast(TrainingResumed())  # standbys may warm now
        await self.job.notify()  # a request may wait for the end of this recovery

    async def _verify(self, recovery: RecoveryRecord, epoch: int) -> None:
        job = self.job
        last = min(end for end in (epoch + VERIFY_STEPS, job.state.steps_total) if end is not None)
        await self.job.until(lambda: all(self._past(r, last) for r in job.members.present), None)
        match = self.inputs.replicas_equal()
        self.strategies.prepare()
        recovery.emit(EventKind.RECOVERY_VERIFIED, {"steps_committed": last - epoch, "digest_match": match})
        if match is False:
            self._once_more(self._divergence(epoch, last))

    def _divergence(self, epoch: int, last: int) -> GenerationFailure | None:
        """Replicas were alike at ``epoch`` and are not at ``last``: back to where they were; None: a replay does it."""
        why = f"data-parallel replicas hold different parameters at step {last}: the job goes back to step {epoch}"
        replays = self.job.options.on_numeric_anomaly is NumericAnomalyPolicy.REPLAY
        if replays and self.request_replay(ReplayTrigger(reason=why, before=epoch)):
            return None
        return GenerationFailure(reason=why, before=epoch)

    def _past(self, rank: RankMember, epoch: int) -> bool:
        current = rank.epoch_generation == self.job.state.generation and rank.epoch >= epoch
        return current or rank.gone

    async def _start_over(self, recovery: RecoveryRecord) -> None:
        """A script that does not use the SDK: all its ranks were started again, as torchrun does."""
        await self.job.until(lambda: all(r.pid is not None for r in self.job.members.ranks), None)
        recovery.mark("restart")
        recovery.ends("fence", ok=True, detail="all ranks were started again: the script does not use the SDK")
        data = {"recovery": recovery.id, "seconds": recovery.seconds(), "steps_lost": None, "epoch": None}
        self.job.event(EventKind.RECOVERY_COMPLETED, data)
        self.job.recovery = None
        self.job.move(JobPhase.RUNNING)
        self.job.broadcast(TrainingResumed())
