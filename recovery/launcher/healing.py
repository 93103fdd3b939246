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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from probes.ids import uuid7
from probes.words import EventKind
from recovery import planner
from recovery.launcher import unison
from recovery.launcher.membership import Failure, JobState, Rank
from recovery.launcher.messages import DiscardAfter, FenceNode, Regroup, Resumed
from recovery.launcher.survey import BadSource, Survey, spoiled
from recovery.plan import Alternative, Plan, RestoreSource

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")

VERIFY_STEPS: Final = 3
FENCE_SECONDS: Final = 30.0
"""An agent that does not answer a fence by then is taken to hold nothing."""
_RESTORE_FACTOR: Final = 5.0
"""Time-outs to wait for a restore: it may read from disk, and a cold process imports first."""


@dataclass(slots=True)
class Episode:
    """One recovery as the outside sees it: from the first failure until steps commit again."""

    id: str
    failed_at: float
    step_before: int
    """The newest committed epoch when it began."""
    acted_at: float
    replayed: float = 0.0
    """Seconds that ranks have replayed in it."""
    marks: list[tuple[str, float]] = field(default_factory=list)
    """Phase and the Unix time at which it ended; of the last attempt."""
    before: int | None = None
    """The newest epoch that is sound, where newer ones may hold wrong numbers."""
    odd: frozenset[int] = frozenset()
    """Ranks whose newer state is unlike their replicas'."""
    apart: bool = False
    """Ranks have restored what was not theirs, or replicas differed."""
    quiet: bool = False
    """Nothing has failed: replays that somebody asked for, and that have found nobody, are no recovery to report."""
    bad: set[BadSource] = field(default_factory=set)
    """Sources that turned out not to hold what they promised."""

    def seconds(self) -> dict[str, float]:
        """Phase -> seconds, and their total from the first failure."""
        result = {"detect": max(0.0, self.acted_at - self.failed_at)}
        result |= {"replay": self.replayed} if self.replayed else {}
        last = self.acted_at + self.replayed
        for phase, at in self.marks:
            result[phase] = at - last
            last = at
        return result | {"total": last - self.failed_at}


