"""One read of a checkpoint for the nodes of a data-parallel group: each reads a part of it, and all exchange the parts.

The tensors that replicas hold alike are divided among the nodes. Each node reads its tensors from disk and takes the
others from the nodes that read them, at the same time: an all-gather. Disks and networks carry one replica between
them, with any number of nodes. MegaScale (NSDI 2024, section 4.4) has one reader, whose network sends everything.

A tensor counts with its digest, which who read it has checked against the disk's. What a node does not have, or not in
time, is read from disk: a lost node costs its part of the reading, and a rank's own tensors (random numbers) are
nowhere else.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from mainstay.recovery.agent.errors import AgentError, CorruptError, NoSuchSlotError
from mainstay.recovery.agent.messages import Group, GroupMember
from mainstay.recovery.agent.node import AgentConnection, AgentNode
from mainstay.recovery.agent.peer import Peer
from mainstay.recovery.agent.peer_messages import (
    ABSENT,
    PENDING,
    CheckpointStep,
    CheckpointTensors,
    ReadCheckpointTensors,
)
from mainstay.recovery.checkpoint.slot_reader import Origin, ReadAll, ReadyTensors
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.layout import TensorSpec

WAIT_SECONDS: Final = 4.0
"""That a request waits for tensors that are still being read: less than ``peer.STALL_SECONDS``."""
PATIENCE_SECONDS: Final = 20.0
"""A node from which no tensor came for this long is not waited for: the disk has them all."""
STREAMS: Final = 4
"""Nodes asked at a time."""
BATCH_BYTES: Final = 16 * 1024 * 1024
BATCH_TENSORS: Final = 1000
"""Names of as many fit into a message."""

log = logging.getLogger("mainstay.agent")


class CheckpointExchange:
    """What this node has read of a step, for the others of ``group``, and what it takes from them.

    Args:
        node: this one.
        step: that is read.
        group: one rank of each node that reads the step, this one included; alike on all.
        generation: on whose behalf.
        arena: where the slot is.
        slot: that is filled.
        ready: its tensors that are there.
    """

    def __init__(
        self, node: AgentNode, step: CheckpointStep, group: Group, *, generation: int, arena: Arena, slot: int,
        ready: ReadyTensors,
    ) -> None:  # fmt: skip
        self._node, self._step, self._group, self._generation = node, step, group, generation
        self._arena, self._slot = weakref.ref(arena), slot  # an arena that was replaced gives its memory back
        self._specs = arena.layout.specs()
        self._origins: dict[str, int] = {}
        self._mine: set[str] = set()
        self._ready = ready

    # What this node reads

    def read(self, tensors: Sequence[TensorSpec], origins: Mapping[str, Origin], read: ReadAll) -> None:
        """Fill ``tensors`` of the slot: those that are this node's to read by ``read``, and what the others lack."""
        with self._ready.changed:
            self._origins = {name: digest(msgspec.msgpack.encode(origin)) for name, origin in origins.items()}
            shares = list(zip(self._group, divide(tensors, len(self._group)), strict=True))
            mine = next((share for member, share in shares if member.node == self._node.settings.node), [])
            self._mine = {spec.name for spec in mine}
            self._ready.changed.notify_all()
        others = [(member, share) for member, share in shares if share is not mine]
        with ThreadPoolExecutor(STREAMS, thread_name_prefix="checkpoint-exchange") as pool:
            try:
                tasks = [pool.submit(self._fetch, member, share) for member, share in others]
                list(read(mine))
                list(read([spec for task in tasks for spec in task.result()]))
            except BaseException:  # boundary: after any failure, those who fetch must stop
                self._ready.finish()
                raise

    def _tensor(self, name: str) -> Bytes:
        arena, spec = self._arena(), self._specs[name]
        if arena is None:
            raise NoSuchSlotError(f"the slot that was read of {self._step.run} is gone")
        return arena.slot_bytes(self._slot)[spec.offset : spec.offset + spec.nbytes]

    # What others read

    def _fetch(self, member: GroupMember, wanted: Sequence[TensorSpec]) -> list[TensorSpec]:
        """Take tensors from the node that reads them; those that did not come."""
        try:
            with self._node.peer(member.endpoint, self._generation) as peer:
                for batch in _batches(wanted):
                    self._fetch_batch(peer, batch)
        except AgentError as error:
            log.warning("node %s gives no tensors of %s: %s", member.node, self._step.run, error)
        return [spec for spec in wanted if spec.name not in self._ready.digests]

    def _fetch_batch(self, peer: Peer, batch: Sequence[TensorSpec]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while batch and not self._ready.over and time.monotonic() < until:
            wanted = tuple((spec.name, self._origins[spec.name]) for spec in batch)
            header = peer.call(ReadCheckpointTensors(step=self._step, tensors=wanted), CheckpointTensors)
            states = list(zip(batch, header.states, strict=False))  # what it does not answer is read from disk
            came = {spec.name: state for spec, state in states if state >= 0}
            if header.nbytes != sum(spec.nbytes for spec in batch if spec.name in came):
                raise CorruptError(f"{peer.endpoint} announced {header.nbytes} bytes, which its tensors do not have")
            for name in came:
                peer.receive_into(self._tensor(name))
            peer.finish()
            for name, expected in came.items():
                if digest(self._tensor(name)) == expected:
                    self._ready.put(name, expected)
            batch = [spec for spec, state in states if state == PENDING]
            until = time.monotonic() + PATIENCE_SECONDS if came else until

    # What others ask

    def states(self, wanted: Sequence[tuple[str, int]]) -> list[int]:
        """Digests of tensors, by name and origin; waits a while for what is still being read."""

        def now() -> list[int]:
            return [self._state(name, origin) for name, origin in wanted]

        with self._ready.changed:
            self._ready.changed.wait_for(lambda: PENDING not in now(), WAIT_SECONDS)
            return now()

    def _state(self, name: str, origin: int) -> int:
        if (self._origins or self._ready.over) and self._origins.get(name) != origin:
            return ABSENT
        # Ranks of unlike layouts divide unlike, and must not wait for each other.
        waits = not self._ready.over and (name in self._mine or not self._origins)
        return self._ready.digests.get(name, PENDING if waits else ABSENT)

    def serve(self, caller: AgentConnection, request: ReadCheckpointTensors) -> None:
        """Header, bytes, tail. Whoever asks compares digests: a slot that was overwritten since shows there."""
        states = self.states(request.tensors)
        tensors = [self._tensor(name) for (name, _), state in zip(request.tensors, states, strict=True) if state >= 0]
        send(caller, states, tensors)


def send(caller: AgentConnection, states: Sequence[int], tensors: Sequence[Bytes]) -> None:
    """Answer ``ReadCheckpointTensors``."""
    bulk = caller.open_bulk()
    nbytes = sum(len(tensor) for tensor in tensors)
    caller.begin_transfer(CheckpointTensors(seal=bulk.seal, states=tuple(states), nbytes=nbytes))
    for tensor in tensors:
        bulk.send(tensor)
    caller.end_transfer(bulk, "")


def divide(tensors: Sequence[TensorSpec], count: int) -> list[list[TensorSpec]]:
    """``tensors`` in ``count`` parts of about equal bytes; the same on every node that has the same layout.

    Each part is one run of them: a kernel that reads ahead (8 MiB and more) reads little that another node reads.
    """
    parts: list[list[TensorSpec]] = [[] for _ in range(count)]
    at, total = 0, max(1, sum(spec.nbytes for spec in tensors))
    for spec in tensors:
        parts[min(count - 1, (at + spec.nbytes // 2) * count // total)].append(spec)
        at += spec.nbytes
    return parts


def _batches(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    batch: list[TensorSpec] = []
    for spec in specs:
        batch.append(spec)
        if len(batch) == BATCH_TENSORS or sum(one.nbytes for one in batch) >= BATCH_BYTES:
            yield batch
            batch = []
    yield batch
