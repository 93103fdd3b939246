"""What one member does for an epoch of its group: its parity rows, or its copies of the others' slots.

A share is made for one attempt and forgotten; everything that lasts lies in arenas.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.messages import Group
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.agent.parity_store import ParityMember, ParityRowKey
from mainstay.recovery.agent.peer import Peer
from mainstay.recovery.agent.peer_messages import Head, ReadHead, ReadRow, ReadSlot, RowState
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.agent.streams import Stripe, ask_slot, combine
from mainstay.recovery.agent.transfer import answer_head, copy_slot
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.placement import holders
from mainstay.recovery.protection_scheme import ProtectionScheme, SchemeKind

_NOT_KEPT: Final = 0
"""Instead of a digest, for members of which no copy is kept. A digest of 0 would only be copied once more."""


History = tuple[int, int]
"""How often the groups were changed, and the job has gone back."""


@dataclass(frozen=True, slots=True)
class ProtectionTask:
    """An epoch of a local rank that is to be protected."""

    rank: int
    arena: Arena
    epoch: int
    members: Group
    scheme: ProtectionScheme
    history: History
    """When the task was made."""

    @property
    def subject(self) -> str:
        return f"parity of rank {self.rank}"

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(member.rank for member in self.members)

    @property
    def place(self) -> int:
        return self.ranks.index(self.rank)


class ProtectionWork(ABC):
    """One attempt at one task. Call in the order in which the methods stand."""

    def __init__(self, node: AgentNode, task: ProtectionTask, stack: ExitStack) -> None:
        self.node = node
        self.task = task
        generation = node.store.config.generation
        self.peers: dict[int, Peer] = {
            place: stack.enter_context(node.peer(member.endpoint, generation))
            for place, member in enumerate(task.members)
            if place != task.place
        }
        self.heads = [self._head(place) for place in range(len(task.members))]

    def _head(self, place: int) -> Head:
        request = ReadHead(rank=self.task.ranks[place], epoch=self.task.epoch)
        if place == self.task.place:
            return answer_head(self.node.store, request)
        return self.peers[place].call(request, Head)

    def is_superseded(self) -> bool:
        """Whether a member does not have the epoch any more."""
        return any(not head.present and head.newest > self.task.epoch for head in self.heads)

    def ready(self) -> bool:
        """Whether every member has it."""
        return all(head.present for head in self.heads)

    @abstractmethod
    def make(self) -> None:
        """Make what this member keeps, unless it is there."""

    def everywhere(self) -> bool:
        """Whether the other members have made theirs, of the same slots."""
        return all(self._state_of(place).digests == self.expected(place) for place in self.peers)

    @abstractmethod
    def expected(self, place: int) -> tuple[int, ...]:
        """The digests that member ``place`` names once it has made its part."""

    @abstractmethod
    def complete(self) -> None:
        """The epoch is protected in the whole job: release what is older."""

    def _state_of(self, place: int) -> RowState:
        wanted = ReadRow(ranks=self.task.ranks, place=place, epoch=self.task.epoch)
        return self.peers[place].call(wanted, RowState)


class ParityWork(ProtectionWork):
    """Rows of a rotated code; see ``parity.Geometry``."""

    def __init__(self, node: AgentNode, task: ProtectionTask, stack: ExitStack) -> None:
        super().__init__(node, task, stack)
        size = len(task.members)
        self.key = ParityRowKey(task.ranks, task.place)
        self.geometry = Geometry(size, task.scheme.fitted(size).tolerance)

    def expected(self, place: int) -> tuple[int, ...]:  # noqa: ARG002 - every row covers all members
        return tuple(head.digest for head in self.heads)

    def make(self) -> None:
        with contextlib.suppress(AgentError, ArenaError):  # not made yet, or damaged
            row = self.node.rows.find(self.key, self.task.epoch)
            if row.digests == self.expected(self.task.place) and row.parity == self.geometry.parity:
                return
        self._encode()

    def _encode(self) -> None:
        """Each row: the stripes of the members that its codeword covers, times the code's coefficients."""
        geometry, task, rows = self.geometry, self.task, self.node.rows
        size = geometry.stripe_bytes(max(head.slot_nbytes for head in self.heads))
        arena, slot, out = rows.begin_row(self.key, geometry.parity, size)
        begun, total = time.perf_counter(), 0
        for number, word in enumerate(geometry.rows_of(task.place)):
            stripes = [
                self._stripe(place, word, size, int(geometry.code.rows[number, index]))
                for index, place in enumerate(geometry.data_places(word))
            ]
            combine(stripes, out[number])
            for stripe in stripes:
                stripe.peer.finish()
            total += sum(stripe.nbytes for stripe in stripes)
        parts = tuple(
            ParityMember(rank, head.slot_nbytes, head.digest, head.layout_digest, head.generation)
            for rank, head in zip(task.ranks, self.heads, strict=True)
        )
        rows.commit(arena, slot, task.epoch, geometry.parity, parts)
        self.node.meter.add_transfer("xor", total, time.perf_counter() - begun)

    def _stripe(self, place: int, word: int, size: int, coefficient: int) -> Stripe:
        head = self.heads[place]
        offset, length = self.geometry.span(word, place, size, head.slot_nbytes)
        wanted = ReadSlot(rank=self.task.ranks[place], epoch=self.task.epoch, offset=offset, nbytes=length)
        return ask_slot(self.peers[place], wanted, head.digest, coefficient)

    def complete(self) -> None:
        config, store = self.node.store.config, self.node.store
        groups = [(tuple(m.rank for m in group), rank) for rank, _ in store.all() if (group := config.group_of(rank))]
        self.node.rows.complete(self.key, self.task.epoch)
        self.node.rows.retain([ParityRowKey(ranks, ranks.index(rank)) for ranks, rank in groups])
        store.copies.retain(())


