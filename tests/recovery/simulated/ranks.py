"""What a rank's process does, as far as its launcher and its peers see: the SDK's protocol without tensors.

A rank's state is an epoch and a ``lineage``: the generations that made its steps. Ranks may train together only
with one lineage, or they would train parts of different models.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainstay.recovery.protocol.worker_messages import (
    Assign,
    Attached,
    CollectiveFailed,
    FenceRank,
    Joined,
    RankDone,
    Ready,
    Regroup,
    RestoreOrder,
    Resumed,
    StepRecord,
)
from mainstay.recovery.recovery_plan import RestoreSource
from tests.recovery.simulated.loop import ProcessState

if TYPE_CHECKING:
    from tests.recovery.simulated.agents import SimulatedAgent
    from tests.recovery.simulated.workers import SimulatedWorker

STEP_SECONDS: Final = 1.0
BROKEN_SECONDS: Final = (0.05, 2.0)
"""Until a peer's death shows as a failed collective."""
SILENT_SECONDS: Final = 60.0
"""The store's time-out, and here that of a collective too, where a peer is silent."""


class ViolationError(AssertionError):
    """What may never happen has happened."""


class ModelState(NamedTuple):
    """Of one rank at one epoch."""

    epoch: int
    lineage: int
    """Of which steps of which generations it comes; a hash."""


@dataclass
class Truth:
    """What happens, also where a coordinator believes otherwise, and what may not happen."""

    loop: Any
    rng: random.Random
    shape: tuple[int, int]
    """(dp, pp)"""
    steps_total: int
    collectives: dict[tuple[int, str, int], Collective] = field(default_factory=dict)
    workers: list[SimulatedWorker] = field(default_factory=list)
    """Every process that holds a rank, or did."""
    newest_generation: int = 0
    """In which a step was committed."""
    committed: int = 0
    """The newest epoch that all ranks of a generation have committed."""
    commits: int = 0
    gentle: bool = True
    """Only processes of ranks were killed so far: no state can be lost."""
    in_time: bool = True
    """No process was stopped and no message kept back so far: orders are carried out soon."""
    tolerates: bool = False
    """Some ranks may be left out (``--on-loss``)."""

    def enter(self, rank: SimulatedRank, order: Regroup) -> Collective:
        """``rank`` begins to form the generation of ``order``."""
        key = (order.generation, order.store_host, order.store_port)
        expected = self._expected(order)
        collective = self.collectives.setdefault(key, Collective(self, order.generation, expected))
        if collective.expected != expected:
            raise ViolationError(f"generation {key}: {sorted(collective.expected)} or {sorted(expected)} take part?")
        other = collective.members.get(rank.number)
        if other is not None and other is not rank:
            raise ViolationError(f"generation {key} has two processes of rank {rank.number}")
        collective.join(rank)
        return collective

    def _expected(self, order: Regroup) -> frozenset[int]:
        dp, pp = self.shape
        if order.assignment is None:
            return frozenset(range(dp * pp))
        return frozenset(replica * pp + stage for stage in range(pp) for replica in order.assignment.occupied(stage))

    def begins(self, collective: Collective) -> None:
        """All members are restored and about to train."""
        states = {rank.live for rank in collective.members.values()}
        if len(states) != 1:
            found = {n: rank.live for n, rank in sorted(collective.members.items())}
            raise ViolationError(f"generation {collective.generation} begins with different states: {found}")
        (state,) = states
        if state is not None and self.gentle and not self.tolerates and state.epoch < self.committed:
            raise ViolationError(
                f"step {self.committed} was committed by all, none was lost, and {state.epoch} is next"
            )

    def commits_step(self, collective: Collective) -> None:
        """A vote of all members has succeeded."""
        # All votes of a generation may be those of one host that was stopped or cut off: no other host has to leave it,
        # and this one has not heard of its end. What it commits no other host ever sees.
        hosts = {member.worker.owner.host for member in collective.members.values()}
        if collective.generation < self.newest_generation:
            if not self.in_time and len(hosts) == 1:
                return
            raise ViolationError(f"generation {collective.generation} commits after {self.newest_generation}")
        self.newest_generation = collective.generation
        self.commits += 1
        for number, member in collective.members.items():
            twins = [w for w in self.workers if w.trains(number, collective.generation) and w.process is not member]
            if twins:
                raise ViolationError(f"rank {number} has two processes in generation {collective.generation}")


