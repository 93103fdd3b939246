"""The agent's part of a restore from disk: a step's tensors become a slot; replicas on a node share one read."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from mainstay.probes.core_types import validate_name
from mainstay.recovery.agent.errors import CorruptError, NoSuchSlotError
from mainstay.recovery.agent.messages import Fetched, LoadDisk
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart
from mainstay.recovery.checkpoint.slot_reader import Origin, Reuse, SlotReader
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import ArenaError

_Step = tuple[str, str, int]
"""Directory, run, and epoch."""


class CheckpointReader:
    """Loads slots of the ranks of one node."""

    def __init__(self, node: AgentNode) -> None:
        self._node = node
        self._locks: dict[tuple[_Step, tuple[int, ...]], threading.Lock] = defaultdict(threading.Lock)
        """Of each step and place in the pipeline: replicas come one after the other, so that one reads for all."""
        self._loaded: dict[int, tuple[_Step, int, Mapping[str, Origin]]] = {}
        """Rank -> what its slot was read from, and the slot's digest: the step may be made again."""

    def load(self, order: LoadDisk, generation: int, run: str) -> Fetched:
        """Carry out ``LoadDisk``: see ``AgentClient.load_disk``. ``run`` is the one that this agent writes for.

        Raises:
            NoSuchSlotError: the step does not hold the rank.
            CorruptError: a file is missing or damaged.
            LayoutMismatchError: the step holds other tensors than the rank has.
        """
        begun, store = time.perf_counter(), self._node.store
        arena, part = store.arena(order.rank), _part(order)
        source = RunDirectory(Path(order.directory) / order.run)
        step = (order.directory, order.run, order.epoch)
        with self._locks[step, part.shape.cut(part.rank)], store.lock(order.rank):
            slot = arena.choose().slot
            out = arena.begin_write(slot, generation)[: arena.layout.nbytes]
            try:
                reader = SlotReader(source, part, arena.layout)
                reader.read(out, self._replica(order.rank, step))
            except CheckpointError as error:
                raise CorruptError(str(error)) from error
            self._node.meter.add_transfer("disk_read", reader.nbytes, time.perf_counter() - begun)
            # Every tensor has been checked; generations of another run say nothing here.
            since = part.generation if order.run == run else generation
            record = store.accept(order.rank, slot, order.epoch, since, digest(out))
            self._loaded[order.rank] = step, record.digest, reader.origins
        return Fetched(nbytes=record.nbytes, seconds=time.perf_counter() - begun, digest=record.digest)

    def _replica(self, rank: int, step: _Step) -> Reuse:
        """Tensors of the step that another rank's slot has, as long as it is the one that was read."""
        sources: list[tuple[Mapping[str, Origin], Mapping[str, Bytes]]] = []
        for peer, (loaded, found, origins) in list(self._loaded.items()):
            if peer == rank or loaded != step:
                continue
            try:
                arena = self._node.store.arena(peer)
                record = arena.find(step[2])
                arena.check(record)
                if record.digest != found:
                    continue
            except (ArenaError, NoSuchSlotError):
                continue  # overwritten since: the disk has it
            slot = arena.slot_bytes(record.slot)
            sources.append((origins, {t.name: slot[t.offset : t.offset + t.nbytes] for t in arena.layout.tensors}))

        def reuse(name: str, origin: Origin) -> Bytes | None:
            return next((tensors[name] for origins, tensors in sources if origins.get(name) == origin), None)

        return reuse


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
