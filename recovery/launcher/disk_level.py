"""The coordinator's part of the disk level: which run this is, what it goes on from, how often, and the last save.

Without ``--disk-every`` nothing is written while all is well: when the job ends or cannot go on, the newest step in
memory goes to disk, by whatever healthy replicas hold it (just-in-time checkpointing, Gupta et al., EuroSys 2024).

Every start of a job is a run of its own. ``--resume`` names a step of an earlier one: then every rank's first order is
to restore it, and until this run has a whole step of its own, that one is what a job that lost everything goes back to.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from probes.ids import uuid7
from recovery.disk.catalogue import LATEST, Source, find
from recovery.disk.manifest import CheckpointError, DiskConfig
from recovery.disk.reshape import needed, sources
from recovery.launcher.membership import Node
from recovery.launcher.messages import Disk, FenceNode, SaveDisk
from recovery.launcher.options import OnSick
from recovery.launcher.reshaping import Reshaping
from recovery.launcher.worker_messages import RestoreOrder
from recovery.plan import RestoreSource
from recovery.shape import Shape
from recovery.situation import DiskHold

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")

AUTO: Final = "auto"
FENCE_SECONDS: Final = 10.0
"""To end all ranks and learn what agents hold, before the last save."""
STOP_SECONDS: Final = 20.0
"""For the last save of a job that was told to end: Kubernetes and Slurm kill after 30 s if nobody says otherwise."""
END_SECONDS: Final = 600.0
"""The same when nobody hurries."""


@dataclass(slots=True)
class Reply:
    """What a node said of the last save."""

    problem: str = ""


class DiskLevel:
    """One a coordinator.

    Raises:
        CheckpointError: ``--resume`` names what is not there; one line.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        options = coordinator.options
        self.run = uuid7()
        """Sorts by the time of the start; nobody guesses it."""
        self.enabled = options.checkpoint_dir is not None
        self.saving = False
        """The last save is under way: the job is over for everybody else."""
        self.source: Source | None = None
        """What the job goes on from."""
        self.saved: dict[str, Reply] = {}
        """Node -> what it said of the last save."""
        self.reshaping = Reshaping(coordinator, self)
        if options.resume is not None and options.checkpoint_dir is not None:
            self._resolve(options.resume)

    def _resolve(self, wanted: str) -> None:
        directory = self._c.options.checkpoint_dir
        assert directory is not None
        try:
            self.source = find(directory, LATEST if wanted == AUTO else wanted)
        except CheckpointError as error:
            if wanted != AUTO:
                raise CheckpointError(f"--resume {wanted}: {error}") from error
            log.info("nothing to resume, the job starts from the beginning: %s", error)
        else:
            manifest = self.source.manifest
            log.warning("resuming after step %d of run %s", manifest.epoch, manifest.run)

    # What it goes on from

    @property
    def begun_at(self) -> int:
        """The epoch with which the run begins."""
        return 0 if self.source is None else self.source.manifest.epoch

    def misfit(self, shape: Shape) -> str:
        """Why a job of ``shape`` cannot go on from the source, in one line; empty is good."""
        if self.source is None:
            return ""
        try:
            for rank in range(shape.world_size):
                sources(self.source.manifest, shape, rank)
        except CheckpointError as error:
            return str(error)
        return ""

    def first(self, rank: int) -> RestoreOrder | None:
        """What ``rank`` restores before its first step; None: nothing, the run begins at the beginning."""
        shape = self._c.members.shape
        if self.source is None or shape is None:
            return None
        parts = sources(self.source.manifest, shape, rank)
        of, generation = parts[0]
        return RestoreOrder(
            epoch=self.begun_at,
            source=RestoreSource.DISK,
            from_rank=of,
            directory=str(self.source.directory),
            run=self.source.manifest.run,
            part=generation,
            parts=parts if needed(self.source.manifest, shape, rank) else (),
        )

    def holds(self) -> tuple[DiskHold, ...]:
        """The source, as the planner wants it."""
        shape = self._c.members.shape
        if self.source is None or shape is None:
            return ()
        return tuple(DiskHold(rank=rank, epoch=self.begun_at) for rank in range(shape.world_size))

    def order(self, rank: int, epoch: int) -> RestoreOrder:
        """Where a rank finds ``epoch`` on disk: in this run, or in the one that it went on from."""
        first = self.first(rank)
        if first is not None and epoch == self.begun_at:
            return first
        directory = str(self._c.options.checkpoint_dir)
        shape = self._c.members.shape
        peers = [rank] if shape is None else [rank, *shape.dp_peers(rank)]
        of = next((peer for peer in peers if self._own(peer, epoch)), rank)
        return RestoreOrder(epoch=epoch, source=RestoreSource.DISK, from_rank=of, directory=directory, run=self.run)

    def _own(self, rank: int, epoch: int) -> bool:
        inventories = [node.inventory for node in self._c.members.alive() if node.inventory]
        return any((entry.rank, entry.epoch) == (rank, epoch) for held in inventories for entry in held.disk)

    def stand_ins(self, own: Collection[DiskHold]) -> Iterator[DiskHold]:
        """What replicas' parts offer to ranks that write none of their own: the same nodes, the same steps."""
        shape = self._c.members.shape
        if shape is None or not self._copies():
            return
        known = {(hold.rank, hold.epoch) for hold in own}
        for hold in own:
            for peer in shape.dp_peers(hold.rank):
                if (peer, hold.epoch) not in known:
                    yield DiskHold(rank=peer, epoch=hold.epoch, node=hold.node)

    def _copies(self) -> int:
        """Replicas that write, once they are known to be equal. All where a sick one's state may be looked for."""
        options = self._c.options
        hunted = options.on_sick is OnSick.REPLAY or options.replay_every
        return options.disk_copies if self._c.healing.survey.replicated and not hunted else 0

    # What the agents are told

    def configure(self) -> None:
        """Tell all agents of the run, the shape, and what the job has gone back from."""
        shape = self._c.members.shape
        if not self.enabled or shape is None:
            return
        config = DiskConfig(
            run=self.run,
            generation=self._c.generation,
            every=self._c.tuning.disk_every,
            dp=shape.dp,
            pp=shape.pp,
            tp=shape.tp,
            depths=shape.depths,
            copies=self._copies(),
            away=tuple(rank.number for rank in self._c.members.ranks if rank.away),
            returns=self._c.healing.survey.history.returns,
            resumed=None if self.source is None else (self.source.manifest.run, self.begun_at),
        )
        for node in self._c.members.alive():
            node.send(Disk(config=config))

    # The last save

    def worth_saving(self) -> bool:
        """Whether there are steps that a later run would miss."""
        c = self._c
        return self.enabled and c.healing.formed_once and c.members.shape is not None and c.committed > self.begun_at

    async def save_last(self, seconds: float) -> None:
        """Have the newest step written that all ranks (or a replica of each) still have. Ends every rank."""
        c = self._c
        c.generation += 1
        for node in c.members.alive():
            node.inventory = None
            doomed = tuple(rank.number for rank in c.members.on(node.name))
            node.send(FenceNode(generation=c.generation, kill=doomed, last=True))
        nodes = c.members.alive()
        await c.healing.until(lambda: all(n.fenced >= c.generation or not n.alive for n in nodes), FENCE_SECONDS)
        epoch = self.newest(nodes)
        if epoch is None:
            log.error("DEGRADED nothing was saved at the end: no step is held by all ranks")
            return
        problems = await self.write(nodes, epoch, seconds)
        if problems:
            log.error("DEGRADED step %d is perhaps not whole on disk: %s", epoch, "; ".join(problems))
        else:
            log.warning("step %d is on disk: go on from it with --resume %s", epoch, self.run)

    async def write(self, nodes: list[Node], epoch: int, seconds: float) -> list[str]:
        """Have ``epoch`` written by the agents of ``nodes``; what went wrong. No rank may train meanwhile."""
        self.saved.clear()
        here = [node for node in nodes if node.alive]
        orphans = self._orphans(here, epoch)
        for node in here:
            node.send(SaveDisk(epoch=epoch, copies=tuple(sorted(r for r, at in orphans.items() if at is node))))
        done = await self._c.healing.until(lambda: all(n.name in self.saved or not n.alive for n in here), seconds)
        problems = [f"{name}: {reply.problem}" for name, reply in sorted(self.saved.items()) if reply.problem]
        return problems if done else [*problems, f"not all nodes answered within {seconds:g} s"]

    def _orphans(self, nodes: list[Node], epoch: int) -> dict[int, Node]:
        """Ranks whose node is gone -> the one that is to write the copy which it keeps of them."""
        gone = {rank.number for rank in self._c.members.ranks if not self._c.members.nodes[rank.node].alive}
        return {
            slot.rank: node
            for node in nodes
            for slot in (node.inventory.slots if node.inventory else ())
            if slot.rank in gone and slot.epoch == epoch
        }

    def newest(self, nodes: list[Node]) -> int | None:
        """The newest step that all ranks, or a replica of each, hold a sound snapshot of."""
        c, shape = self._c, self._c.members.shape
        assert shape is not None
        survey = c.healing.survey
        limit = c.healing.sound_until
        held: dict[int, set[int]] = {}
        for node in nodes:
            for slot in node.inventory.slots if node.inventory else ():
                sound = limit is None or slot.epoch <= limit
                if slot.verified and sound and survey.history.holds(slot.epoch, slot.generation):
                    held.setdefault(slot.rank, set()).add(slot.epoch)
        return newest_common(held, shape, replicated=bool(survey.replicated))


def newest_common(held: Mapping[int, set[int]], shape: Shape, *, replicated: bool) -> int | None:
    """The newest epoch that every rank holds; where replicas are equal, that replicas of all parts of the model hold.

    Args:
        held: rank -> epochs of its snapshots.
        shape: of the job.
        replicated: whether data-parallel replicas hold the same.
    """
    whole = _common([held.get(rank, set()) for rank in range(shape.world_size)])
    if not replicated:
        return whole
    covered = [
        _common([set().union(*(held.get(peer, set()) for peer in peers)) for peers in model])
        for model in shape.models()
    ]
    return max((epoch for epoch in (whole, *covered) if epoch is not None), default=None)


def _common(sets: list[set[int]]) -> int | None:
    return max(set.intersection(*sets), default=None)