@dataclass(eq=False)
class Collective:
    """The process groups of one generation."""

    truth: Truth
    generation: int
    expected: frozenset[int]
    members: dict[int, SimulatedRank] = field(default_factory=dict)
    trains: bool = False
    broken: bool = False

    def join(self, rank: SimulatedRank) -> None:
        self.members[rank.number] = rank
        if set(self.members) == self.expected and not self.broken:
            for member in self.members.values():
                member.soon(0.05, member.formed, self)
        else:
            rank.soon(SILENT_SECONDS, self._times_out, rank)

    def _times_out(self, rank: SimulatedRank) -> None:
        if rank.collective is self and not self.trains and set(self.members) != self.expected:
            rank.trouble("forming the groups timed out")

    def voted(self) -> None:
        """A member has restored its state; training begins when all have."""
        here = [member for member in self.members.values() if member.collective is self and member.voted]
        if not self.trains and not self.broken and {member.number for member in here} == self.expected:
            self.trains = True
            self.truth.begins(self)
            if next(iter(self.members.values())).epoch_next <= self.truth.steps_total:
                self._schedule()
            else:
                for member in self.members.values():
                    member.soon(0.05, member.ends)

    def _schedule(self) -> None:
        self.truth.loop.call_later(STEP_SECONDS * self.truth.rng.uniform(0.5, 1.5), self._step)

    def _step(self) -> None:
        """The end of a step: a vote of all, or a broken collective."""
        if self.broken:
            return
        if all(member.answers(self) for member in self.members.values()) and self._connected():
            self.truth.commits_step(self)
            for member in self.members.values():
                member.soon(0.03, member.commit, self)
            epoch = next(iter(self.members.values())).epoch_next
            if epoch < self.truth.steps_total:
                self._schedule()
            return
        self.leaves()

    def leaves(self) -> None:
        """A member has left, or is silent: the others notice."""
        if self.broken:
            return
        self.broken = True
        gone = any(member.collective is not self or not member.alive for member in self.members.values())
        for member in self.members.values():
            if member.collective is self:
                seconds = self.truth.rng.uniform(*BROKEN_SECONDS) if gone else SILENT_SECONDS
                member.soon(seconds, member.notices, self)

    def _connected(self) -> bool:
        hosts = sorted({member.worker.owner.host for member in self.members.values()})
        reaches = self.truth.loop.network.reaches
        return all(reaches(hosts[0], host) for host in hosts)


