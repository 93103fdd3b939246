"""From what the coordinator has been told to what the planner wants to know, and from its answer to orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from typing import Any

from mainstay.recovery.agent.messages import Group, GroupMember
from mainstay.recovery.controller.checkpoint_holders import CheckpointHolders
from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.recovery_record import BadSource
from mainstay.recovery.controller.state.events import ReplicasCompared
from mainstay.recovery.membership.members import AllRanks, NodeMember, RankMember
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.planner_input import (
    FailureCase,
    HeldCheckpoint,
    HeldParity,
    HeldSlot,
    MachineCosts,
    PlannerInput,
    RankPlacement,
)
from mainstay.recovery.protocol.worker_messages import RestoreOrder, StepRecord
from mainstay.recovery.recovery_plan import Alternative, RankRestore, RestoreSource

_STEPS_REMEMBERED = 32
_STEPS_TIMED = 4096
"""Of rank 0, until they are asked for."""
_MOST_NAMED = 8
"""Nodes in one line."""
_FOR_EVER = 1 << 62


class PlannerInputBuilder:
    """Builds situations for the planner. Keeps what was measured on the way: the step time."""

    def __init__(self, job: Job, checkpoints: CheckpointManager) -> None:
        self._job = job
        self._checkpoints = checkpoints
        self._step_times: list[float] = []
        self._timed: deque[tuple[int, float]] = deque(maxlen=_STEPS_TIMED)
        self._all_told = AllRanks()
        self._known: dict[MeshShape, tuple[RankPlacement, ...]] = {}

    # What was measured

    def step_took(self, rank: int, step: StepRecord) -> None:
        """Steps that fewer replicas share are longer, and say nothing of the healthy job."""
        if self._job.members.absent and self._step_times:
            return
        self._step_times = [*self._step_times[-_STEPS_REMEMBERED + 1 :], step.step_time]
        if not rank:
            self._timed.append((step.epoch, step.step_time))

    def take_timed_steps(self) -> list[tuple[int, float]]:
        """Epoch and seconds of each step since the last call, the newest ones if they are many."""
        steps = list(self._timed)
        self._timed.clear()
        return steps

    @property
    def step_seconds(self) -> float:
        return median(self._step_times) if self._step_times else 0.0

    @property
    def costs(self) -> MachineCosts:
        """What recoveries cost here, as far as it was measured."""
        return self._job.prices.costs(n.inventory.rates for n in self._job.members.alive() if n.inventory)

    def compare_replicas(self, epoch: int) -> None:
        """Before the first failure: learn whether peers are replicas, once all have told their digest of ``epoch``."""
        shape, ranks = self._job.members.shape, self._job.members.ranks
        if self._job.state.replicated is not None or shape is None:
            return
        if not self._all_told.have(ranks, lambda rank: epoch in rank.digests):
            return
        parts = shape.parts() if shape.dp > 1 and not shape.depths else []
        equal = bool(parts) and all(len({ranks[peer].digests[epoch] for peer in peers}) == 1 for peers in parts)
        # Running statistics of a batch norm are each replica's own: a copy of a peer's would not be the rank's.
        buffers = equal and all(len({ranks[peer].buffers[epoch] for peer in peers}) == 1 for peers in parts)
        self._job.apply(ReplicasCompared(parameters_equal=equal, replicated=buffers))
        self._checkpoints.configure()  # equal replicas may share the writing
        self._job.replicate_state()
        if parts and not equal:
            self._report_unequal()

    def _report_unequal(self) -> None:
        """Ranks divide what replicas hold alike, and hold other things: experts, shards, or ZeRO-1 in the script."""
        differ = "data-parallel ranks hold different parameters or optimizer tensors"
        if self._job.options.shard_snapshots:
            self._job.control.fail(f"--shard-snapshots would lose state, because {differ}: leave the option out")
        elif self._job.options.checkpoint_replicas:
            log.warning("--checkpoint-replicas has no effect, because %s: each rank writes its whole state", differ)

    def replicas_equal(self) -> bool | None:
        """Whether replicas reported equal digests for the newest epoch that all did; None without replicas."""
        shape, ranks = self._job.members.shape, self._job.members.present
        if shape is None or not self._job.state.parameters_equal:
            return None
        if {len([rank for rank in ranks if rank.number in peers]) for peers in shape.parts()} <= {0, 1}:
            return None  # no other replica to compare with
        common = set.intersection(*(set(rank.digests) for rank in ranks))
        if not common:
            return None
        epoch = max(common)
        told = {rank.number: rank for rank in ranks}
        parts = [[told[peer] for peer in peers if peer in told] for peers in shape.parts()]
        return all(len({rank.digests[epoch] for rank in part}) <= 1 for part in parts)

    # Situations

    def situation(
        self,
        victims: set[int],
        bad: set[BadSource] = frozenset(),  # type: ignore[assignment]
        before: int | None = None,
        *,
        use_live: bool = True,
        unlike: set[int] = frozenset(),  # type: ignore[assignment]
    ) -> PlannerInput:
        """What is known now, while ``victims`` have new processes without state.

        Args:
            victims: ranks.
            bad: sources that are left out.
            before: the newest epoch that is sound; newer ones are left out. None: all are.
            use_live: whether survivors may keep their tensors.
            unlike: ranks that have nothing of their own that is worth having.
        """
        # One pass on purpose: all parts of a situation must be of the same moment, so nothing here may await or cache.
        # Each source (live, slots, parity, disk) has a filter of its own, which is what the branches are.
        members, nodes = self._job.members, self._job.members.alive()
        limit = _FOR_EVER if before is None else before
        newest = max([rank.ready.newest_epoch for rank in members.ranks if rank.ready], default=0)
        step = max(newest, self._job.state.committed)
        stateless = {r.number for r in members.ranks if r.number in victims or r.ready is None or not r.live}
        live = {
            r.number: r.ready.live_epoch
            for r in members.ranks
            if use_live and r.ready and r.ready.live_epoch is not None and r.ready.live_epoch <= limit
        }
        slots = [hold for node in nodes for hold in self._slots(node, bad)]
        disk = [hold for hold in self._disk(bad) if hold.epoch <= min(limit, step) and hold.rank not in unlike]
        if before is not None or unlike:
            slots = [hold for hold in slots if hold.epoch <= limit and hold.rank not in unlike]
        return self._input(
            standbys={node.name: node.warm for node in nodes if node.warm},
            step=step,
            failed_ranks=tuple(sorted(stateless)),
            live={rank: epoch for rank, epoch in live.items() if rank not in stateless},
            slots=tuple(slots),
            parity=tuple([hold for node in nodes for hold in _parity(node, bad) if hold.epoch <= limit]),
            disk=tuple(disk),  # a newer file than what is committed is of a future that the job has gone back from
        )

    def minority_ranks(self, odd: frozenset[int]) -> set[int]:
        """Of ranks whose state is unlike their replicas', those that should take a replica's.

        Where all replicas of a place differ it is unknown which is right, and they take that of the lowest rank: to
        train on with several would be worse.
        """
        shape = self._job.members.shape
        if shape is None:
            return set()
        return {rank for rank in odd if rank != min(shape.dp_peers(rank), key=lambda peer: (peer in odd, peer))}

    def homes(self, victims: set[int], exclude: frozenset[int] = frozenset()) -> dict[int, str] | str:
        """Where each victim runs next, or why it cannot run anywhere. Those in ``exclude`` leave their device."""
        members = self._job.members
        unplaced = {rank.number for rank in members.ranks if rank.unplaced}
        case = self.case(victims, unplaced)
        if case.unplaced is not None:
            return self._no_room(case, case.unplaced)
        homes = {number: case.node[number] for number in victims}
        if all(node == members.ranks[number].node for number, node in homes.items()):
            homes |= self._away(exclude & victims)
        return homes

    def _no_room(self, case: FailureCase, rank: int) -> str:
        members, gone = self._job.members, self._job.members.ranks[rank].node
        warned = members.warnings.current()
        why = "is lost" if gone in case.lost else f"takes no rank ({warned[gone].reason})"
        free = sum(members.rooms().values())
        text = f"node {gone} {why} and only {free} spare places are left on other nodes (see --standbys)"
        out = [f"{node} ({warned[node].reason})" for node in case.situation.cordoned if node != gone]
        return f"{text}; these take no rank: {', '.join(out[:_MOST_NAMED])}" if out else text

    def log_last_resort(self, homes: Mapping[int, str]) -> None:
        """Report ranks that begin on a node that is not trusted."""
        warned = self._job.members.warnings.current()
        for node in sorted(set(homes.values()) & warned.keys()):
            ranks = sorted(rank for rank, home in homes.items() if home == node)
            log.warning(
                "DEGRADED %s: ranks %s start on node %s, which is not trusted (%s): no other node has room",
                self._job.options.job, ranks, node, warned[node].reason,
            )  # fmt: skip

    def case(self, victims: set[int], unplaced: Collection[int] = ()) -> FailureCase:
        """Where ``victims`` and the ranks of lost nodes may run next; ``unplaced`` ones are left out."""
        members = self._job.members
        lost = {rank.node for rank in members.ranks if not members.nodes[rank.node].alive}
        cordoned = sorted(node.name for node in members.by_trust().cordoned)
        return FailureCase(
            self._input(
                failed_ranks=tuple(sorted(victims)),
                lost_nodes=tuple(sorted(lost)),
                away=tuple(sorted(unplaced)),
                last_resort=members.last_rooms(),
                cordoned=tuple(cordoned),
            )
        )

    def _away(self, exclude: frozenset[int]) -> dict[int, str]:
        """Another node for each rank whose own has no other place for it; a rank for which there is none stays."""
        members, moved = self._job.members, dict[int, str]()
        free = members.rooms()
        for number in sorted(exclude):
            home = members.ranks[number].node
            best = home if free.get(home, 0) > 0 else max(free, key=lambda name: free[name], default=home)
            if free.get(best, 0) > 0:
                free[best] -= 1
                moved[number] = best
        return moved

    def _input(self, **known: Any) -> PlannerInput:
        """What every situation has, and ``known`` of this one."""
        job, members = self._job, self._job.members
        shape = members.shape or MeshShape(dp=len(members.ranks), pp=1)
        room = members.rooms()
        warm = {node.name: min(node.standbys, room[node.name]) for node in members.alive()}
        base: dict[str, Any] = {
            "job": job.options.job,
            "generation": max(0, job.state.generation - 1),
            "step": job.state.committed,
            "step_seconds": self.step_seconds,
            "ranks": self._places(shape),
            "state_bytes": tuple([r.attached.state_bytes if r.attached else 0 for r in members.ranks]),
            "standbys": {name: count for name, count in warm.items() if count},
            "cold": {name: room[name] - warm[name] for name in room if room[name] > warm[name]},
            "replicated": bool(self._job.state.replicated) and not self._job.options.shard_snapshots,
            "away": tuple([rank.number for rank in members.ranks if rank.away]),
            "sharded": self._job.options.shard_snapshots and shape.dp > 1,
            "costs": self.costs,
        }
        return PlannerInput(**base | known)

    def _places(self, shape: MeshShape) -> tuple[RankPlacement, ...]:
        """Of 16,384 ranks a loss moves eight: those that did not move keep theirs."""
        ranks = self._job.members.ranks
        known = self._known.get(shape, ())
        if len(known) != len(ranks):
            known = tuple(_place(shape, rank) for rank in ranks)
        pairs = list(zip(known, ranks, strict=True))
        if any(place.node != rank.node for place, rank in pairs):
            known = tuple(place if place.node == rank.node else _place(shape, rank) for place, rank in pairs)
        self._known = {shape: known}
        return known

    def _disk(self, bad: set[BadSource]) -> tuple[HeldCheckpoint, ...]:
        held = [
            HeldCheckpoint(rank=entry.rank, epoch=entry.epoch, node=node.name)
            for node in (self._job.members.alive() if self._job.options.recovers_from_disk else ())
            for entry in (node.inventory.disk if node.inventory else ())
            if self._job.history.holds(entry.epoch, entry.generation)
        ]
        checkpoints = self._checkpoints
        others = checkpoints.disks().from_other_nodes(self._job.members.ranks)
        known = (*checkpoints.holds(), *held, *checkpoints.stand_ins(held), *others)
        return tuple(h for h in known if not bad or BadSource(h.rank, h.epoch, RestoreSource.DISK) not in bad)

    def _slots(self, node: NodeMember, bad: set[BadSource]) -> list[HeldSlot]:
        held = node.inventory.slots if node.inventory else ()
        local, holds = RestoreSource.LOCAL_SLOT, self._job.history.holds
        usual = not bad and not self._job.history.returns  # then thousands of nodes are looked through
        return [
            HeldSlot(node=node.name, rank=s.rank, epoch=s.epoch, verified=s.verified)
            for s in held
            if usual or (BadSource(s.rank, s.epoch, local) not in bad and holds(s.epoch, s.generation))
        ]

    # Orders

    def orders(self, alternative: Alternative) -> dict[int, RestoreOrder]:
        """Rank -> the message about its part of the plan."""
        epoch = alternative.epoch or 0
        disk = {restore.rank for restore in alternative.restores if restore.source is RestoreSource.DISK}
        disks = self._checkpoints.disks()
        return {restore.rank: self._order(restore, epoch, disk, disks) for restore in alternative.restores}

    def _order(self, restore: RankRestore, epoch: int, disk: Collection[int], disks: CheckpointHolders) -> RestoreOrder:
        members = self._job.members
        if restore.source is RestoreSource.DISK:
            return self._checkpoints.order(restore.rank, epoch, disk, disks)
        return RestoreOrder(
            epoch=epoch,
            source=restore.source,
            from_rank=restore.from_rank,
            endpoint=members.nodes[restore.from_nodes[0]].endpoint if restore.from_nodes else None,
            group=self.group_of(restore.rank, epoch) if restore.source is RestoreSource.PARITY else (),
            shards=() if restore.source is RestoreSource.LIVE else self._checkpoints.shards(restore.rank),
        )

    def group_of(self, rank: int, epoch: int) -> Group:
        """As its members were when the parity of ``epoch`` was made, and where they are now.

        By what the agents hold: groups may have changed since, and rows of the old ones still be the best there
        are. Of several groups that of which most members are left. A member without rows is sought where its rank was.
        """
        held: dict[tuple[int, ...], dict[int, NodeMember]] = {}
        for node in self._job.members.alive():
            for row in node.inventory.parity if node.inventory else ():
                if row.epoch == epoch and rank in row.ranks:
                    held.setdefault(row.ranks, {})[row.place] = node
        if not held:
            return ()
        ranks = max(held, key=lambda group: (len(held[group]), group))
        nodes, known = self._job.members.nodes, self._job.members.ranks
        at = [held[ranks].get(place) or nodes[known[number].node] for place, number in enumerate(ranks)]
        # A lost node has no address: a rank need not wait two seconds for a host that does not even refuse.
        return tuple(
            GroupMember(node=n.name, endpoint=n.endpoint if n.alive else "", rank=r)
            for n, r in zip(at, ranks, strict=True)
        )


def _place(shape: MeshShape, rank: RankMember) -> RankPlacement:
    dp, pp, tp = shape.place(rank.number)
    if shape.depths:  # the same stage of a deeper pipeline is another part of the model
        pp = next(n for n, peers in enumerate(shape.parts()) if rank.number in peers)
    return RankPlacement(rank=rank.number, dp=dp, pp=pp, tp=tp, node=rank.node)


def _parity(node: NodeMember, bad: set[BadSource]) -> list[HeldParity]:
    held = node.inventory.parity if node.inventory else ()
    spoiled = {(source.rank, source.epoch) for source in bad if source.source is RestoreSource.PARITY}
    return [
        HeldParity(node=node.name, epoch=row.epoch, ranks=row.ranks, place=row.place, parity=row.parity)
        for row in held  # of a step that is not complete too: what counts is whether there is enough of it
        if not any((rank, row.epoch) in spoiled for rank in row.ranks)
    ]
