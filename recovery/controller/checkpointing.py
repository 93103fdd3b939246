"""The coordinator's checkpoints: which run this is, what it continues from, how often it saves, and the last save.

Without ``--checkpoint-interval`` nothing is written until the job ends or cannot continue. Then the newest step in
memory goes to disk, from the healthy replicas that hold it (just-in-time checkpointing, Gupta et al., EuroSys 2024).

Every start of a job is a run of its own. ``--resume`` names a step of an earlier one: then every rank's first order is
to restore it, and until this run has a whole step of its own, that one is what a job that lost everything goes back to.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from mainstay.recovery.agent.messages import Group, GroupMember
from mainstay.recovery.checkpoint.catalog import DOWNLOADS, LATEST, Age, ResumeSource
from mainstay.recovery.checkpoint.file_errors import refusal
from mainstay.recovery.checkpoint.levels import AUTO, find_nearest, named_run
from mainstay.recovery.checkpoint.manifest import CheckpointError, DiskConfig
from mainstay.recovery.checkpoint.reshape import needed, sources
from mainstay.recovery.checkpoint.storage import StorageError
from mainstay.recovery.controller.checkpoint_holders import CheckpointHolders, NodeFiles, StepOnNodes, newest_on_nodes
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.state.events import LastSaveBegun
from mainstay.recovery.membership.members import NodeMember
from mainstay.recovery.memory.records import NO_EPOCH
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.options import NumericAnomalyPolicy
from mainstay.recovery.planner_input import HeldCheckpoint
from mainstay.recovery.protocol.messages import ConfigureCheckpoint, PrefetchCheckpoint, SaveCheckpointCommand
from mainstay.recovery.protocol.worker_messages import RestoreOrder, Shard
from mainstay.recovery.recovery_plan import RestoreSource

log = logging.getLogger("mainstay.coordinator")

FENCE_SECONDS: Final = 10.0
"""To end all ranks and learn what agents hold, before the last save."""
STOP_SECONDS: Final = 20.0
"""For the last save of a job that was told to end: Kubernetes and Slurm kill after 30 s by default."""
END_SECONDS: Final = 600.0
"""The same without a deadline."""
MAX_READERS: Final = 128
"""Replicas that divide a read: more gain nothing, and each order names them all."""


class CheckpointManager:
    """One a coordinator.

    Raises:
        CheckpointError: ``--resume`` names what is not there; one line.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        options = job.options
        self.enabled = options.checkpoint_dir is not None
        self.saved: dict[str, str] = {}
        """Node -> why the last save is not whole there; empty: it is."""
        self.upload_every = 0
        """See ``DiskConfig``, as of the next; a coordinator that takes over learns them again."""
        self.upload_without: tuple[int, ...] = ()
        self.common = NO_EPOCH, NO_EPOCH
        """See ``DiskConfig``."""
        self.once = NO_EPOCH
        """One more step that agents write, as soon as it is committed."""
        self._must_resume = self._prefetched = False
        self.unresolved = ""
        """Why this directory and the upload level do not have what ``--resume`` names, until all nodes are here."""
        self._on_nodes: StepOnNodes | None = None
        self._complete: ResumeSource | None = None
        """An older step than that, for another shape."""
        self.named: ResumeSource | None = None
        """What ``--resume`` names, if this directory or the upload level has it."""
        if options.resume is not None and options.checkpoint_dir is not None:
            self.resolve(options.resume, options.checkpoint_dir)

    def resolve(self, wanted: str, directory: Path, before: Age | None = None) -> None:
        """Begin with what ``--resume`` names, of steps before ``before``. Raises as ``begin_with``."""
        options, self._job.source = self._job.options, None
        self.find = partial(find_nearest, directory, options.checkpoint_upload, named_run(wanted) or LATEST)
        try:
            source = self.find(before)
        except (CheckpointError, StorageError) as error:
            self.unresolved = f"--resume {wanted}: {error}"
            # A directory that cannot be read is not an empty one.
            self._must_resume = wanted != AUTO or isinstance(error, StorageError) or refusal(error) is not None
            if options.max_nodes == 1 and (problem := self.resolve_on_nodes()):
                raise CheckpointError(problem) from error
        else:
            self.begin_with(source)

    def begin_with(self, source: ResumeSource) -> None:
        """Begin with ``source``. A ``CheckpointError`` if it is quantized, and ``--accept-quantized`` is not given."""
        manifest, near = source.manifest, source.manifest.quantized
        if near is not msgspec.UNSET and not self._job.options.accept_quantized:
            raise CheckpointError(
                f"--resume {self._job.options.resume}: step {manifest.epoch} of run {manifest.run} is quantized "
                f"({near}): it does not restore the bits that were saved; continue from it with --accept-quantized"
            )
        self._job.source = self.named = source
        what = "" if near is msgspec.UNSET else f", from near values: {near}"
        log.warning("resuming after step %d of run %s%s", manifest.epoch, manifest.run, what)

    def resolve_on_nodes(self) -> str:
        """All nodes are here: a step counts too that the disks of all give together. Why the job cannot begin."""
        options, source, unresolved = self._job.options, self._job.source, self.unresolved
        self.unresolved = ""
        if options.resume is None or options.checkpoint_dir is None:
            return unresolved if self._must_resume else ""
        found = newest_on_nodes(self._job.members.alive(), named_run(options.resume))
        if not isinstance(found, str):
            newer = source is None or found.age > (source.manifest.run, source.manifest.epoch)
            if newer and (source is None or not found.missing):  # a replica's part has not the rank's random numbers
                self._on_nodes, self._complete = found, source
                self._job.source = ResumeSource(options.checkpoint_dir, found.manifest)
                log.warning("resuming after step %d of run %s, from the disks of all nodes", *reversed(found.age))
        elif unresolved and self._must_resume:
            return f"{unresolved}; {found}"
        elif unresolved:
            log.info("nothing to resume, the job starts from the beginning: %s; %s", unresolved, found)
        return ""

    # What it continues from

    @property
    def _local(self) -> StepOnNodes | None:
        """The source, if it is on the disks of all nodes."""
        found, source = self._on_nodes, self._job.source
        return found if found and source and found.manifest is source.manifest else None

    def incompatibility(self, shape: MeshShape) -> str:
        """Why a job of ``shape`` cannot continue from the source, in one line; empty is good."""
        if self._job.source is None:
            return ""
        if self._local is not None:
            problem = self._local.unlike(shape, self._job.source.directory)
            if not problem or self._complete is None or self._job.state.formed_once:
                return problem
            log.warning("an older step that is complete is taken: %s", problem)
            self._job.source = self._complete
        try:
            for rank in range(shape.world_size):
                sources(self._job.source.manifest, shape, rank)
        except CheckpointError as error:
            return str(error)
        return ""

    @property
    def by_hand(self) -> str:
        """What else can be done with a source that is on the disks of all nodes; empty: it is not."""
        source, local = self._job.source, self._local
        return local.by_hand(source.directory) if source and local else ""

    def prefetch(self) -> None:
        """Have agents read what ranks will restore first, once all agents listen: processes are still starting.

        The shape is known when ranks have called ``init``. Until then the job is taken to have that of the step, with
        another number of replicas perhaps; what was read in vain is replaced.
        """
        job, members, source = self._job, self._job.members, self._job.source
        nodes = [members.nodes[rank.node] for rank in members.ranks]
        joined = all(rank.joined for rank in members.ranks)  # they restore already
        early = not (joined or self._prefetched or job.state.formed_once or job.state.inheriting)
        if source is None or not early or not all(node.endpoint for node in nodes) or job.options.shard_snapshots:
            return
        self._prefetched = True
        old = source.manifest.shape
        dp, left = divmod(len(nodes), old.pp * old.tp)
        shape = old if old.world_size == len(nodes) else MeshShape(dp=dp, pp=old.pp, tp=old.tp)
        if left or (old.depths and shape is not old) or self.incompatibility(shape):
            return
        for rank, node in zip(members.ranks, nodes, strict=True):
            order = self.first(rank.number, shape=shape)
            if order is not None and not order.parts:  # else the rank itself gathers its state
                job.send(node, PrefetchCheckpoint(rank=rank.number, order=order))

    def first(
        self, rank: int, ranks: Container[int] | None = None, *, shape: MeshShape | None = None
    ) -> RestoreOrder | None:
        """What ``rank`` restores before its first step; None: nothing, the run begins at the beginning.

        ``ranks`` restore it too (None: all do), and replicas among them share the reading. ``shape`` stands for the
        job's, which is perhaps not known yet.
        """
        source, shape = self._job.source, shape or self._job.members.shape
        if source is None or shape is None:
            return None
        if self._local is not None:
            local = self._local.order(rank, self._job.members, source.directory)
            return msgspec.structs.replace(local, shards=self.shards(rank))
        parts, directory = sources(source.manifest, shape, rank), source.directory
        of, generation = parts[0]
        return RestoreOrder(
            epoch=self._job.begun_at,
            source=RestoreSource.DISK,
            from_rank=of,
            group=self._readers(rank, shape, ranks),
            cut=not source.manifest.replicated,
            directory=str(directory),
            run=source.manifest.run,
            upload=(self._job.options.checkpoint_upload or "") if directory.name == DOWNLOADS else "",
            part=generation,
            parts=parts if needed(source.manifest, shape, rank) else (),
        )

    def _readers(self, rank: int, shape: MeshShape, ranks: Container[int] | None) -> Group:
        """The nodes that divide the reading of what ``rank`` restores: one of its replicas (in ``ranks``) on each."""
        if self._job.options.shard_snapshots or self._job.options.checkpoint_parity:
            return ()  # slots of replicas are not alike; or each node has a disk of its own
        members, (dp, pp, tp) = self._job.members, shape.place(rank)
        first = dp // MAX_READERS * MAX_READERS
        near = range(first, min(first + MAX_READERS, shape.dp))
        alike = [d for d in near if not shape.depths or shape.depths[d] == shape.depths[dp]]
        peers = [shape.rank_of(dp=d, pp=pp, tp=tp) for d in alike]
        one = {members.ranks[peer].node: peer for peer in peers if ranks is None or peer in ranks}
        group = [
            GroupMember(node=name, endpoint=members.nodes[name].endpoint, rank=peer)
            for name, peer in one.items()
            if members.nodes[name].alive and members.nodes[name].endpoint
        ]
        return tuple(group) if len(group) > 1 else ()

    def holds(self) -> tuple[HeldCheckpoint, ...]:
        """The source, as the planner wants it."""
        shape = self._job.members.shape
        if self._job.source is None or shape is None:
            return ()
        local, members = self._local, self._job.members
        ranks = [r for r in range(shape.world_size) if local is None or local.part_of(r, members)]
        return tuple(HeldCheckpoint(rank=rank, epoch=self._job.begun_at) for rank in ranks)

    def disks(self) -> CheckpointHolders:
        """What nodes with disks of their own have of this run."""
        alive = self._job.members.alive() if self._job.options.checkpoint_parity else ()
        known, holds = [(node, node.inventory) for node in alive if node.inventory], self._job.history.holds
        return CheckpointHolders(
            NodeFiles(node, [e for e in held.disk if holds(e.epoch, e.generation)], held.disk_parity)
            for node, held in known
        )

    def order(self, rank: int, epoch: int, ranks: Container[int], disks: CheckpointHolders) -> RestoreOrder:
        """Where a rank finds ``epoch`` on disk: in this run, or in the one that it continued from.

        ``ranks`` restore it too; see ``first``.
        """
        first = self.first(rank, ranks)
        if first is not None and epoch == self._job.begun_at:
            return first
        shape = self._job.members.shape
        peers = [rank] if shape is None else [rank, *shape.dp_peers(rank)]
        holders = disks.find(rank, epoch, self._job.members.ranks[rank].node)
        of = rank if holders else next((peer for peer in peers if self._own(peer, epoch)), rank)
        return RestoreOrder(
            epoch=epoch,
            source=RestoreSource.DISK,
            from_rank=of,
            group=self._readers(rank, shape, ranks) if shape and self._job.state.parameters_equal else (),
            directory=str(self._job.options.checkpoint_dir),
            run=self._job.state.run,
            shards=self.shards(rank),
            holders=holders,
        )

    def shards(self, rank: int) -> tuple[Shard, ...]:
        """The replicas whose slots ``rank`` needs: where they run in the new generation, because it has begun."""
        members = self._job.members
        if not self._job.options.shard_snapshots or members.shape is None:
            return ()
        peers = [peer for peer in members.shape.dp_peers(rank) if peer != rank]
        return tuple(Shard(rank=r, endpoint=members.nodes[members.ranks[r].node].endpoint) for r in peers)

    def _own(self, rank: int, epoch: int) -> bool:
        inventories = [node.inventory for node in self._job.members.alive() if node.inventory]
        return any((entry.rank, entry.epoch) == (rank, epoch) for held in inventories for entry in held.disk)

    def stand_ins(self, own: Collection[HeldCheckpoint]) -> Iterator[HeldCheckpoint]:
        """What replicas' parts offer to ranks that write none of their own: the same nodes, the same steps."""
        shape = self._job.members.shape
        if shape is None or not self._copies():
            return
        known = {(hold.rank, hold.epoch) for hold in own}
        for hold in own:
            for peer in shape.dp_peers(hold.rank):
                if (peer, hold.epoch) not in known:
                    yield HeldCheckpoint(rank=peer, epoch=hold.epoch, node=hold.node)

    def _copies(self) -> int:
        """Copies that replicas divide among themselves to write, once they are known to be equal.

        0: each writes its whole state, as where a sick one's may be looked for.
        """
        options = self._job.options
        hunted = options.on_numeric_anomaly is NumericAnomalyPolicy.REPLAY or options.step_replay_every
        state, divided = self._job.state, options.shard_snapshots  # divided: slots are shares already
        equal = state.replicated is not None and state.parameters_equal  # buffers are each rank's own
        return options.checkpoint_replicas if equal and not (hunted or divided) else 0

    # Messages to the agents

    def configure(self) -> None:
        """Tell all agents of the run, the shape, and what the job has gone back from."""
        shape = self._job.members.shape
        if not self.enabled or shape is None:
            return
        config = DiskConfig(
            run=self._job.state.run,
            generation=self._job.state.generation,
            every=self._job.state.disk_every,
            once=self.once,
            **asdict(shape),
            copies=self._copies(),
            encoding=self._job.options.checkpoint_encoding,
            replicated=bool(self._job.state.replicated) and not self._job.options.shard_snapshots,
            parity=self._job.options.checkpoint_parity,
            away=tuple(rank.number for rank in self._job.members.ranks if rank.away),
            returns=self._job.history.returns,
            resumed=None if self._job.source is None else (self._job.source.manifest.run, self._job.begun_at),
            upload_every=self.upload_every,
            upload_without=self.upload_without,
            common=() if self.common == (NO_EPOCH, NO_EPOCH) else self.common,
        )
        self._job.broadcast(ConfigureCheckpoint(config=config))

    # The last save

    def should_save(self) -> bool:
        """Whether there are steps that a later run would miss."""
        job, state = self._job, self._job.state
        return self.enabled and state.formed_once and job.members.shape is not None and state.committed > job.begun_at

    async def save_last(self, seconds: float) -> None:
        """Have the newest step written that all ranks (or a replica of each) still have. Ends every rank."""
        job, nodes = self._job, self._job.members.alive()
        job.apply(LastSaveBegun())
        await job.until(lambda: all(n.fenced >= job.state.generation or not n.alive for n in nodes), FENCE_SECONDS)
        epoch = self.newest(nodes)
        if epoch is None:
            quantized = "; --resume --accept-quantized continues from a quantized step"
            hint = "" if job.options.recovers_from_disk else quantized
            log.error("DEGRADED nothing was saved at the end: no step is held by all ranks%s", hint)
            return
        problems = await self.write(nodes, epoch, seconds)
        if problems:
            log.error("DEGRADED step %d is perhaps not whole on disk: %s", epoch, "; ".join(problems))
        else:
            log.warning("step %d is on disk: continue from it with --resume %s", epoch, self._job.state.run)

    async def write_newest(self, seconds: float) -> tuple[int, str]:
        """Have the newest step written that all ranks hold; it, and why it is not on disk: empty, it is."""
        nodes = self._job.members.alive()
        epoch = self.newest(nodes)
        if epoch is None:
            return 0, "no step is held by all ranks"
        return epoch, "; ".join(await self.write(nodes, epoch, seconds))

    async def write(self, nodes: list[NodeMember], epoch: int, seconds: float) -> list[str]:
        """Have ``epoch`` written by the agents of ``nodes``; what went wrong.

        No rank may train meanwhile, unless its part is on disk already: then this waits for what completes the step.
        """
        self.saved.clear()
        here = [node for node in nodes if node.alive]
        orphans = self._orphans(here, epoch)
        for node in here:
            copies = tuple(sorted(r for r, at in orphans.items() if at is node))
            self._job.send(node, SaveCheckpointCommand(epoch=epoch, copies=copies))
        done = await self._job.until(lambda: all(n.name in self.saved or not n.alive for n in here), seconds)
        problems = [f"{name}: {problem}" for name, problem in sorted(self.saved.items()) if problem]
        return problems if done else [*problems, f"not all nodes answered within {seconds:g} s"]

    def _orphans(self, nodes: list[NodeMember], epoch: int) -> dict[int, NodeMember]:
        """Ranks whose node is gone -> the one that is to write the copy which it keeps of them."""
        gone = {rank.number for rank in self._job.members.ranks if not self._job.members.nodes[rank.node].alive}
        return {
            slot.rank: node
            for node in nodes
            for slot in (node.inventory.slots if node.inventory else ())
            if slot.rank in gone and slot.epoch == epoch
        }

    def newest(self, nodes: list[NodeMember]) -> int | None:
        """The newest step that all ranks, or a replica of each, hold a sound snapshot of."""
        job, shape = self._job, self._job.members.shape
        assert shape is not None
        limit = None if job.recovery is None else job.recovery.before
        held: dict[int, set[int]] = {}
        for node in nodes:
            for slot in node.inventory.slots if node.inventory else ():
                sound = limit is None or slot.epoch <= limit
                if slot.verified and sound and job.history.holds(slot.epoch, slot.generation):
                    held.setdefault(slot.rank, set()).add(slot.epoch)
        alike = bool(job.state.replicated) and not job.options.shard_snapshots
        return shape.newest_common(held, replicated=alike)