@dataclass(eq=False)
class SimulatedRank:
    """The script of one worker process that was given a rank."""

    worker: SimulatedWorker
    agent: SimulatedAgent
    truth: Truth
    number: int
    generation: int
    """Of its groups, or the lowest that it may join."""
    fence: int = 0
    started: bool = False
    """It has attached its model."""
    live: ModelState | None = None
    newest: int = 0
    collective: Collective | None = None
    voted: bool = False
    hangs: bool = False
    """Its training thread is stuck in the kernel and hears nothing."""
    order: Regroup | None = None

    @classmethod
    def assigned(cls, worker: SimulatedWorker, agent: SimulatedAgent, truth: Truth, order: Assign) -> SimulatedRank:
        rank = cls(worker, agent, truth, order.rank, order.generation, fence=order.generation)
        rank.soon(truth.rng.uniform(0.1, 1.0), rank.join)
        return rank

    @property
    def alive(self) -> bool:
        return self.worker.child.alive

    @property
    def epoch_next(self) -> int:
        return (self.live.epoch if self.live else self.newest) + 1

    def soon(self, seconds: float, call: Any, *args: Any) -> None:
        """Within ``seconds``, if the process lives then."""
        delay = self.truth.rng.uniform(0.0, seconds) if seconds <= 1.0 else seconds
        self.truth.loop.call_later(delay, self._if_alive, call, *args, context=self.worker.owner.context)

    def _if_alive(self, call: Any, *args: Any) -> None:
        if self.alive:
            call(*args)

    def answers(self, collective: Collective) -> bool:
        """Whether its training thread takes part in the collective now."""
        running = self.worker.owner.state is ProcessState.RUNNING
        return self.alive and running and not self.hangs and self.collective is collective

    # Messages

    def join(self) -> None:
        """The script calls ``init``."""
        self.generation = max(self.generation, self.fence)
        dp, pp = self.truth.shape
        self.worker.send_report(Joined(generation=self.generation, dp=dp, pp=pp, tp=1))
        self._follow_waiting()

    def receive(self, message: Any) -> None:
        """A message of the launcher."""
        if self.hangs:
            return
        if isinstance(message, FenceRank) and message.generation > self.fence:
            self.fence = message.generation
            self.soon(0.05, self.leave)
        elif isinstance(message, Regroup):
            self.order = message
            self._follow_waiting()

    def leave(self) -> None:
        """Out of every collective of a generation that is over."""
        if self.generation >= self.fence:
            return
        left, self.collective, self.voted, self.generation = self.collective, None, False, self.fence
        if left is not None:
            left.leaves()
        if not self.started:
            self.join()
            return
        live = None if self.live is None else self.live.epoch
        self.worker.send_report(Ready(generation=self.generation, live_epoch=live, newest_epoch=self.newest))
        self._follow_waiting()

    def _follow_waiting(self) -> None:
        order = self.order
        if order is not None and order.generation >= max(self.generation, self.fence) and self.collective is None:
            self.order, self.generation = None, order.generation
            self.collective = self.truth.enter(self, order)
            self._restore = order.restore

    def formed(self, collective: Collective) -> None:
        """The groups are there: restore and vote."""
        if self.collective is not collective or self.fence > collective.generation or self.voted:
            return
        if not self.started:
            self.started = True
            self.worker.send_report(Attached(state_bytes=100, slots=2, protected=True))
        order: RestoreOrder | None = self._restore
        reason = ""
        if order is None:
            self.live = ModelState(0, 0)
        else:
            found = self._find(order)
            reason = "" if found else f"epoch {order.epoch} is not at {order.source}"
            self.live = found
        epoch = 0 if order is None else order.epoch
        source = None if order is None else order.source
        if not reason:
            self.newest, self.voted = epoch, True
            self.agent.save(self.number, self.live, collective.generation)
        self.worker.send_report(
            Resumed(
                generation=collective.generation, epoch=epoch, source=source, seconds=0.01, nbytes=100,
                ok=not reason, reason=reason, digest=None if reason or order is None else self._digest(),
            )
        )  # fmt: skip
        collective.voted()

    def _digest(self) -> int:
        """Of the parameters: alike in all replicas of a stage."""
        assert self.live is not None
        return hash((self.live, self.number % self.truth.shape[1])) & (2**63 - 1)

    def _find(self, order: RestoreOrder) -> ModelState | None:
        match order.source:
            case RestoreSource.LIVE:
                return self.live if self.live is not None and self.live.epoch == order.epoch else None
            case RestoreSource.LOCAL_SLOT:
                return self.agent.find(self.number, order.epoch)
            case RestoreSource.PEER_COPY:
                rank = self.number if order.from_rank is None else order.from_rank
                return self.agent.fetch(order.endpoint or "", rank, order.epoch)
            case _:
                return None

    # Steps

    def commit(self, collective: Collective) -> None:
        """The vote has reached this rank."""
        if self.collective is not collective or self.fence > collective.generation or self.hangs:
            return
        assert self.live is not None
        epoch = self.live.epoch + 1
        state = ModelState(epoch, hash((self.live.lineage, epoch, collective.generation)))
        if not self.agent.save(self.number, state, collective.generation):
            return  # the agent's fence was faster
        self.live, self.newest = state, epoch
        if all(r.live is not None and r.live.epoch >= epoch for r in collective.members.values()):
            self.truth.committed = max(self.truth.committed, epoch)
        self.worker.send_report(
            StepRecord(
                generation=collective.generation, epoch=epoch, step_time=STEP_SECONDS, compute_time=0.5,
                snapshot_blocked=0.0, end_ns=int(self.truth.loop.now * 1e9), digest=self._digest(), buffers=1,
                micro_batches=4, routed=True,
            )
        )  # fmt: skip
        if epoch == self.truth.steps_total:
            self.ends()

    def ends(self) -> None:
        """All steps are committed."""
        assert self.live is not None
        self.worker.send_report(RankDone(epoch=self.live.epoch))
        self.soon(0.3, self.worker.exits, 0)

    def notices(self, collective: Collective) -> None:
        """A collective has failed."""
        if self.collective is collective and not self.hangs:
            self.trouble("connection closed by peer")

    def trouble(self, reason: str) -> None:
        if self.collective is not None and self.fence <= self.collective.generation:
            self.worker.send_report(CollectiveFailed(generation=self.collective.generation, reason=reason))
