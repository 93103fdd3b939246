"""This rank's snapshot memory, as the training loop needs it: save, settle, restore, and continue when it fails.

Losing protection never stops training: the rank reports it once and trains on with what is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.messages import GatherParts
from mainstay.recovery.agent.peer import Credentials
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.levels import fetch_parts
from mainstay.recovery.checkpoint.reshape import PartOf, gather
from mainstay.recovery.job_tls import JobTls
from mainstay.recovery.memory import dtensor
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError, FencedError, SlotMissingError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.shard import RestorableState, ShardedState
from mainstay.recovery.memory.slot_copy import Piece
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.memory.state import TrainerState, restore
from mainstay.recovery.protocol.worker_messages import Assign, RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.sdk.shard_gather import ShardGather

log = logging.getLogger("mainstay.sdk")

RestoreError = (AgentError, ArenaError, OSError, ValueError)
"""What may go wrong while a slot is brought back; the coordinator then plans again without that source."""


AGENT_SECONDS = 10.0
"""For a node's agent to listen. It starts with the launcher and imports less, but a busy node may run it last."""
_POLL_SECONDS = 0.02


def _wait_for(socket: Path) -> None:
    """Until the agent listens there, or never will."""
    until = time.monotonic() + AGENT_SECONDS
    while not socket.exists() and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


class _Stash:
    """A source that remembers what it gave out last: the newest epoch's own buffers, random numbers and scalars.

    A survivor that repeats a step still has its parameters, but the failed attempt has moved these on.
    """

    def __init__(self, state: RestorableState) -> None:
        self.state = state
        self._pieces: Mapping[str, Piece] = {}

    @property
    def layout(self) -> Layout:
        return self.state.layout

    def capture(self) -> None:
        self._pieces = self.state.freeze()

    def freeze(self) -> Mapping[str, Piece]:
        return self._pieces

    def rewind(self) -> None:
        if self._pieces:
            self.state.rewind(self._pieces)


