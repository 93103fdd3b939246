"""Who takes part in the next generation: with ``--on-loss drop`` the job goes on without replicas that lost a rank.

drop    a rank is lost and no standby is warm for it: its replica stays away, the others share its micro-batches
away    lost ranks get new processes meanwhile, or wait until their node is back; the replica's other ranks keep theirs
        and idle. Nothing that happens to them disturbs who trains
heal    when all ranks of a replica wait with a process, everybody stops at the end of a step; the replica takes the
        state of that step from its peers and is part of the next generation

A pipeline that lost a stage is dropped whole. Where no replica is whole, or the script does not ask for the
micro-batches that it is dealt, the job waits for the lost ranks, as without the option. What is away protects nothing
and is counted on by nobody: groups, durability and votes are those of the ranks that take part. As torchft drops and
heals replica groups; unlike there, the global batch stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from recovery.deal import Deal, Dealing, OnLoss
from recovery.launcher.membership import Failure, JobState, Node, Rank
from recovery.launcher.paces import Paces
from recovery.launcher.worker_messages import StepRecord

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")

AGAIN_SECONDS: Final = 1.0
"""Until a rank that is away gets another process: one that cannot live must not keep the machine busy dying."""
WORTH_STEPS: Final = 5
"""Fewer steps before the end are not worth stopping for: to take a replica back may repeat one."""


class Attendance:
    """One a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self.paces = Paces()
        self.asks = False
        """Whether the script asks for its micro-batches: one that does not would train on with a smaller batch."""

    @property
    def away(self) -> tuple[int, ...]:
        """Replicas that take no part, rising."""
        members = self._c.members
        if members.shape is None:
            return ()
        return tuple(sorted({members.shape.place(rank.number)[0] for rank in members.ranks if rank.away}))

    def deal(self) -> Deal | None:
        """Of the present generation; None: all replicas alike."""
        shape, away, shares = self._c.members.shape, self.away, self.paces.shares
        if shape is None or not (away or shares):
            return None
        here = tuple(replica for replica in range(shape.dp) if replica not in away)
        return Deal(replicas=here, shares=tuple(shares[replica] for replica in here) if shares else ())

    # Who is next

    def choose(self, victims: set[int], failure: Failure) -> None:
        """Write into the table of ranks who takes part in the generation that begins.

        Args:
            victims: ranks that need a new process.
            failure: why it begins.
        """
        ranks = self._c.members.ranks
        self.paces.restart()
        if failure.reshapes:
            self.paces.forget()
        for rank in ranks:
            rank.homeless = False
        staying = self._staying(victims) if self._may_drop(failure) else None
        for rank in ranks:
            if staying is None or rank.number in staying:
                rank.away = 0
            else:
                rank.away = rank.away or self._c.generation
                rank.live = False

    def _may_drop(self, failure: Failure) -> bool:
        c = self._c
        shape, options = c.members.shape, c.options
        able = options.on_loss is OnLoss.DROP and shape is not None and shape.dp > 1
        alike = self.asks and bool(c.healing.survey.replicated) and c.healing.formed_once
        together = failure.replay is None and not failure.reshapes and not any(rank.gone for rank in c.members.ranks)
        return able and alike and together

    def _staying(self, victims: set[int]) -> set[int] | None:
        """Ranks of the replicas that take part; None: all do."""
        members = self._c.members
        assert members.shape is not None
        case = self._c.healing.survey.case(victims)
        homeless = {number for number in case.failed if case.node[number] in case.lost}
        for number in homeless:
            members.ranks[number].homeless = True
        case = self._c.healing.survey.case(victims, homeless)
        here = {r.number for r in members.ranks if r.number not in victims and (not r.away or r.waits)}
        soon = here | {number for number in victims & case.warm if not members.ranks[number].homeless}
        replicas = [
            {members.shape.rank_of(dp=d, pp=p, tp=t) for p in range(members.shape.pp) for t in range(members.shape.tp)}
            for d in range(members.shape.dp)
        ]
        if any(ranks <= here for ranks in replicas):
            return set[int]().union(*(ranks for ranks in replicas if ranks <= soon))
        # Nobody can go on alone: all wait for those that have a place.
        placed = [ranks for ranks in replicas if not any(members.ranks[r].homeless for r in ranks)]
        return set[int]().union(*placed) if placed else None

    def say(self) -> None:
        """Tell who is away in the generation that begins."""
        away = self.away
        if away:
            dp = self._c.members.shape.dp if self._c.members.shape else 0
            log.warning(
                "DEGRADED %s: goes on without replicas %s of %d: the others share their work",
                self._c.options.job, list(away), dp,
            )  # fmt: skip

    # While replicas are away

    def bears(self, failure: Failure) -> bool:
        """Whether only ranks are lost that take no part: nobody else need stop for them."""
        c = self._c
        lost = [c.members.ranks[number] for number in failure.ranks]
        if not lost or not all(rank.away for rank in lost):
            return False
        c.recoveries += failure.counts
        log.warning("%s; nobody waits for it", failure.reason)
        if c.recoveries > c.options.max_restarts:
            stay = sorted(failure.ranks)
            log.error("DEGRADED %s: --max-restarts are used up, ranks %s stay away", c.options.job, stay)
        else:
            c.spawn(self._restart([rank for rank in lost if c.members.nodes[rank.node].alive]))
        return True

    async def _restart(self, ranks: list[Rank]) -> None:
        await asyncio.sleep(AGAIN_SECONDS)
        for rank in ranks:
            if rank.away and rank.lost and not self._c.over:  # a recovery may have seen to it meanwhile
                self._start(rank)

    def _start(self, rank: Rank) -> None:
        rank.restart(rank.node)
        self._c.orders.start(rank)

    def came_back(self, node: Node) -> None:
        """A node that was lost is here again: its ranks that have no other place get a process."""
        c = self._c
        log.warning("node %s is back", node.name)
        c.orders.bequeath()
        for rank in c.members.on(node.name):
            if rank.homeless and rank.away:
                rank.homeless = False
                self._start(rank)

    # Back

    async def come_back(self) -> None:
        """Wait until replicas can take part again and a step ends; then have all meet."""
        while self.away:
            await self._c.healing.until(lambda: bool(self._returning()), None)
            if not await self._step_ends():
                return
            back = sorted(self._returning())
            if back:  # not from within this task: beginning anew cancels it
                reason = f"replicas {back} take part again"
                failure = Failure(ranks=set(), time=time.time(), reason=reason, counts=False, changes=True)
                asyncio.get_running_loop().call_soon(self._c.failed, failure)
                return

    async def _step_ends(self) -> bool:
        """Wait until all have committed the next step: then the least is thrown away. False near the job's end."""
        c = self._c
        target = c.committed + 1
        await c.healing.until(lambda: self._over or min(rank.epoch for rank in c.members.present) >= target, None)
        return not self._over and c.state is JobState.RUNNING

    # Slow replicas

    def committed(self, rank: Rank, record: StepRecord) -> None:
        """A rank has made a step: with ``--deal measured`` perhaps the last that it takes to deal work anew."""
        c = self._c
        self.asks = record.micro_batches > 0
        shape = c.members.shape
        if c.options.deal is not Dealing.MEASURED or shape is None:
            return
        if not self.paces.step(rank.number, record, shape.world_size):
            return  # when all have made it, the least is thrown away
        if c.state is not JobState.RUNNING or c.healing.busy or self._over:
            return
        shares = self.paces.better(shape)
        if shares:
            self.paces.take(shares)
            told = ", ".join(f"{replica}: {share / max(shares.values()):.2f}" for replica, share in shares.items())
            reason = f"work is dealt anew by the speed of replicas ({told})"
            c.failed(Failure(ranks=set(), time=time.time(), reason=reason, counts=False, changes=True))

    # The end

    @property
    def _over(self) -> bool:
        """The end is too near to change anything."""
        c = self._c
        late = c.steps_total is not None and c.committed + WORTH_STEPS > c.steps_total
        return late or c.over or any(rank.gone for rank in c.members.ranks)

    def _returning(self) -> Collection[int]:
        """Replicas all of whose ranks wait."""
        members = self._c.members
        shape = members.shape
        if shape is None:
            return ()
        unready = {shape.place(rank.number)[0] for rank in members.ranks if rank.away and not rank.waits}
        return set(self.away) - unready
