"""Who takes part in the next generation: with ``--on-loss`` the job goes on without ranks that are lost.

lost    a rank is lost and no standby is warm for it. ``reroute``: its seat stays away, and ranks of the same stage in
        other replicas compute that stage of its micro-batches. ``drop``: its whole replica stays away, and the others
        share its micro-batches
away    lost ranks get new processes meanwhile, or wait until their node is back; a dropped replica's other ranks keep
        theirs and idle. Nothing that happens to them disturbs who trains
heal    when all ranks of what is away wait with a process, everybody stops at the end of a step; they take the state
        of that step from their peers and are part of the next generation

A script that does not ask for its schedule sends to fixed ranks, so with ``reroute`` its replicas are dropped. Where
some stage has nobody left (with ``drop``: no replica is whole), or the script does not ask for the micro-batches that
it is dealt, the job waits for the lost ranks, as without the option. What is away protects nothing and is counted on
by nobody: groups, durability and votes are those of the ranks that take part. As torchft drops and heals replica
groups, and as ReCycle re-routes; the global batch stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from recovery.deal import Deal, Dealing, OnLoss
from recovery.launcher.membership import Failure, JobState, Node, Rank
from recovery.launcher.outlooks import LEAVES
from recovery.launcher.paces import Paces
from recovery.launcher.worker_messages import StepRecord
from recovery.plan import WayName

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")

AGAIN_SECONDS: Final = 1.0
"""Until a rank that is away gets another process: one that cannot live must not keep the machine busy dying."""
WORTH_STEPS: Final = 5
"""Fewer steps before the end are not worth stopping for: to take ranks back may repeat one."""


class Staying(NamedTuple):
    """Ranks that could go on alone; None: all wait for those that are lost."""

    dropped: set[int] | None
    """Without every replica that lost a rank."""
    rerouted: set[int] | None
    """Without the lost ranks only, where the script can; else as ``dropped``."""


class Attendance:
    """One a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self.paces = Paces()
        self.asks = False
        """Whether the script asks for its micro-batches: one that does not would train on with a smaller batch."""
        self._routed: dict[int, bool] = {}
        """Rank -> whether its script asks with whom to exchange each of them."""

    @property
    def away(self) -> tuple[int, ...]:
        """Ranks that take no part, rising."""
        return tuple(rank.number for rank in self._c.members.ranks if rank.away)

    @property
    def replicas_away(self) -> tuple[int, ...]:
        """Replicas of which no rank takes part, rising."""
        shape = self._c.members.shape
        return () if shape is None else tuple(sorted({*range(shape.dp)}.difference(self._here())))

    def _here(self) -> tuple[int, ...]:
        shape = self._c.members.shape
        assert shape is not None
        return tuple(sorted({shape.place(rank.number)[0] for rank in self._c.members.present}))

    def deal(self) -> Deal | None:
        """Of the present generation; None: all replicas alike. By speed only while no stage of a pipeline is away."""
        shape, shares = self._c.members.shape, self.paces.shares
        if shape is None or not (self.away or shares):
            return None
        here, seats = self._here(), {shape.place(rank)[:2] for rank in self.away}
        gaps = tuple(sorted(seat for seat in seats if seat[0] in here))
        by_speed = tuple(shares[replica] for replica in here) if shares and not gaps else ()
        return Deal(replicas=here, gaps=gaps, shares=by_speed)

    # Who is next

    def look(self, victims: set[int], failure: Failure) -> Staying:
        """Before anything moves: who could go on without ``victims``.

        Args:
            victims: ranks that need a new process. Those that have no place to run are marked as homeless.
            failure: why a generation begins.
        """
        for rank in self._c.members.ranks:
            rank.homeless = False
        wanted = self._c.options.on_loss not in {OnLoss.WAIT, OnLoss.REINSTANTIATE}
        if not wanted or failure.replay is not None or failure.reshapes or self.unable() is not None:
            return Staying(None, None)
        here, soon = self._there(victims)
        dropped = self._staying(here, soon, seats=False)
        return Staying(dropped, dropped if self.rigid() else self._staying(here, soon, seats=True))

    def choose(self, staying: Staying, failure: Failure, way: WayName | None) -> None:
        """Write into the table of ranks who takes part in the generation that begins.

        Args:
            staying: who could go on.
            failure: why it begins.
            way: what costs least; None: nothing was weighed.
        """
        here = self._chosen(staying, failure, way)
        self.paces.restart()
        if failure.reshapes:
            self.paces.forget()
            self._routed.clear()
        for rank in self._c.members.ranks:
            if here is None or rank.number in here:
                rank.away = 0
            else:
                rank.away = rank.away or self._c.generation
                rank.live = False

    def _chosen(self, staying: Staying, failure: Failure, way: WayName | None) -> set[int] | None:
        """Who goes on alone; None: all wait. Whoever has no place to run cannot be waited for."""
        homeless = any(rank.homeless for rank in self._c.members.ranks)
        match self._c.options.on_loss:
            case OnLoss.AUTO if failure.changes:  # who is not back yet stays away as it was
                return staying.rerouted if self.one_by_one else staying.dropped
            case OnLoss.AUTO if not homeless and way not in LEAVES:
                return None
            case OnLoss.AUTO if way is not WayName.DROP_AND_HEAL:
                return staying.rerouted
            case OnLoss.REROUTE:
                return staying.rerouted
            case _:
                return staying.dropped

    def unable(self) -> str | None:
        """Why nobody in this job can be left out, whatever was asked for; None: replicas can."""
        c, shape = self._c, self._c.members.shape
        if shape is None or shape.dp < 2:
            return "There is no other replica that could go on."
        if shape.depths:
            return "Pipelines of unlike depth cannot stand for one another."
        if not self.asks:
            return "The script does not ask for its micro-batches, and would train on with a smaller batch."
        if c.options.shard_save or not c.healing.survey.replicated or not c.healing.formed_once:
            return "Replicas are not known to hold equal state."
        if any(rank.gone for rank in c.members.ranks):
            return "Some ranks have left the training loop already."
        return None

    def rigid(self) -> str | None:
        """Why ranks cannot be left out one by one; None: their work can be re-routed."""
        if len(self._routed) >= len(self._c.members.ranks) and all(self._routed.values()):
            return None
        return "The script does not ask for its schedule, and would send to ranks that are gone."

    def _there(self, victims: set[int]) -> tuple[set[int], set[int]]:
        """Ranks that have a process, and those with the ones that a warm standby takes."""
        members = self._c.members
        case = self._c.healing.survey.case(victims)
        homeless = {number for number in case.failed if case.node[number] in case.lost}
        for number in homeless:
            members.ranks[number].homeless = True
        case = self._c.healing.survey.case(victims, homeless)
        here = {r.number for r in members.ranks if r.number not in victims and (not r.away or r.waits)}
        return here, here | {number for number in victims & case.warm if not members.ranks[number].homeless}

    def _staying(self, here: set[int], soon: set[int], *, seats: bool) -> set[int] | None:
        """Ranks that take part, ``seats``: one by one, else replica by replica; None: all do."""
        if self._enough(self._units_of(here, seats=seats)):
            return self._units_of(soon, seats=seats)
        # They cannot go on alone: all wait for those that have a place.
        placed = self._units_of({r.number for r in self._c.members.ranks if not r.homeless}, seats=seats)
        return placed if self._enough(placed) else None

    def _units_of(self, ranks: set[int], *, seats: bool) -> set[int]:
        """Ranks of what is whole among ``ranks``: seats (with their tensor-parallel ranks), or replicas."""
        shape = self._c.members.shape
        assert shape is not None
        units: dict[tuple[int, ...], set[int]] = {}
        for rank in range(shape.world_size):
            units.setdefault(shape.place(rank)[: 2 if seats else 1], set()).add(rank)
        return set[int]().union(*(unit for unit in units.values() if unit <= ranks))

    def _enough(self, ranks: set[int]) -> bool:
        """Whether these ranks can train: somebody holds each part of the model."""
        shape = self._c.members.shape
        assert shape is not None
        return {shape.place(rank)[1:] for rank in ranks} == {shape.place(r)[1:] for r in range(shape.world_size)}

    def say(self) -> None:
        """Tell who is away in the generation that begins."""
        if self.away:
            log.warning(
                "DEGRADED %s: goes on without ranks %s of %d: the others do their work",
                self._c.options.job, list(self.away), len(self._c.members.ranks),
            )  # fmt: skip

    @property
    def one_by_one(self) -> bool:
        """Whether those that are away come back as they can; else each replica as a whole."""
        on_loss = self._c.options.on_loss
        left_so = on_loss is OnLoss.REROUTE or (on_loss is OnLoss.AUTO and self.crossed)
        return left_so and self.rigid() is None

    @property
    def crossed(self) -> bool:
        """Whether of some replica only a part takes part."""
        deal = self.deal()
        return deal is not None and bool(deal.gaps)

    # While ranks are away

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
        """Wait until those that are away can take part again and a step ends; then have all meet."""
        while self.away:
            await self._c.healing.until(lambda: bool(self._returning()), None)
            if not await self._step_ends():
                return
            back = sorted(self._returning())
            if back:  # not from within this task: beginning anew cancels it
                reason = f"ranks {back} take part again"
                failure = Failure(ranks=set(), time=time.time(), reason=reason, counts=False, changes=True)
                asyncio.get_running_loop().call_soon(self._c.failed, failure)
                return

    async def _step_ends(self) -> bool:
        """Wait until all have committed the next step: then the least is thrown away. False near the job's end."""
        c = self._c
        target = c.committed + 1
        await c.healing.until(lambda: self._over or min(rank.epoch for rank in c.members.present) >= target, None)
        return not self._over and c.state is JobState.RUNNING

    def learn(self, rank: Rank, record: StepRecord) -> None:
        """Whether the script can do without others, as a rank's step shows; the newest counts."""
        self.asks = record.micro_batches > 0
        self._routed[rank.number] = record.routed

    # Slow replicas

    def committed(self, rank: Rank, record: StepRecord) -> None:
        """A rank has made a step: with ``--deal measured`` perhaps the last that it takes to deal work anew."""
        c = self._c
        self.learn(rank, record)
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
        """Ranks that are away, of seats (or replicas) whose ranks that are away all wait."""
        shape, away = self._c.members.shape, [rank for rank in self._c.members.ranks if rank.away]
        if shape is None or not away:
            return ()
        parts = 2 if self.one_by_one else 1
        unready = {shape.place(rank.number)[:parts] for rank in away if not rank.waits}
        return [rank.number for rank in away if shape.place(rank.number)[:parts] not in unready]