class Healing:
    """The coordinator's hands. ``begin`` may be called at any time; only the newest attempt lives."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self._task: asyncio.Task[None] | None = None
        self._episode: Episode | None = None
        self.survey = Survey(coordinator)
        self.cached: dict[int | str, Plan] = {}
        """Plans for the loss of each rank and each node, made when the membership formed."""
        self.formed_once = False

    @property
    def active(self) -> bool:
        """Whether a recovery is under way (its verification does not count)."""
        return self._episode is not None

    def prepare(self) -> None:
        """The membership has formed: have a plan ready for every single loss."""
        self.formed_once = True
        if self._c.members.shape is not None:
            self.cached = planner.precompute(self.survey.expected())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def begin(self, failure: Failure) -> None:
        """Fence at once; the rest follows in a task."""
        self.cancel()
        now = time.time()
        if self._episode is None:
            self._episode = Episode(uuid7(), failure.time, self._c.committed, now)
        self._episode.acted_at = min(now, self._episode.acted_at)
        self._episode.marks.clear()
        victims = self._victims(failure)
        waiting = {r.number for r in self._c.members.ranks if r.live} - victims
        self._episode.quiet = failure.quiet
        self._action("fence", started=True, detail=f"generation {self._c.generation}: {failure.reason}")
        if not self._replace(victims, failure.shun):
            return
        if failure.before is not None:
            self._episode.before, self._episode.odd = failure.before, failure.odd
        if failure.replay is not None:
            self._episode.before, self._episode.odd = failure.replay.before, failure.replay.odd
            self._task = self._c.spawn(self._c.replays.carry_out(self, self._episode, failure.replay))
            return
        self._task = self._c.spawn(self._heal(self._episode, victims, waiting))

    # Fence

    def _victims(self, failure: Failure) -> set[int]:
        """Ranks that need a new process. All of them when some have already left the training loop for good."""
        ranks = self._c.members.ranks
        whole = self._c.members.shape is None or any(r.gone for r in ranks)
        return {r.number for r in ranks if whole or r.lost or r.number in failure.ranks}

    def fence_all(self) -> None:
        """Revoke the old generation; every process stays."""
        self._replace(set())

    def _replace(self, victims: set[int], shun: frozenset[int] = frozenset()) -> bool:
        """Revoke the old generation everywhere, and start new processes for ``victims`` right behind it."""
        c, members = self._c, self._c.members
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
            members.ranks[number].restart(homes[number])
        if members.shape is None:
            c.store = c.new_store()  # the script meets through the store by itself, and would find the dead in it
        for node in members.alive():
            node.inventory, node.warm = None, node.standbys
            node.shunned += len(shunned[node.name])
            node.send(FenceNode(generation=c.generation, kill=doomed[node.name], shun=shunned[node.name]))
        for rank in members.ranks:
            rank.ready = rank.resumed = None
            rank.digests.clear()
            rank.buffers.clear()
            if rank.number in victims:
                c.start_rank(rank)
        return True

    async def _heal(self, episode: Episode, victims: set[int], waiting: set[int]) -> None:
        if self._c.members.shape is None:
            await self._start_over(episode)
            return
        if not await self._fenced(episode, waiting):
            return
        if self.formed_once:
            alternative = self._decide(episode, victims)
            if alternative is None:
                return
            orders = self._orders(alternative)
            epoch = alternative.epoch or 0
        else:
            await self.until(self._all_waiting, None)
            orders, epoch = {}, 0
        self.discard(epoch)
        if not await self._regroup(episode, orders):
            return
        await self._go_on(episode, epoch)
        await self._verify(episode, epoch)

    async def _fenced(self, episode: Episode, waiting: set[int]) -> bool:
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
            self._action("fence", ok=False, detail=why)
            return not self._once_more(Failure(ranks=late, time=time.time(), reason=why))
        self._mark(episode, "fence")
        self._action("fence", ok=True, detail=f"{len(waiting)} ranks stay alive")
        return True

    # For a replay

    async def all_ready(self, episode: Episode) -> bool:
        """Wait until agents and all ranks have left the old generation."""
        c = self._c
        await self.until(lambda: all(n.fenced >= c.generation for n in c.members.alive()), FENCE_SECONDS)
        ready = await self.until(lambda: all(r.ready for r in c.members.ranks), c.options.ready_seconds)
        self._mark(episode, "fence")
        return ready

    # Decide

    def plan(self, episode: Episode, victims: set[int], *, use_live: bool = True) -> Plan:
        """The planner's choice among what is sound; where that brings nothing back, among all that there is."""
        survey = self.survey
        plan = planner.plan(survey.situation(victims, episode.bad, episode.before, use_live=use_live))
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
        self._mark(episode, "decide")
        data = {"recovery": episode.id, "plan": msgspec.to_builtins(plan)}
        self.tell(episode, EventKind.PLAN_CHOSEN, data)
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
        host, port = c.store
        return {
            restore.rank: Regroup(
                generation=c.generation,
                store_host=host,
                store_port=port,
                restore=self.survey.order(restore, alternative.epoch or 0),
                digest_steps=VERIFY_STEPS,
            )
            for restore in alternative.restores
        }

    def discard(self, epoch: int) -> None:
        """Snapshots and parity of steps that will be repeated must not be taken for the repeated ones."""
        self._c.sick.went_back(epoch)
        self._c.replays.went_back(epoch)
        self.survey.history.went_back(epoch, self._c.generation)
        if epoch < self._c.committed:
            for node in self._c.members.alive():
                node.send(DiscardAfter(epoch=epoch))

    # Regroup

    def _all_waiting(self) -> bool:
        generation = self._c.generation
        return all(r.joined == generation or r.ready is not None for r in self._c.members.ranks)

    async def _regroup(self, episode: Episode, orders: dict[int, Regroup]) -> bool:
        c = self._c
        restoring = {
            n: o.restore for n, o in orders.items() if o.restore and o.restore.source is not RestoreSource.LIVE
        }
        for number, restore in restoring.items():
            self._action(f"restore rank {number}", started=True, detail=f"epoch {restore.epoch} from {restore.source}")
        c.regroup(orders)
        await self.until(lambda: all(r.resumed for r in c.members.ranks), c.options.ready_seconds * _RESTORE_FACTOR)
        for number in restoring:
            self._restored(episode, c.members.ranks[number], orders[number])
        self._mark(episode, "regroup")
        missing = {r.number for r in c.members.ranks if r.resumed is None}
        broken = {r.number for r in c.members.ranks if r.resumed is not None and not r.resumed.ok}
        if missing or broken:
            whys = [r.resumed.reason for r in c.members.ranks if r.resumed is not None and not r.resumed.ok]
            why = f"ranks {sorted(missing | broken)} could not be restored: {'; '.join(whys) or 'no answer'}"
            # A rank that answered keeps its process and tries again from elsewhere; a silent one is replaced.
            return not self._once_more(Failure(ranks=missing, time=time.time(), reason=why))
        if self._once_more(unison.discord(c, episode, {n: o.restore for n, o in orders.items() if o.restore})):
            return False
        self.survey.learn(c.members.ranks, dict(episode.marks), episode.acted_at)
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
            self._action(name, ok=False, detail="no answer")
        elif vote.ok:
            self._action(name, ok=True, seconds=vote.seconds, detail=f"{vote.nbytes} bytes from {vote.source}")
        else:
            self._action(name, ok=False, seconds=vote.seconds, detail=vote.reason)
            assert order.restore is not None
            episode.bad.add(spoiled(rank.number, order.restore))

    # Go on

    async def _go_on(self, episode: Episode, epoch: int) -> None:
        c = self._c
        await self.until(lambda: all(self._past(r, epoch + 1) for r in c.members.ranks), None)
        self._mark(episode, "first_step")
        data = {
            "recovery": episode.id,
            "seconds": episode.seconds(),
            "steps_lost": max(0, episode.step_before - epoch),
            "epoch": epoch,
        }
        self.tell(episode, EventKind.RECOVERED, data)
        seconds = data["seconds"]
        assert isinstance(seconds, dict)
        log.warning("recovered in %.3f s: training goes on after step %d", seconds["total"], epoch)
        self._episode = None
        c.going_on()

    async def _verify(self, episode: Episode, epoch: int) -> None:
        c = self._c
        last = epoch + VERIFY_STEPS if c.steps_total is None else min(epoch + VERIFY_STEPS, c.steps_total)
        await self.until(lambda: all(self._past(r, last) for r in c.members.ranks), None)
        data = {"recovery": episode.id, "steps_committed": last - epoch, "digest_match": self.survey.replicas_equal()}
        self.tell(episode, EventKind.VERIFIED, data)
        if data["digest_match"] is False:
            self._once_more(unison.parted(c, epoch, last))

    def _past(self, rank: Rank, epoch: int) -> bool:
        current = rank.epoch_generation == self._c.generation and rank.epoch >= epoch
        return current or rank.gone

    async def _start_over(self, episode: Episode) -> None:
        """A script that does not use the SDK: all its ranks were started anew, as torchrun does."""
        await self.until(lambda: all(r.pid is not None for r in self._c.members.ranks), None)
        self._mark(episode, "restart")
        self._action("fence", ok=True, detail="all ranks were started again: the script does not use the SDK")
        data = {"recovery": episode.id, "seconds": episode.seconds(), "steps_lost": None, "epoch": None}
        self._c.reporter.event(EventKind.RECOVERED, generation=self._c.generation, data=data)
        self._episode = None
        self._c.move(JobState.RUNNING)
        self._c.going_on()

    # Helpers

    async def until(self, happened: Callable[[], bool], seconds: float | None) -> bool:
        """Wait for something that messages bring about; whether it did within ``seconds``."""

        async def wait() -> None:
            async with self._c.changed:
                await self._c.changed.wait_for(happened)

        try:
            await asyncio.wait_for(wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _mark(self, episode: Episode, phase: str) -> None:
        episode.marks.append((phase, time.time()))

    def _action(
        self,
        name: str,
        *,
        started: bool = False,
        ok: bool | None = None,
        seconds: float | None = None,
        detail: str = "",
    ) -> None:
        assert self._episode is not None
        data: dict[str, Any] = {"recovery": self._episode.id, "action": name, "detail": detail}
        if started:
            self.tell(self._episode, EventKind.ACTION_STARTED, data)
            return
        data |= {"ok": ok} if seconds is None else {"ok": ok, "seconds": seconds}
        self.tell(self._episode, EventKind.ACTION_FINISHED, data)

    def tell(self, episode: Episode, kind: EventKind, data: dict[str, Any]) -> None:
        """An event of a recovery."""
        if not episode.quiet:
            self._c.reporter.event(kind, generation=self._c.generation, data=data)
