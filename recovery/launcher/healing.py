"""One recovery, from the failure to the verified step. What fails meanwhile makes it begin again, a generation up.

fence     the lost processes are reaped, the generation is revoked at every agent, survivors leave their collectives
decide    the planner chooses; replacements are starting already
regroup   every rank forms the new generation, gets its state of the plan's epoch, and votes
go on     the first step commits: recovered
verify    three steps commit and data-parallel replicas hold equal parameters: verified
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from probes.ids import uuid7
from probes.words import EventKind
from recovery import planner
from recovery.launcher import unison
from recovery.launcher.attendance import Attendance
from recovery.launcher.episode import Episode
from recovery.launcher.judge import Judge, told
from recovery.launcher.membership import Failure, JobState, Rank
from recovery.launcher.messages import DiscardAfter, FenceNode
from recovery.launcher.survey import Survey, spoiled
from recovery.launcher.worker_messages import Regroup, Resumed
from recovery.plan import Alternative, Plan, RestoreSource, WayName, listed

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")

VERIFY_STEPS: Final = 3
FENCE_SECONDS: Final = 30.0
"""An agent that does not answer a fence by then is taken to hold nothing."""
_RESTORE_FACTOR: Final = 5.0
"""Time-outs to wait for a restore: it may read from disk, and a cold process imports first."""


class Healing:
    """The coordinator's hands. ``begin`` may be called at any time; only the newest attempt lives."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self._task: asyncio.Task[None] | None = None
        self._episode: Episode | None = None
        self.survey = Survey(coordinator)
        self.attendance = Attendance(coordinator)
        self.judge = Judge(coordinator)
        self.cached: Mapping[int | str, Plan] = {}
        """Plans for the loss of each rank and each node, as the membership was when it formed."""
        self.formed_once = False

    @property
    def active(self) -> bool:
        """Whether a recovery is under way (its verification does not count)."""
        return self._episode is not None

    @property
    def busy(self) -> bool:
        """Whether a recovery is under way, or its verification."""
        return self._task is not None and not self._task.done()

    @property
    def sound_until(self) -> int | None:
        """The newest epoch that is sound, where newer ones may hold wrong numbers; None: all are."""
        return None if self._episode is None else self._episode.before

    def prepare(self) -> None:
        """The membership has formed: have a plan ready for every single loss."""
        self.formed_once = True
        if self._c.members.shape is not None:
            self.cached = forecasts = planner.Forecasts(self.survey.expected())
            if forecasts.large:
                self._c.spawn(asyncio.to_thread(forecasts.prepare))
            self.judge.prepare()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def begin(self, failure: Failure) -> None:
        """Fence at once; the rest follows in a task."""
        self.cancel()
        now = time.time()
        if self._episode is None:
            self._episode = Episode(uuid7(), failure.time, self._c.committed, now, self._report)
        self._episode.acted_at = min(now, self._episode.acted_at)
        self._episode.marks.clear()
        victims = self._victims(failure)
        staying, glance = self.attendance.look(victims, failure), self.judge.glance(victims, failure)
        self._episode.quiet = failure.quiet
        self._episode.begins("fence", f"generation {self._c.generation}: {failure.reason}")
        others = self._c.disk.reshaping.reinstating.instead(self, self._episode, victims, failure)
        if others is not None:
            self._episode.verdict = self.judge.decide(glance, WayName.REINSTANTIATE)
            self._task = self._c.spawn(others)
            return
        if not self.replace(victims, failure.shun):
            return
        # Only now, while the fence is on its way: no decision may hold it up.
        self._episode.verdict = verdict = self.judge.decide(glance)
        if verdict is not None and verdict.first is WayName.REINSTANTIATE:
            others = self._c.disk.reshaping.reinstating.preferred(self, self._episode, victims, failure)
            if others is not None:
                verdict.way = WayName.REINSTANTIATE
                self._task = self._c.spawn(others)
                return
        self.attendance.choose(staying, failure, None if verdict is None else verdict.first)
        waiting = {r.number for r in self._c.members.ranks if r.live} - victims
        if failure.before is not None:
            self._episode.before, self._episode.odd = failure.before, failure.odd
        if failure.replay is not None:
            self._episode.before, self._episode.odd = failure.replay.before, failure.replay.odd
            self._task = self._c.spawn(self._c.replays.carry_out(self, self._episode, failure.replay))
            return
        if failure.migrates:
            self._task = self._c.spawn(self._c.migrations.carry_out(self, self._episode, victims, waiting))
            return
        if failure.reshapes:
            self._task = self._c.spawn(self._c.disk.reshaping.carry_out(self, self._episode, victims, waiting))
            return
        self._task = self._c.spawn(self.heal(self._episode, victims, waiting))

    # Fence

    def _victims(self, failure: Failure) -> set[int]:
        """Ranks that need a new process. All of them when some have already left the training loop for good."""
        ranks = self._c.members.ranks
        whole = self._c.members.shape is None or any(r.gone for r in ranks)
        return {r.number for r in ranks if whole or r.lost or r.number in failure.ranks}

    def fence_all(self) -> None:
        """Revoke the old generation; every process stays."""
        self.replace(set())

    def replace(
        self, victims: set[int], shun: frozenset[int] = frozenset(), *, moves: Mapping[int, str] | None = None
    ) -> bool:
        """Revoke the old generation everywhere, and start new processes for ``victims`` right behind it.

        ``moves`` says where those run that nothing forces to move.
        """
        c, members = self._c, self._c.members
        victims = {number for number in victims if not members.ranks[number].homeless}
        homes = self.survey.homes(victims, shun)
        if isinstance(homes, str):
            c.fail(f"{homes} (ranks {sorted(victims)} have nowhere to run)")
            return False
        doomed = {
            node.name: tuple(r.number for r in members.on(node.name) if r.number in victims) for node in members.alive()
        }
        shunned = {
            node.name: tuple(r.number for r in members.on(node.name) if r.number in shun) for node in members.alive()
        }
        for number in victims:
            members.ranks[number].restart((moves or homes)[number])
        if members.shape is None:
            c.store = c.new_store()  # the script meets through the store by itself, and would find the dead in it
        c.orders.bequeath()
        for node in members.alive():
            node.inventory, node.warm = None, node.standbys
            node.shunned += len(shunned[node.name])
            node.send(FenceNode(generation=c.generation, kill=doomed[node.name], shun=shunned[node.name]))
        for rank in members.ranks:
            rank.ready = rank.resumed = None
            rank.digests.clear()
            rank.buffers.clear()
            if rank.number in victims:
                c.orders.start(rank)
        return True

    async def heal(self, episode: Episode, victims: set[int], waiting: set[int]) -> None:
        if self._c.members.shape is None:
            await self._start_over(episode)
            return
        if not await self.fenced(episode, waiting):
            return
        if self.formed_once:
            alternative = self._decide(episode, victims)
            if alternative is None:
                return
            orders = self._orders(alternative)
            epoch = alternative.epoch or 0
        else:
            await self.until(self._all_waiting, None)
            orders, epoch = {}, self._c.disk.begun_at
        if not await self._c.standing.check(self._c.generation):
            return
        self.discard(epoch)
        if not await self._regroup(episode, orders):
            return
        await self._go_on(episode, epoch)
        await self._verify(episode, epoch)
        await self.attendance.come_back()

    async def fenced(self, episode: Episode, waiting: set[int]) -> bool:
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
            episode.ends("fence", ok=False, detail=why)
            return not self._once_more(Failure(ranks=late, time=time.time(), reason=why))
        episode.mark("fence")
        episode.ends("fence", ok=True, detail=f"{len(waiting)} ranks stay alive")
        return True

    # For a replay

    async def all_ready(self, episode: Episode) -> bool:
        """Wait until agents and all ranks have left the old generation."""
        c = self._c
        await self.until(lambda: all(n.fenced >= c.generation for n in c.members.alive()), FENCE_SECONDS)
        ready = await self.until(lambda: all(r.ready for r in c.members.ranks), c.options.ready_seconds)
        episode.mark("fence")
        return ready

    # Decide

    def plan(self, episode: Episode, victims: set[int], *, use_live: bool = True) -> Plan:
        """The planner's choice among what is sound; where that brings nothing back, among all that there is."""
        survey = self.survey
        plan = planner.plan(survey.situation(victims, episode.bad, episode.before, use_live=use_live))
        if plan.chosen is None and episode.forgives():
            log.warning("nothing else is left: sources that failed before are tried again")
            return self.plan(episode, victims, use_live=use_live)
        if plan.chosen is not None or episode.before is None:
            return plan
        log.warning("no snapshot is as old as step %d: newer ones may hold wrong numbers", episode.before)
        unlike = survey.outvoted(episode.odd)
        anything = planner.plan(survey.situation(victims | unlike, episode.bad, use_live=use_live, unlike=unlike))
        if anything.chosen is not None:
            episode.before, episode.odd = None, frozenset()
        return anything

    def _decide(self, episode: Episode, victims: set[int]) -> Alternative | None:
        c = self._c
        plan = self.plan(episode, victims)
        episode.mark("decide")
        weighed = {} if episode.verdict is None else {"decision": told(episode.verdict)}
        episode.tell(EventKind.PLAN_CHOSEN, {"plan": msgspec.to_builtins(listed(plan)), **weighed})
        self.judge.carry(episode.verdict, plan)
        if plan.chosen is None:
            c.reporter.event(
                EventKind.RECOVERY_FAILED,
                generation=c.generation,
                data={"recovery": episode.id, "reason": plan.explanation},
            )
            c.fail(plan.explanation)
            return None
        log.warning("plan: %s", plan.explanation)
        return plan.alternative()

    def _orders(self, alternative: Alternative) -> dict[int, Regroup]:
        c = self._c
        (host, port), deal = c.store, self.attendance.deal()
        return {
            restore.rank: Regroup(
                generation=c.generation,
                store_host=host,
                store_port=port,
                restore=self.survey.order(restore, alternative.epoch or 0),
                digest_steps=VERIFY_STEPS,
                deal=deal,
            )
            for restore in alternative.restores
        }

    def discard(self, epoch: int) -> None:
        """Snapshots and parity of steps that will be repeated must not be taken for the repeated ones."""
        self._c.sick.went_back(epoch)
        self._c.replays.went_back(epoch)
        self._c.orders.guard.taints.went_back(epoch)
        self.survey.history.went_back(epoch, self._c.generation)
        self._c.orders.bequeath()
        if epoch < self._c.committed:
            for node in self._c.members.alive():
                node.send(DiscardAfter(epoch=epoch))

    # Regroup

    def _all_waiting(self) -> bool:
        generation = self._c.generation
        return all(r.joined == generation or r.ready is not None for r in self._c.members.present)

    async def _regroup(self, episode: Episode, orders: dict[int, Regroup]) -> bool:
        c = self._c
        restoring = {
            n: o.restore for n, o in orders.items() if o.restore and o.restore.source is not RestoreSource.LIVE
        }
        for number, restore in restoring.items():
            episode.begins(f"restore rank {number}", f"epoch {restore.epoch} from {restore.source}")
        c.orders.regroup(orders)
        self.attendance.say()
        ranks = c.members.present
        await self.until(lambda: all(r.resumed for r in ranks), c.options.ready_seconds * _RESTORE_FACTOR)
        for number in restoring:
            self._restored(episode, c.members.ranks[number], orders[number])
        episode.mark("regroup")
        missing = {r.number for r in ranks if r.resumed is None}
        broken = {r.number for r in ranks if r.resumed is not None and not r.resumed.ok}
        if missing or broken:
            whys = [r.resumed.reason for r in ranks if r.resumed is not None and not r.resumed.ok]
            why = f"ranks {sorted(missing | broken)} could not be restored: {'; '.join(whys) or 'no answer'}"
            # A rank that answered keeps its process and tries again from elsewhere; a silent one is replaced.
            return not self._once_more(Failure(ranks=missing, time=time.time(), reason=why))
        if self._once_more(unison.discord(c, episode, {n: o.restore for n, o in orders.items() if o.restore})):
            return False
        if not episode.reinstates:  # its phases are others
            self.survey.learn(ranks, dict(episode.marks), episode.acted_at, cold=episode.cold)
        c.formed()
        return True

    def _once_more(self, failure: Failure | None) -> bool:
        """Begin anew if there is a ``failure``. Not from within this task: beginning anew cancels it."""
        if failure is not None:
            asyncio.get_running_loop().call_soon(self._c.failed, failure)
        return failure is not None

    def _restored(self, episode: Episode, rank: Rank, order: Regroup) -> None:
        vote: Resumed | None = rank.resumed
        name = f"restore rank {rank.number}"
        if vote is None:
            episode.ends(name, ok=False, detail="no answer")
        elif vote.ok:
            episode.ends(name, ok=True, seconds=vote.seconds, detail=f"{vote.nbytes} bytes from {vote.source}")
        else:
            episode.ends(name, ok=False, seconds=vote.seconds, detail=vote.reason)
            assert order.restore is not None
            episode.bad.add(spoiled(rank.number, order.restore, vote.blame))

    # Go on

    async def _go_on(self, episode: Episode, epoch: int) -> None:
        c = self._c
        await self.until(lambda: all(self._past(r, epoch + 1) for r in c.members.present), None)
        episode.mark("first_step")
        seconds = episode.seconds()
        lost = max(0, episode.step_before - epoch)
        gone = {"ranks_away": self.attendance.away, "replicas_away": self.attendance.replicas_away}
        more: dict[str, Any] = {name: list(numbers) for name, numbers in gone.items() if numbers}
        more |= self.judge.recovered(episode.verdict, episode.id, seconds, lost)
        episode.tell(EventKind.RECOVERED, {"seconds": seconds, "steps_lost": lost, "epoch": epoch, **more})
        log.warning("recovered in %.3f s: training goes on after step %d", seconds["total"], epoch)
        self._episode = None
        c.orders.warm_standbys()

    async def _verify(self, episode: Episode, epoch: int) -> None:
        c = self._c
        last = epoch + VERIFY_STEPS if c.steps_total is None else min(epoch + VERIFY_STEPS, c.steps_total)
        await self.until(lambda: all(self._past(r, last) for r in c.members.present), None)
        match = self.survey.replicas_equal()
        self.judge.prepare()
        episode.tell(EventKind.VERIFIED, {"steps_committed": last - epoch, "digest_match": match})
        if match is False:
            self._once_more(unison.parted(c, epoch, last))

    def _past(self, rank: Rank, epoch: int) -> bool:
        current = rank.epoch_generation == self._c.generation and rank.epoch >= epoch
        return current or rank.gone

    async def _start_over(self, episode: Episode) -> None:
        """A script that does not use the SDK: all its ranks were started anew, as torchrun does."""
        await self.until(lambda: all(r.pid is not None for r in self._c.members.ranks), None)
        episode.mark("restart")
        episode.ends("fence", ok=True, detail="all ranks were started again: the script does not use the SDK")
        data = {"recovery": episode.id, "seconds": episode.seconds(), "steps_lost": None, "epoch": None}
        self._c.reporter.event(EventKind.RECOVERED, generation=self._c.generation, data=data)
        self._episode = None
        self._c.move(JobState.RUNNING)
        self._c.orders.warm_standbys()

    # Helpers

    async def until(self, happened: Callable[[], bool], seconds: float | None) -> bool:
        """Wait for something that messages bring about; whether it did within ``seconds``.

        Not by ``asyncio.wait_for``: before Python 3.12 it loses a cancellation that comes in the moment in which the
        thing happens, and a recovery that another failure has ended would go on deciding, with nothing known.
        """
        try:
            async with asyncio.timeout(seconds), self._c.changed:
                await self._c.changed.wait_for(happened)
        except TimeoutError:
            return False
        return True

    def _report(self, kind: EventKind, data: dict[str, Any]) -> None:
        self._c.reporter.event(kind, generation=self._c.generation, data=data)
