"""The agent's part of a restore from disk: a step's tensors become a slot, and replicas share one read.

Replicas on a node take what one of them reads, tensor by tensor; nodes divide the reading (``checkpoint_exchange``). A
slot that was read before its rank asks for it, while the rank's process was starting, is not read again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mainstay.probes.core_types import validate_name
from mainstay.recovery.agent import checkpoint_exchange
from mainstay.recovery.agent.checkpoint_exchange import CheckpointExchange
from mainstay.recovery.agent.errors import CorruptError, NoSuchSlotError
from mainstay.recovery.agent.messages import Fetched, LoadDisk
from mainstay.recovery.agent.node import AgentConnection, AgentNode
from mainstay.recovery.agent.peer_messages import PENDING, CheckpointStep, ReadCheckpointTensors
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart
from mainstay.recovery.checkpoint.reshape import GatherReader
from mainstay.recovery.checkpoint.slot_reader import Origin, PartReader, ReadyTensors, Reuse, SlotReader, slot_layout
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import SlotRecord


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a rank's slot was read from, or is being read from."""

    step: CheckpointStep
    part: tuple[int, int]
    """Rank and generation."""
    slot: int
    origins: Mapping[str, Origin]
    ready: ReadyTensors
    digest: int | None = None
    """Of the slot: the step may be made again. None: it is being read, or was given up."""


class CheckpointReader:
    """Loads slots of the ranks of one node."""

    def __init__(self, node: AgentNode) -> None:
        self._node = node
        self._loaded: dict[int, _Loaded] = {}
        self._exchanges: dict[CheckpointStep, CheckpointExchange] = {}
        self._begun = threading.Condition()
        """An exchange was added. Held by who begins to read, so that those who come later take what it reads."""

    def load(self, order: LoadDisk, generation: int, run: str) -> Fetched:
        """Carry out ``LoadDisk``: see ``AgentClient.load``. ``run`` is the one that this agent writes for.

        Raises:
            NoSuchSlotError: the step does not hold the rank.
            CorruptError: a file is missing or damaged.
            LayoutMismatchError: the step holds other tensors than the rank has.
        """
        begun, store, part = time.perf_counter(), self._node.store, _part(order)
        source = RunDirectory(Path(order.directory) / order.run)
        gather = order.gather
        cut = (gather.stages, gather.replica) if gather else part.shape.cut(part.rank)
        step = CheckpointStep(run=order.run, epoch=order.epoch, cut=cut)
        if order.open:
            self._open(order, source, part)
        with store.lock(order.rank):
            record, loaded = self._find(order.rank, step, part), self._loaded.get(order.rank)
            if record is None and order.open and loaded and loaded.step == step:
                raise NoSuchSlotError(f"rank {order.rank} came first, and writes into its slots")
            if record is None:
                # Generations of another run say nothing here.
                since = part.generation if order.run == run else generation
                reader = _reader(order, source, part, store.arena(order.rank).layout)
                record = self._read(order, reader, step, (generation, since))
            return Fetched(nbytes=record.nbytes, seconds=time.perf_counter() - begun, digest=record.digest)

    def serve(self, caller: AgentConnection, request: ReadCheckpointTensors) -> None:
        """Give another node tensors that this one reads; this node's order to read may still be on its way."""
        with self._begun:
            self._begun.wait_for(lambda: request.step in self._exchanges, checkpoint_exchange.WAIT_SECONDS)
            exchange = self._exchanges.get(request.step)
        if exchange is None:
            checkpoint_exchange.send(caller, [PENDING] * len(request.tensors), [])
        else:
            exchange.serve(caller, request)

    def _open(self, order: LoadDisk, source: RunDirectory, part: CheckpointPart) -> None:
        try:
            # The rank itself may have come, with another layout.
            self._node.store.open(order.rank, slot_layout(source, part), replace=False)
        except CheckpointError as error:
            raise CorruptError(str(error)) from error

    def _find(self, rank: int, step: CheckpointStep, part: CheckpointPart | None = None) -> SlotRecord | None:
        """The slot that was read from ``part`` of ``step``, digested again; without ``part`` from any, and not."""
        loaded = self._loaded.get(rank)
        if loaded is None or loaded.step != step or (part and loaded.part != (part.rank, part.generation)):
            return None
        try:
            arena = self._node.store.arena(rank)
            record = arena.find(step.epoch)
            if part:
                arena.check(record)
        except (ArenaError, NoSuchSlotError):
            return None  # overwritten since: the disk has it
        return record if record.digest == loaded.digest else None

    def _read(self, order: LoadDisk, reader: SlotReader, step: CheckpointStep, since: tuple[int, int]) -> SlotRecord:
        """Fill a slot; ``since`` are the generations that write and that are written down."""
        begun, store = time.perf_counter(), self._node.store
        arena, (generation, committed) = store.arena(order.rank), since
        slot = arena.choose().slot
        out = arena.begin_write(slot, generation)[: arena.layout.nbytes]
        of = (reader.part.rank, reader.part.generation)
        exchange = None
        try:
            loaded = _Loaded(step, of, slot, reader.origins, reader.ready)
            with self._begun:
                replicas = self._replicas(order.rank, step)
                self._loaded[order.rank] = loaded
                if order.group and not replicas:
                    exchange = self._exchanges[step] = CheckpointExchange(
                        self._node, step, order.group, generation=generation, arena=arena, slot=slot, ready=reader.ready
                    )
                    self._begun.notify_all()
            found = reader.read(out, _reuse(replicas), exchange.read if exchange else None)
            if store.arena(order.rank) is not arena:
                raise NoSuchSlotError(f"rank {order.rank} has other tensors than its part of step {order.epoch}")
            moved = arena.layout.nbytes if exchange else reader.nbytes
            self._node.meter.add_transfer("disk_read", moved, time.perf_counter() - begun)
            record = store.accept(order.rank, slot, order.epoch, committed, found, digested=True)
            self._loaded[order.rank] = replace(loaded, digest=record.digest)
        except CheckpointError as error:
            raise CorruptError(str(error)) from error
        finally:
            reader.ready.finish()
        return record

    def _replicas(self, rank: int, step: CheckpointStep) -> list[_Replica]:
        """Tensors of the step that other ranks' slots on this node have, or will; who copies one compares digests."""
        found: list[_Replica] = []
        for peer, loaded in list(self._loaded.items()):
            reading = loaded.digest is None and loaded.step == step and not loaded.ready.over
            if peer != rank and (reading or self._find(peer, step)):
                with contextlib.suppress(NoSuchSlotError):
                    arena = self._node.store.arena(peer)
                    slot = arena.slot_bytes(loaded.slot)
                    tensors = {t.name: slot[t.offset : t.offset + t.nbytes] for t in arena.layout.tensors}
                    found.append((loaded, tensors))
        return found