class CopyWork(ProtectionWork):
    """Copies of the slots of the members before this one; see ``placement.holders``."""

    def expected(self, place: int) -> tuple[int, ...]:
        kept = sources(self.task.scheme, len(self.task.members), place)
        return tuple(head.digest if p in kept else _NOT_KEPT for p, head in enumerate(self.heads))

    def make(self) -> None:
        for place in sources(self.task.scheme, len(self.task.members), self.task.place):
            copy_slot(self.node, self.peers[place], self.task.ranks[place], self.task.epoch, self.heads[place])

    def complete(self) -> None:
        config, copies = self.node.store.config, self.node.store.copies
        kept: set[int] = set()
        for rank, _ in self.node.store.all():
            ranks = tuple(member.rank for member in config.group_of(rank))
            if ranks:
                kept.update(ranks[p] for p in sources(self.task.scheme, len(ranks), ranks.index(rank)))
        for place in sources(self.task.scheme, len(self.task.members), self.task.place):
            copies.complete(self.task.ranks[place], self.task.epoch)
        copies.retain(kept)
        self.node.rows.retain(())


def work_for(node: AgentNode, task: ProtectionTask, stack: ExitStack) -> ProtectionWork:
    return (CopyWork if task.scheme.kind is SchemeKind.COPIES else ParityWork)(node, task, stack)


def sources(scheme: ProtectionScheme, size: int, place: int) -> tuple[int, ...]:
    """Members whose slots member ``place`` keeps a copy of."""
    return tuple(p for p in range(size) if place in holders(scheme, size, p))


def answer_copies(store: ArenaStore, request: ReadRow) -> RowState:
    """The digests of the copies that are here of a group's members."""
    digests = []
    for place, rank in enumerate(request.ranks):
        found = None if place == request.place else store.copies.find(rank, request.epoch, check=request.check)
        digests.append(_NOT_KEPT if found is None else found[1].digest)
    return RowState(present=any(digests), digests=tuple(digests))
