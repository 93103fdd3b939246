"""One recovery, from the failure to the verified step. What fails meanwhile makes it begin again, a generation up.

fence     the lost processes are reaped, the generation is revoked at every agent, survivors leave their collectives
decide    the planner chooses; replacements are starting already
regroup   every rank forms the new generation, gets its state of the plan's epoch, and votes
continue  the first step commits: recovered
verify    three steps commit and data-parallel replicas hold equal parameters: verified
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainstay.probes.core_types import EventKind
from mainstay.probes.ids import uuid7
from mainstay.recovery import planner
from mainstay.recovery.launcher import restore_verification
from mainstay.recovery.launcher.membership import CoordinatorJobState, GenerationFailure, RankMember
from mainstay.recovery.launcher.messages import DiscardCommand, FenceNode
from mainstay.recovery.launcher.participation import ParticipationPolicy
from mainstay.recovery.launcher.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.launcher.recovery_record import RecoveryRecord
from mainstay.recovery.launcher.strategy_controller import StrategyController, decision_event_data
from mainstay.recovery.launcher.worker_messages import Regroup
from mainstay.recovery.recovery_plan import (
    Alternative,
    RecoveryPlan,
    RecoveryStrategyName,
    RestoreSource,
    summarize_plan,
)

if TYPE_CHECKING:
    from mainstay.recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")

VERIFY_STEPS: Final = 3
FENCE_SECONDS: Final = 30.0
"""An agent that does not answer a fence by then is taken to hold nothing."""
_RESTORE_FACTOR: Final = 5.0
"""Time-outs to wait for a restore: it may read from disk, and a cold process imports first."""


class RecoveryExecutor:
    """The coordinator's hands. ``begin`` may be called at any time; only the newest attempt lives."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self._task: asyncio.Task[None] | None = None
        self._recovery: RecoveryRecord | None = None
        self.survey = PlannerInputBuilder(coordinator)
        self.participation = ParticipationPolicy(coordinator)
        self.judge = StrategyController(coordinator)
        self.formed_once = False

    @property
    def active(self) -> bool:
        """Whether a recovery is under way (its verification does not count)."""
        return self._recovery is not None

    @property
    def busy(self) -> bool:
        """Whether a recovery is under way, or its verification."""
        return self._task is not None and not self._task.done()

    @property
    def last_good_epoch(self) -> int | None:
        """The newest epoch that is sound, where newer ones may hold wrong numbers; None: all are."""
        return None if self._recovery is None else self._recovery.before

    def prepare(self) -> None:
        """The membership has formed: decide single losses in advance."""
        self.formed_once = True
        if self._c.members.shape is not None:
            self.judge.prepare()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def begin_recovery(self, failure: GenerationFailure) -> None:
        """Fence at once; the rest follows in a task."""
        self.cancel()
        now = time.time()
        if self._recovery is None:
            self._recovery = RecoveryRecord(uuid7(), failure.time, self._c.committed, now, self._report)
        self._recovery.acted_at = min(now, self._recovery.acted_at)
        self._recovery.marks.clear()
        victims = self._victims(failure)
        staying, glance = self.participation.refresh(victims, failure), self.judge.assess_quickly(victims, failure)
        self._recovery.quiet = failure.quiet
        self._recovery.begins("fence", f"generation {self._c.generation}: {failure.reason}")
        others = self._c.disk.reshaping.reinstating.instead(self, self._recovery, victims, failure)
        if others is not None:
            self._recovery.verdict = self.judge.decide(glance, RecoveryStrategyName.REINSTANTIATE)
            self._task = self._c.spawn(others)
            return
        if not self.replace(victims, failure.exclude):
            return
        # Only now, while the fence is on its way: no decision may hold it up.
        self._recovery.verdict = verdict = self.judge.decide(glance)
        if verdict is not None and verdict.first is RecoveryStrategyName.REINSTANTIATE:
            others = self._c.disk.reshaping.reinstating.preferred(self, self._recovery, victims, failure)
            if others is not None:
                verdict.strategy = RecoveryStrategyName.REINSTANTIATE
                self._task = self._c.spawn(others)
                return
        self.participation.choose(staying, failure, None if verdict is None else verdict.first)
        waiting = {r.number for r in self._c.members.ranks if r.live} - victims
        if failure.before is not None:
            self._recovery.before, self._recovery.odd = failure.before, failure.odd
        if failure.replay is not None:
            self._recovery.before, self._recovery.odd = failure.replay.before, failure.replay.odd
            self._task = self._c.spawn(self._c.replays.carry_out(self, self._recovery, failure.replay))
            return
        if failure.migrates:
            self._task = self._c.spawn(self._c.migrations.carry_out(self, self._recovery, victims, waiting))
            return
        if failure.reshapes:
            self._task = self._c.spawn(self._c.disk.reshaping.carry_out(self, self._recovery, victims, waiting))
            return
        self._task = self._c.spawn(self.recover_job(self._recovery, victims, waiting))

    # Fence

    def _victims(self, failure: GenerationFailure) -> set[int]:
        """Ranks that need a new process. All of them when some have already left the training loop for good."""
        ranks = self._c.members.ranks
        whole = self._c.members.shape is None or any(r.gone for r in ranks)
        return {r.number for r in ranks if whole or r.lost or r.number in failure.ranks}

    def fence_all(self) -> None:
        """Revoke the old generation; every process stays."""
        self.replace(set())

    def replace(
        self, victims: set[int], exclude: frozenset[int] = frozenset(), *, moves: Mapping[int, str] | None = None
    ) -> bool:
        """Revoke the old generation everywhere, and start new processes for ``victims`` right behind it.

        ``moves`` says where those run that nothing forces to move.
        """
        c, members = self._c, self._c.members  # no await below: the old generation ends and the new begins in one turn
        victims = {number for number in victims if not members.ranks[number].unplaced}
        homes = moves or self.survey.homes(victims, exclude)
        if isinstance(homes, str):
            problem = f"{homes} (ranks {sorted(victims)} have nowhere to run)"
            self._task = self.participation.wait_for_place(self._recovery, victims, problem)
            return False
        self.survey.log_last_resort(homes)
        doomed = {
            node.name: tuple(r.number for r in members.on(node.name) if r.number in victims) for node in members.alive()
        }
        excluded = {
            node.name: tuple(r.number for r in members.on(node.name) if r.number in exclude) for node in members.alive()
        }
        for number in victims:
            members.ranks[number].restart(homes[number])
        if members.shape is None:
            c.store = c.new_store()  # the script itself meets through the store, and would find the dead in it
        c.orders.replicate_state()
        for node in members.alive():
            node.inventory, node.warm = None, node.standbys
            node.excluded += len(excluded[node.name])
            node.send(FenceNode(generation=c.generation, kill=doomed[node.name], exclude=excluded[node.name]))
        for rank in members.ranks:
            rank.ready = rank.resumed = None
            rank.digests.clear()
            rank.buffers.clear()
            if rank.number in victims:
                c.orders.start(rank)
        return True

    async def recover_job(self, recovery: RecoveryRecord, victims: set[int], waiting: set[int]) -> None:
        if self._c.members.shape is None:
            await self._start_over(recovery)
            return
        if not await self.fenced(recovery, waiting):
            return
        if self.formed_once:
            alternative = self._decide(recovery, victims)
            if alternative is None:
                return
            orders = self._orders(alternative)
            epoch = alternative.epoch or 0
        else:
            await self.until(self._all_waiting, None)
            orders, epoch = {}, self._c.disk.begun_at
        if not await self._c.lease.check(self._c.generation):
            return
        self.discard(epoch)
        if not await self._regroup(recovery, orders):
            return
        await self._go_on(recovery, epoch)
        await self._verify(recovery, epoch)
        await self.participation.come_back()

    async def fenced(self, recovery: RecoveryRecord, waiting: set[int]) -> bool:
        """Wait for agents and survivors. A survivor that stays in its collective is itself a failure."""
        c = self._c
        survivors = [c.members.ranks[r] for r in waiting]
        await self.until(lambda: all(n.fenced >= c.generation for n in c.members.alive()), FENCE_SECONDS)
        await self.until(lambda: all(r.ready or r.gone for r in survivors), c.options.ready_seconds)
        late = {r.number for r in survivors if not r.ready}
        if late:
            over = {r.number for r in survivors if r.gone}
            why = f"ranks {sorted(over)} had left the training loop already"
            why = why if over else f"ranks {sorted(late)} stayed in their collective for {c.options.ready_seconds:g} s"
            recovery.ends("fence", ok=False, detail=why)
            return not self._once_more(GenerationFailure(ranks=late, time=time.time(), reason=why))
        recovery.mark("fence")
        recovery.ends("fence", ok=True, detail=f"{len(waiting)} ranks stay alive")
        return True

    # For a replay

    async def all_ready(self, recovery: RecoveryRecord) -> bool:
        """Wait until agents and all ranks have left the old generation."""
        c = self._c
        await self.until(lambda: all(n.fenced >= c.generation for n in c.members.alive()), FENCE_SECONDS)
        ready = await self.until(lambda: all(r.ready for r in c.members.ranks), c.options.ready_seconds)
        recovery.mark("fence")
        return ready

    # Decide

    def plan(self, recovery: RecoveryRecord, victims: set[int], *, use_live: bool = True) -> RecoveryPlan:
        """The planner's choice among what is sound; where that brings nothing back, among all that there is."""
        survey = self.survey
        plan = planner.plan_recovery(survey.situation(victims, recovery.bad, recovery.before, use_live=use_live))
        if plan.chosen is None and recovery.is_uncounted():
            log.warning("nothing else is left: sources that failed before are tried again")
            return self.plan(recovery, victims, use_live=use_live)
        if plan.chosen is not None or recovery.before is None:
            return plan
        log.warning("no snapshot is as old as step %d: newer ones may hold wrong numbers", recovery.before)
        unlike = survey.minority_ranks(recovery.odd)
        anything = planner.plan_recovery(
            survey.situation(victims | unlike, recovery.bad, use_live=use_live, unlike=unlike)
        )
        if anything.chosen is not None:
            recovery.before, recovery.odd = None, frozenset()
        return anything

    def _decide(self, recovery: RecoveryRecord, victims: set[int]) -> Alternative | None:
        c = self._c
        plan = self.plan(recovery, victims)
        recovery.mark("decide")
        weighed = {} if recovery.verdict is None else {"decision": decision_event_data(recovery.verdict)}
        recovery.emit(EventKind.RECOVERY_PLANNED, {"plan": msgspec.to_builtins(summarize_plan(plan)), **weighed})
        self.judge.select_executed(recovery.verdict, plan)
        if plan.chosen is None:
            c.reporter.event(
                EventKind.RECOVERY_FAILED,
                generation=c.generation,
                data={"recovery": recovery.id, "reason": plan.explanation},
            )
            c.fail(plan.explanation)
            return None
        log.warning("plan: %s", plan.explanation)
        return plan.alternative()

    def _orders(self, alternative: Alternative) -> dict[int, Regroup]:
        c = self._c
        (host, port), assignment = c.store, self.participation.assignment()
        return {
            restore.rank: Regroup(
                generation=c.generation,
                store_host=host,
                store_port=port,
                restore=self.survey.order(restore, alternative.epoch or 0),
                digest_steps=VERIFY_STEPS,
                assignment=assignment,
            )
            for restore in alternative.restores
        }

    def discard(self, epoch: int) -> None:
        """Snapshots and parity of steps that will be repeated must not be taken for the repeated ones."""
        self._c.sick.went_back(epoch)
        self._c.replays.went_back(epoch)
        self._c.orders.guard.corrupt_steps.went_back(epoch)
        self.survey.history.record_rollback(epoch, self._c.generation)
        self._c.orders.replicate_state()
        if epoch < self._c.committed:
            for node in self._c.members.alive():
                node.send(DiscardCommand(epoch=epoch))

    # Regroup

    def _all_waiting(self) -> bool:
        generation = self._c.generation
        return all(r.joined == generation or r.ready is not None for r in self._c.members.present)

    async def _regroup(self, recovery: RecoveryRecord, orders: dict[int, Regroup]) -> bool:
        c = self._c  # One sequence on purpose: each branch is one way in which this generation can end.
        restoring = {
            n: o.restore for n, o in orders.items() if o.restore and o.restore.source is not RestoreSource.LIVE
        }
        for number, restore in restoring.items():
            recovery.begins(f"restore rank {number}", f"epoch {restore.epoch} from {restore.source}")
        c.orders.regroup(orders)
        self.participation.log_absent_ranks()
        ranks = c.members.present
        await self.until(lambda: all(r.resumed for r in ranks), c.options.ready_seconds * _RESTORE_FACTOR)
        for number, restore in restoring.items():
            recovery.ends_restore(number, restore, c.members.ranks[number].resumed)
        recovery.mark("regroup")
        missing = {r.number for r in ranks if r.resumed is None}
        broken = {r.number for r in ranks if r.resumed is not None and not r.resumed.ok}
        if missing or broken:
            whys = [r.resumed.reason for r in ranks if r.resumed is not None and not r.resumed.ok]
            why = f"ranks {sorted(missing | broken)} could not be restored: {'; '.join(whys) or 'no answer'}"
            # A rank that answered keeps its process and tries again from another source; a silent one is replaced.
            return not self._once_more(GenerationFailure(ranks=missing, time=time.time(), reason=why))
        if self._once_more(
            restore_verification.find_restore_mismatch(
                c, recovery, {n: o.restore for n, o in orders.items() if o.restore}
            )
        ):
            return False
        if not recovery.reinstates:  # its phases are others
            self.survey.prices.learn(
                ranks, dict(recovery.marks), recovery.fenced_from, c.generation, cold=recovery.cold
            )
        c.formed()
        return True

    def _once_more(self, failure: GenerationFailure | None) -> bool:
        """Begin again if there is a ``failure``. Not from within this task: beginning again cancels it."""
        if failure is not None:
            asyncio.get_running_loop().call_soon(self._c.failed, failure)
        return failure is not None

    # Continue

    async def _go_on(self, recovery: RecoveryRecord, epoch: int) -> None:
        c = self._c
        await self.until(lambda: all(self._past(r, epoch + 1) for r in c.members.present), None)
        recovery.mark("first_step")
        seconds = recovery.seconds()
        lost = max(0, recovery.step_before - epoch)
        gone = {"absent_ranks": self.participation.absent, "absent_replicas": self.participation.absent_replicas}
        more: dict[str, Any] = {name: list(numbers) for name, numbers in gone.items() if numbers}
        more |= self.judge.recovered(recovery.verdict, recovery.id, seconds, lost)
        recovery.emit(EventKind.RECOVERY_COMPLETED, {"seconds": seconds, "steps_lost": lost, "epoch": epoch, **more})
        log.warning("recovered in %.3f s: training continues after step %d", seconds["total"], epoch)
        self._recovery = None
        c.orders.warm_standbys()

    async def _verify(self, recovery: RecoveryRecord, epoch: int) -> None:
        c = self._c
        last = epoch + VERIFY_STEPS if c.steps_total is None else min(epoch + VERIFY_STEPS, c.steps_total)
        await self.until(lambda: all(self._past(r, last) for r in c.members.present), None)
        match = self.survey.replicas_equal()
        self.judge.prepare()
        recovery.emit(EventKind.RECOVERY_VERIFIED, {"steps_committed": last - epoch, "digest_match": match})
        if match is False:
            self._once_more(restore_verification.find_divergence(c, epoch, last))

    def _past(self, rank: RankMember, epoch: int) -> bool:
        current = rank.epoch_generation == self._c.generation and rank.epoch >= epoch
        return current or rank.gone

    async def _start_over(self, recovery: RecoveryRecord) -> None:
        """A script that does not use the SDK: all its ranks were started again, as torchrun does."""
        await self.until(lambda: all(r.pid is not None for r in self._c.members.ranks), None)
        recovery.mark("restart")
        recovery.ends("fence", ok=True, detail="all ranks were started again: the script does not use the SDK")
        data = {"recovery": recovery.id, "seconds": recovery.seconds(), "steps_lost": None, "epoch": None}
        self._c.reporter.event(EventKind.RECOVERY_COMPLETED, generation=self._c.generation, data=data)
        self._recovery = None
        self._c.move(CoordinatorJobState.RUNNING)
        self._c.orders.warm_standbys()

    # Helpers

    async def until(self, happened: Callable[[], bool], seconds: float | None) -> bool:
        """Wait for something that messages bring about; whether it did within ``seconds``.

        Not by ``asyncio.wait_for``: before Python 3.12 it loses a cancellation that comes in the moment in which the
        thing happens, and a recovery that another failure has ended would continue deciding, with nothing known.
        """
        try:
            async with asyncio.timeout(seconds), self._c.changed:
                await self._c.changed.wait_for(happened)
        except TimeoutError:
            return False
        return True

    def _report(self, kind: EventKind, data: dict[str, Any]) -> None:
        self._c.reporter.event(kind, generation=self._c.generation, data=data)
