"""Who takes part in the next generation: with ``--on-loss`` the job continues without ranks that are lost.

lost    a rank is lost without a warm standby for it. ``reroute``: its position is absent, and ranks of its stage in
        other replicas compute that stage of its micro-batches. ``drop``: its whole replica stays away, and the others
        share its micro-batches
away    lost ranks get new processes meanwhile, or wait until their node is back; a dropped replica's other ranks keep
        theirs and idle. Nothing that happens to them disturbs who trains
recover when all ranks of what is away wait with a process, every rank stops at the end of a step; they take the state
        of that step from their peers and are part of the next generation

A script that does not ask for its schedule sends to fixed ranks, so with ``reroute`` its replicas are dropped. Where
some stage has no rank left (with ``drop``: no replica is whole), or the script does not ask for the micro-batches that
it is assigned, the job waits for the lost ranks, as without the option. What is away protects nothing and is counted on
by no rank: groups, durability and votes are those of the ranks that take part. As torchft drops and recovers replica
groups, and as ReCycle re-routes; the global batch stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from mainstay.recovery.controller.failure import GenerationFailure, WorkflowName
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.planning.cost_input_builder import LEAVES
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.replica_speed import ReplicaSpeeds
from mainstay.recovery.controller.state.events import FailureCounted, ParticipationChosen, RankStarted, RanksUnplaced
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.membership.members import NodeMember, RankMember
from mainstay.recovery.protocol.worker_messages import StepRecord
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.work_assignment import AssignmentPolicy, LossPolicy, WorkAssignment

AGAIN_SECONDS: Final = 1.0
"""Until a rank that is away gets another process: one that cannot live must not keep the machine busy dying."""


class RemainingRanks(NamedTuple):
    """Ranks that could continue alone; None: all wait for those that are lost."""

    dropped: set[int] | None
    """Without every replica that lost a rank."""
    rerouted: set[int] | None
    """Without the lost ranks only, where the script can; else as ``dropped``."""


class ParticipationPolicy:
    """One a coordinator."""

    def __init__(self, job: Job, inputs: PlannerInputBuilder) -> None:
        self._job = job
        self._inputs = inputs
        self.paces = ReplicaSpeeds()
        self.asks = False
        """Whether the script asks for its micro-batches: one that does not would train on with a smaller batch."""
        self._routed: dict[int, bool] = {}
        """Rank -> whether its script asks with whom to exchange each of them."""

    @property
    def absent_replicas(self) -> tuple[int, ...]:
        """Replicas of which no rank takes part, rising."""
        shape = self._job.members.shape
        return () if shape is None else tuple(sorted({*range(shape.dp)}.difference(self._here())))

    def _here(self) -> tuple[int, ...]:
        shape = self._job.members.known_shape
        return tuple(sorted({shape.place(rank.number)[0] for rank in self._job.members.present}))

    def assignment(self) -> WorkAssignment | None:
        """Of the present generation; None: all replicas alike. By speed only while no stage of a pipeline is away."""
        shape, shares = self._job.members.shape, self.paces.shares
        if shape is None or not (self._job.members.absent or shares):
            return None
        here, positions = self._here(), {shape.place(rank)[:2] for rank in self._job.members.absent}
        gaps = tuple(sorted(position for position in positions if position[0] in here))
        by_speed = tuple(shares[replica] for replica in here) if shares and not gaps else ()
        return WorkAssignment(replicas=here, absent_positions=gaps, shares=by_speed)

    # Who is next

    def refresh(self, victims: set[int], failure: GenerationFailure) -> RemainingRanks:
        """Before anything moves: who could continue without ``victims``.

        Args:
            victims: ranks that need a new process. Those that have no place to run are marked as unplaced.
            failure: why a generation begins.
        """
        self._mark_unplaced(())
        wanted = self._job.state.on_loss.leaves_ranks_out
        if not wanted or failure.workflow in {WorkflowName.REPLAY, WorkflowName.RESHAPE} or self.unable() is not None:
            return RemainingRanks(None, None)
        here, soon = self._there(victims)
        dropped = self._remaining(here, soon, positions=False)
        return RemainingRanks(dropped, dropped if self.rigid() else self._remaining(here, soon, positions=True))

    def choose(self, remaining: RemainingRanks, failure: GenerationFailure, way: RecoveryStrategyName | None) -> None:
        """Write into the table of ranks who takes part in the generation that begins.

        Args:
            remaining: who could continue.
            failure: why it begins.
            way: what costs least; None: nothing was weighed.
        """
        here = self._chosen(remaining, failure, way)
        self.paces.restart()
        if failure.workflow is WorkflowName.RESHAPE:
            self.paces.forget()
            self._routed.clear()
        self._job.apply(ParticipationChosen(ranks=None if here is None else tuple(sorted(here))))

    def _chosen(
        self, remaining: RemainingRanks, failure: GenerationFailure, way: RecoveryStrategyName | None
    ) -> set[int] | None:
        """Who continues alone; None: all wait. Whoever has no place to run cannot be waited for."""
        unplaced = any(rank.unplaced for rank in self._job.members.ranks)
        match self._job.state.on_loss:
            case LossPolicy.AUTO if failure.changes:  # who is not back yet stays away as it was
                return remaining.rerouted if self.by_position else remaining.dropped
            case LossPolicy.AUTO if not unplaced and way not in LEAVES:
                return None
            case LossPolicy.AUTO if way is not RecoveryStrategyName.DROP_AND_HEAL:
                return remaining.rerouted
            case LossPolicy.REROUTE:
                return remaining.rerouted
            case _:
                return remaining.dropped

    def unable(self) -> str | None:
        """Why no rank of this job can be left out, under any option; None: replicas can."""
        job, shape = self._job, self._job.members.shape
        if shape is None or shape.dp < 2:
            return "There is no other replica that could continue."
        if shape.depths:
            return "Pipelines of unlike depth cannot stand for one another."
        if not self.asks:
            return "The script does not ask for its micro-batches, and would train on with a smaller batch."
        if job.options.shard_snapshots or not job.state.replicated or not job.state.formed_once:
            return "Replicas are not known to hold equal state."
        if any(rank.gone for rank in job.members.ranks):
            return "Some ranks have left the training loop already."
        return None

    def cannot_lose(self, ranks: Collection[int]) -> str:
        """Why the job cannot continue without ``ranks``; empty: it can."""
        left = {rank.number for rank in self._job.members.ranks if not rank.away}.difference(ranks)
        rest = self._units_of(left, positions=self.rigid() is None)
        return self.unable() or ("" if self._enough(rest) else "The other ranks do not hold the whole model.")

    def rigid(self) -> str | None:
        """Why ranks cannot be left out one by one; None: their work can be re-routed."""
        if len(self._routed) >= len(self._job.members.ranks) and all(self._routed.values()):
            return None
        return "The script does not ask for its schedule, and would send to ranks that are gone."

    def _there(self, victims: set[int]) -> tuple[set[int], set[int]]:
        """Ranks that have a process, and those with the ones that a warm standby takes."""
        members = self._job.members
        case = self._inputs.case(victims)
        unplaced = {number for number in case.failed if case.node[number] in case.closed}
        self._mark_unplaced(unplaced)
        case = self._inputs.case(victims, unplaced)
        back = {r.number for r in members.ranks if r.waits and members.can_run(r.node)}
        here = {r.number for r in members.ranks if r.number not in victims and (not r.away or r.number in back)}
        return here, here | {number for number in victims & case.warm if not members.ranks[number].unplaced}

    def _remaining(self, here: set[int], soon: set[int], *, positions: bool) -> set[int] | None:
        """Ranks that take part, ``positions``: one by one, else replica by replica; None: all do."""
        if self._enough(self._units_of(here, positions=positions)):
            return self._units_of(soon, positions=positions)
        # They cannot continue alone: all wait for those that have a place.
        placed = self._units_of({r.number for r in self._job.members.ranks if not r.unplaced}, positions=positions)
        return placed if self._enough(placed) else None

    def _units_of(self, ranks: set[int], *, positions: bool) -> set[int]:
        """Ranks of what is whole among ``ranks``: mesh positions (with their tensor-parallel ranks), or replicas."""
        shape = self._job.members.known_shape
        units: dict[tuple[int, ...], set[int]] = {}
        for rank in range(shape.world_size):
            units.setdefault(shape.place(rank)[: 2 if positions else 1], set()).add(rank)
        return set[int]().union(*(unit for unit in units.values() if unit <= ranks))

    def _enough(self, ranks: set[int]) -> bool:
        """Whether these ranks can train: they hold each part of the model."""
        shape = self._job.members.known_shape
        return {shape.place(rank)[1:] for rank in ranks} == {shape.place(r)[1:] for r in range(shape.world_size)}

    def log_absent_ranks(self) -> None:
        """Tell who is away in the generation that begins."""
        if self._job.members.absent:
            log.warning(
                "DEGRADED %s: continues without ranks %s of %d: the others do their work",
                self._job.options.job, list(self._job.members.absent), len(self._job.members.ranks),
            )  # fmt: skip

    @property
    def by_position(self) -> bool:
        """Whether those that are away come back as they can; else each replica as a whole."""
        on_loss = self._job.state.on_loss
        left_so = on_loss is LossPolicy.REROUTE or (on_loss is LossPolicy.AUTO and self.crossed)
        return left_so and self.rigid() is None

    @property
    def crossed(self) -> bool:
        """Whether of some replica only a part takes part."""
        assignment = self.assignment()
        return assignment is not None and bool(assignment.absent_positions)

    # While ranks are away

    def can_absorb(self, failure: GenerationFailure) -> bool:
        """Whether only ranks are lost that take no part: no other rank need stop for them."""
        job = self._job
        lost = [job.members.ranks[number] for number in failure.ranks]
        if not lost or not all(rank.away for rank in lost):
            return False
        if failure.counts:
            job.apply(FailureCounted())
        log.warning("%s; no rank waits for it", failure.reason)
        if job.state.recoveries > job.options.max_restarts:
            stay = sorted(failure.ranks)
            log.error("DEGRADED %s: --max-restarts are used up, ranks %s stay away", job.options.job, stay)
        else:
            job.spawn(self._restart(lost))
        return True

    async def _restart(self, ranks: list[RankMember]) -> None:
        await asyncio.sleep(AGAIN_SECONDS)
        for rank in ranks:
            if rank.away and rank.lost and not self._job.state.over:  # a recovery may have seen to it meanwhile
                if self._job.members.can_run(rank.node):
                    self._job.apply(RankStarted(rank=rank.number, node=rank.node))
                else:
                    self._mark_unplaced({r.number for r in self._job.members.ranks if r.unplaced} | {rank.number})

    def _mark_unplaced(self, ranks: Collection[int]) -> None:
        if {rank.number for rank in self._job.members.ranks if rank.unplaced} != set(ranks):
            self._job.apply(RanksUnplaced(ranks=tuple(sorted(ranks))))

    def is_restored(self, node: NodeMember) -> None:
        """A node that could run no rank can again: its ranks that have no other place get a process."""
        job = self._job
        log.warning("node %s may take ranks now", node.name)
        job.replicate_state()
        for rank in job.members.on(node.name):
            if rank.unplaced and rank.away:
                job.apply(RankStarted(rank=rank.number, node=node.name))
        if job.options.spare_nodes:  # and ranks of lost nodes, as far as it has room
            free = job.members.rooms().get(node.name, 0)
            for rank in [rank for rank in job.members.ranks if rank.unplaced and rank.away][:free]:
                job.apply(RankStarted(rank=rank.number, node=node.name))

    def reopen(self, closed: Iterable[NodeMember]) -> None:
        """Of nodes that could run no rank, those that can now take theirs again."""
        for node in closed:
            if self._job.members.can_run(node.name):
                self.is_restored(node)

    # Back

    async def come_back(self) -> None:
        """Wait until those that are away can take part again and a step ends; then have all meet."""
        while self._job.members.absent:
            await self._job.until(lambda: bool(self._returning()), None)
            if not await self._step_ends():
                return
            back = sorted(self._returning())
            if back:  # not from within this task: beginning again cancels it
                reason = f"ranks {back} take part again"
                self._job.failed_soon(GenerationFailure(reason=reason, counts=False, changes=True))
                return

    async def _step_ends(self) -> bool:
        """Wait until all have committed the next step: then the least is thrown away. False near the job's end."""
        job = self._job
        target = job.state.committed + 1
        await job.until(lambda: all(r.epoch >= target for r in job.members.present) or job.state.ends_soon, None)
        return not job.state.ends_soon and job.state.phase is JobPhase.RUNNING

    def _returning(self) -> Collection[int]:
        """Ranks that are away, of mesh positions (or replicas) whose ranks that are away all wait."""
        shape, away = self._job.members.shape, [rank for rank in self._job.members.ranks if rank.away]
        if shape is None or not away:
            return ()
        parts = 2 if self.by_position else 1
        can_run = self._job.members.can_run
        unready = {shape.place(rank.number)[:parts] for rank in away if not (rank.waits and can_run(rank.node))}
        return [rank.number for rank in away if shape.place(rank.number)[:parts] not in unready]

    def learn(self, rank: RankMember, record: StepRecord) -> None:
        """Whether the script can do without others, as a rank's step shows; the newest counts."""
        self.asks = record.micro_batches > 0
        self._routed[rank.number] = record.routed

    # Slow replicas

    def committed(self, rank: RankMember, record: StepRecord) -> None:
        """A rank has made a step: with ``--micro-batch-assignment proportional`` it may cause a new assignment."""
        job = self._job
        self.learn(rank, record)
        shape = job.members.shape
        if job.options.micro_batch_assignment is not AssignmentPolicy.PROPORTIONAL or shape is None:
            return
        if not self.paces.step(rank.number, record, shape.world_size):
            return  # when all have made it, the least is thrown away
        if job.state.phase is not JobPhase.RUNNING or job.busy or job.state.ends_soon:
            return
        shares = self.paces.better(shape)
        if shares:
            self.paces.propose_assignment(shares)
            told = ", ".join(f"{replica}: {share / max(shares.values()):.2f}" for replica, share in shares.items())
            reason = f"work is assigned again by the speed of replicas ({told})"
            job.control.failed(GenerationFailure(reason=reason, counts=False, changes=True))