_Replica = tuple[_Loaded, Mapping[str, Bytes]]


def _reuse(replicas: list[_Replica]) -> Reuse:
    def find(name: str, origin: Origin) -> tuple[Bytes, int] | None:
        for loaded, have in replicas:
            if name in have and loaded.origins.get(name) == origin and (found := loaded.ready.wait(name)) is not None:
                return have[name], found
        return None

    return find


def _reader(order: LoadDisk, run: RunDirectory, part: CheckpointPart, layout: Layout) -> SlotReader:
    gather = order.gather
    if gather is None:
        return PartReader(run, part, layout)
    try:
        return GatherReader(run, order.epoch, gather.parts, layout, gather.slices, stages=gather.stages)
    except CheckpointError as error:
        raise CorruptError(str(error)) from error


def _part(order: LoadDisk) -> CheckpointPart:
    """The part that is asked for; of several the one of the newest generation.

    Raises:
        NoSuchSlotError, CorruptError.
    """
    run = RunDirectory(Path(order.directory) / validate_name(order.run, "run"))
    of = order.rank if order.from_rank is None else order.from_rank
    found = [p.generation for p in run.parts(order.epoch) if p.rank == of and order.generation in {0, p.generation}]
    if not found:
        raise NoSuchSlotError(f"{run.step(order.epoch)} does not hold rank {of}")
    try:
        return run.part(order.epoch, of, max(found))
    except CheckpointError as error:
        raise CorruptError(str(error)) from error