class SnapshotSession:
    """The arena, the writer that fills it, and the agent that owns it. All calls belong to the training thread."""

    def __init__(
        self,
        assignment: Assign,
        generation: int,
        state: RestorableState,
        *,
        replicas: Sequence[int] | None = None,
        stages: int = 1,
    ) -> None:
        """Find this rank's memory.

        Args:
            assignment: of this rank.
            generation: that it is in.
            state: what is saved.
            replicas: the ranks that hold the same, with this one; with ``assignment.shard_snapshots`` each saves a
                part.
            stages: of the job's pipelines.
        """
        self._stages = stages
        self._replicas = tuple(replicas or ())
        self.sharded: ShardedState | None = None
        """The state as it is cut, where it is."""
        if assignment.shard_snapshots and len(self._replicas) > 1:
            self.sharded = ShardedState(state, self._replicas.index(assignment.rank), len(self._replicas))
        self.state: RestorableState = self.sharded or state
        self._whole = state
        self._stash = _Stash(self.state)
        self.problem = ""
        """Why nothing is saved at the moment; empty is good."""
        self._rank = assignment.rank
        self._generation = generation
        self.agent = AgentClient(Path(assignment.agent_socket), job=assignment.job, generation=generation)
        self._assignment = assignment
        self._writer: SnapshotWriter | None = None
        self._inode = 0
        self.slots = 0
        _wait_for(Path(assignment.agent_socket))
        self.open()

    @property
    def state_bytes(self) -> int:
        return self.state.layout.nbytes

    def open(self) -> None:
        """Find or make the arena; again after the agent had to be replaced, because its memory may be another."""
        try:
            info = self.agent.open_arena(self._rank, self.state.layout)
            inode = Path(info.path).stat().st_ino
            if self._writer is not None and inode == self._inode:
                return
            arena = Arena.attach(Path(info.path))
            if self._writer is not None:
                self._writer.close()
            if isinstance(self._whole, TrainerState):
                self._whole.mapped(arena.data)
            self._inode = inode
            self._writer = SnapshotWriter(arena, self._stash, on_committed=self._committed)
        except (AgentError, ArenaError, OSError) as error:
            self._lose(f"no snapshot memory: {error}")
            return
        self.slots = info.slots
        self.problem = ""

    def enter(self, generation: int) -> None:
        """The rank is in ``generation`` now. What it could not have in the last one it may have in this."""
        self._generation = self.agent.generation = generation
        if self._writer is None:
            self.open()

    def save(self, epoch: int) -> None:
        """Begin to copy the state of ``epoch``; it must not change until ``settle``."""
        if epoch == 0:  # again, after a first step that failed
            self._stash.rewind()
        self._stash.capture()
        if self._writer is None:
            return
        try:
            self._writer.start(epoch, self._generation)
        except FencedError:
            return  # the generation is over; the next one begins with a snapshot of its own
        except ArenaError as error:
            self._lose(str(error))
        else:
            self.problem = ""

    def settle(self) -> float:
        """Wait until the copy under way is committed; seconds blocked."""
        if self._writer is None:
            return 0.0
        try:
            return self._writer.wait()
        except FencedError:
            pass
        except (ArenaError, ValueError) as error:  # ValueError: the state has grown tensors since it was attached
            self._lose(str(error))
        return 0.0

    def forget(self, epoch: int) -> None:
        """Drop the slots of later epochs than ``epoch``: a new run must not be mixed with an older one."""
        if self._writer is not None:
            self._writer.rollback(epoch)

    def close(self) -> None:
        """Finish the copy under way and hang up. The slots stay with the agent."""
        if self._writer is not None:
            self._writer.close()
        self.agent.close()

    def holds(self, epoch: int) -> bool:
        """Whether a committed slot of ``epoch`` is here."""
        try:
            self._arena.find(epoch)
        except SlotMissingError:
            return False
        return True

    def restore(self, order: RestoreOrder) -> int:
        """Bring the state of ``order.epoch`` into the live tensors; bytes that moved. Anything of ``RestoreError``."""
        self.settle()
        if order.source is RestoreSource.LIVE:
            self._stash.rewind()
            nbytes = 0
        elif parts := self._download(order):
            nbytes = self._reshape(order, parts)
            self._stash.capture()
        else:
            self._bring(order)
            nbytes = self._load(order)
            self._stash.capture()
        self.forget(order.epoch)
        return nbytes

    def _bring(self, order: RestoreOrder) -> None:
        """Have the agent put the slot into this rank's arena, unless it is there already."""
        if order.source is RestoreSource.PEER_COPY:
            assert order.from_rank is not None
            assert order.endpoint is not None
            self.agent.fetch(self._rank, order.epoch, order.from_rank, order.endpoint)
        elif order.source is RestoreSource.PARITY:
            self.agent.rebuild(self._rank, order.epoch, order.group)
        elif order.source is RestoreSource.DISK:
            self.agent.load(order.disk_request(self._rank))

    def _download(self, order: RestoreOrder) -> tuple[PartOf, ...]:
        """See ``_parts``; what these need of the upload level is in the directory then."""
        if not order.upload or order.directory is None:
            return self._parts(order)
        step = (Path(order.directory), order.upload, order.run, order.epoch)
        fetch_parts(*step, order.parts or [(self._rank if order.from_rank is None else order.from_rank, order.part)])
        parts = self._parts(order)
        if parts:
            fetch_parts(*step, parts)
        return parts

    def _parts(self, order: RestoreOrder) -> tuple[PartOf, ...]:
        """The parts that the state is gathered from; none: the agent restores the slot.

        The order names them where the job has another shape. A script that cuts its state otherwise than the one that
        saved it (DDP before, FSDP2 now) only the rank itself can tell.
        """
        if order.parts or order.source is not RestoreSource.DISK or not order.part:
            return order.parts  # without a part it was saved as it is cut now
        assert order.directory is not None
        run, rank = RunDirectory(Path(order.directory) / order.run), self._rank
        manifest = run.manifest(order.epoch)
        kept = {part.rank: part.generation for part in manifest.parts}
        of = rank if order.from_rank is None else order.from_rank
        own = run.part(order.epoch, of, order.part)
        places = {tensor.name: tensor.place for tensor in own.tensors if tensor.place is not None}
        alike = own.layout_digest == self._whole.layout.digest and places == self._whole.slices
        if self.sharded is None and alike:
            return ()
        others = ((peer, made) for peer, made in kept.items() if peer != own.rank)
        return ((own.rank, own.generation), *(others if manifest.sliced or manifest.needs_all else ()))

    def _reshape(self, order: RestoreOrder, parts: Sequence[PartOf]) -> int:
        """From parts that were saved in another shape to the live tensors. Bytes moved.

        Through the agent, which shares the reading with replicas; past it where these need something else each, or a
        slot is not the whole state.
        """
        if self._writer is not None and self.sharded is None and self._are_alike():
            first, slices = min(self._replicas, default=self._rank), dict(self._whole.slices)
            how = GatherParts(parts=tuple(parts), slices=slices, stages=self._stages, replica=first)
            self.agent.load(order.disk_request(self._rank, gather=how))
            return self._load(order)
        assert order.directory is not None
        run = RunDirectory(Path(order.directory) / order.run)
        arrays = gather(run, order.epoch, parts, self._whole.layout, self._whole.slices, stages=self._stages)
        self._whole.load(arrays)
        return sum(array.nbytes for array in arrays.values())

    def _are_alike(self) -> bool:
        """Whether replicas hold the same: with FSDP2, each has other rows."""
        whole = self._whole
        return not (isinstance(whole, TrainerState) and dtensor.is_cut_among(whole.model.parameters(), self._replicas))

    def _load(self, order: RestoreOrder) -> int:
        """From this rank's slot to the live tensors; where each replica saves a part, with theirs. Bytes moved."""
        if self.sharded is None:
            return restore(self._arena, order.epoch, self.state)
        others = {shard.rank: shard for shard in order.shards}
        missing = set(self._replicas) - others.keys() - {self._rank}
        if missing:
            raise ValueError(f"the order for rank {self._rank} does not say where ranks {sorted(missing)} are")
        replicas = [others.get(rank) if rank != self._rank else None for rank in self._replicas]
        shown = Credentials(JobTls(self._assignment.snapshot_certificate), self._assignment.job, self._generation)
        return self.state_bytes + ShardGather(self.sharded, order.epoch, replicas, shown).restore(self._arena)

    @property
    def _arena(self) -> Arena:
        if self._writer is None:
            raise SlotMissingError(f"rank {self._rank} has no snapshot memory: {self.problem}")
        return self._writer.arena

    def _committed(self, epoch: int, generation: int, slot: int) -> None:
        self.agent.committed(self._rank, epoch, generation, slot)

    def _lose(self, problem: str) -> None:
        if problem != self.problem:
            log.error("DEGRADED rank %d trains without protection: %s", self._rank, problem)
        self.problem = problem
