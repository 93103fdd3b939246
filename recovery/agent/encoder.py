"""The thread that keeps parity: for each pending epoch, its own row; then, once every member has one, the publication.

Members only ever ask each other what they have, so a restarted or late agent simply asks again. Publication pins the
epoch in the trainers' arenas and frees the one before it; until then both stay, so there is always one complete epoch.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import msgspec

from recovery.agent.background import Background
from recovery.agent.errors import AgentError
from recovery.agent.messages import GroupMember, Head, ReadHead, ReadRow, ReadSlot, RowState
from recovery.agent.node import Node
from recovery.agent.parity import position_group, span, stripe_bytes, stripe_of
from recovery.agent.peer import Peer
from recovery.agent.rows import Part, Ranks, Rows
from recovery.agent.streams import Stripe, ask, combine
from recovery.agent.transfer import answer_head
from recovery.memory.arena import Arena
from recovery.memory.errors import ArenaError
from recovery.memory.records import NO_EPOCH, Word

SOON: Final = 0.005
LATER: Final = 0.1
"""How often to ask again: at first, and when it drags on."""
IDLE: Final = 1.0
_PATIENCE: Final = 8
"""Turns that a member may be late before it is worth a word: about half a second."""

logger = logging.getLogger("mainstay.agent")


def answer_row(rows: Rows, request: ReadRow) -> RowState:
    try:
        row = rows.find(request.ranks, request.epoch)
    except (AgentError, ArenaError):
        return RowState(present=False, digests=())
    return RowState(present=True, digests=row.digests)


class Encoder(Background):
    """Works on the oldest pending epoch of every local rank. ``kick`` it when something was committed."""

    def __init__(self, node: Node) -> None:
        super().__init__("mainstay-parity")
        self._node = node
        self._store = node.store
        self._drags = 0

    def configure(self, group: tuple[GroupMember, ...], every: int, generation: int) -> None:
        """See ``AgentClient.configure_parity``. The same again changes nothing; otherwise all is looked at anew.

        Raises:
            ValueError: ``every`` below 1 with a group, or a rank that stands twice.
        """
        _check_group(group, every)
        config = msgspec.structs.replace(self._store.config, group=group, every=every, generation=generation)
        if config != self._store.config:
            self._store.save(config)
            for _, arena in self._store.all():
                arena.set_word(Word.PARITY_EVERY, 0)
                arena.set_word(Word.PARITY_EPOCH, NO_EPOCH)
                arena.set_word(Word.PARITY_FLOOR, NO_EPOCH)
        self.pin()
        self.kick()

    def pin(self) -> None:
        """Tell each rank's writer which epochs get parity; ranks that nothing protects are left alone."""
        config = self._store.config
        for rank, arena in self._store.all():
            arena.set_word(Word.PARITY_EVERY, config.every if _members(config.group, rank) else 0)

    def turn(self) -> float:
        """One look at every rank; seconds until the next."""
        outcomes = [self._try(task) for task in self._tasks()]
        late = not all(outcomes)
        self._drags = self._drags + 1 if late else 0
        if late:
            return min(LATER, SOON * 1.5**self._drags)
        return SOON if outcomes else IDLE

    def _tasks(self) -> list[_Task]:
        group = self._store.config.group
        pending = [(rank, arena, _oldest_pending(arena)) for rank, arena in self._store.all()]
        return [_Task(rank, arena, e, _members(group, rank)) for rank, arena, e in pending if e is not None]

    def _try(self, task: _Task) -> bool:
        """Whether the epoch is settled."""
        why: object = "a member has not got so far"
        try:
            with ExitStack() as stack:
                if _Attempt(self._node, task, stack).run():
                    return True
        except (AgentError, ArenaError, OSError, ValueError) as error:
            why = error
        if self._drags > _PATIENCE:
            self._store.degraded[task.subject] = f"epoch {task.epoch}: {why}"
        return False


@dataclass(frozen=True, slots=True)
class _Task:
    rank: int
    arena: Arena
    epoch: int
    members: tuple[GroupMember, ...]

    @property
    def subject(self) -> str:
        return f"parity of rank {self.rank}"


class _Attempt:
    """One try to settle the parity of one rank's epoch."""

    def __init__(self, node: Node, task: _Task, stack: ExitStack) -> None:
        self._node = node
        self._task = task
        self._ranks: Ranks = tuple(member.ranks[0] for member in task.members)
        self._me = self._ranks.index(task.rank)
        generation = node.store.config.generation
        self._peers = {
            place: stack.enter_context(node.peer(member.endpoint, generation))
            for place, member in enumerate(task.members)
            if place != self._me
        }

    def run(self) -> bool:
        """Whether the epoch is settled: complete everywhere, or given up."""
        epoch = self._task.epoch
        heads = [self._head(place) for place in range(len(self._ranks))]
        if any(not head.present and head.newest > epoch for head in heads):
            self._give_up()
            return True
        if not all(head.present for head in heads):
            return False
        digests = tuple(head.digest for head in heads)
        if answer_row(self._node.rows, ReadRow(ranks=self._ranks, epoch=epoch)).digests != digests:
            self._encode(heads)
        if not all(self._row_of(peer).digests == digests for peer in self._peers.values()):
            return False
        self._publish()
        return True

    def _publish(self) -> None:
        """First keep the new epoch, then let the old one go."""
        task = self._task
        self._node.rows.complete(self._ranks, task.epoch)
        task.arena.set_word(Word.PARITY_EPOCH, task.epoch)
        task.arena.set_word(Word.PARITY_FLOOR, task.epoch)
        self._node.store.degraded.pop(task.subject, None)

    def _give_up(self) -> None:
        task = self._task
        self._node.store.degraded[task.subject] = f"epoch {task.epoch} was overwritten before it had parity"
        logger.error("rank %d: epoch %d got no parity, a member had moved on", task.rank, task.epoch)
        task.arena.set_word(Word.PARITY_FLOOR, task.epoch)

    def _head(self, place: int) -> Head:
        request = ReadHead(rank=self._ranks[place], epoch=self._task.epoch)
        if place == self._me:
            return answer_head(self._node.store, request)
        return self._peers[place].call(request, Head)

    def _row_of(self, peer: Peer) -> RowState:
        return peer.call(ReadRow(ranks=self._ranks, epoch=self._task.epoch), RowState)

    def _encode(self, heads: list[Head]) -> None:
        """Make our row: one stripe of every other member, XORed."""
        size = stripe_bytes(max(head.slot_nbytes for head in heads), len(heads))
        arena, slot, row = self._node.rows.begin(self._ranks, self._me, size)
        begun = time.perf_counter()
        stripes = {place: self._stripe(place, heads[place], size) for place in self._peers}
        combine(list(stripes.values()), row)
        for stripe in stripes.values():
            stripe.finish()
        parts = tuple(self._part(place, head, stripes.get(place)) for place, head in enumerate(heads))
        self._node.rows.commit(arena, slot, self._task.epoch, parts)
        total = sum(stripe.header.nbytes for stripe in stripes.values())
        self._node.meter.add("xor", total, time.perf_counter() - begun)

    def _stripe(self, place: int, head: Head, size: int) -> Stripe:
        offset, length = span(stripe_of(place, self._me), size, head.slot_nbytes)
        wanted = ReadSlot(rank=self._ranks[place], epoch=self._task.epoch, offset=offset, nbytes=length)
        return ask(self._peers[place], wanted, head.digest)

    def _part(self, place: int, head: Head, stripe: Stripe | None) -> Part:
        """What the row says about a member; without a stripe it is this one."""
        if stripe is not None:
            layout, generation = stripe.header.layout_digest, stripe.header.generation
        else:
            arena = self._task.arena
            layout, generation = arena.layout.digest, arena.find(self._task.epoch).generation
        return Part(self._ranks[place], head.slot_nbytes, head.digest, layout, generation)


def _members(group: tuple[GroupMember, ...], rank: int) -> tuple[GroupMember, ...]:
    """Those that protect ``rank``, itself included; none if nothing does."""
    try:
        return position_group(group, rank)
    except ValueError:
        return ()


def _oldest_pending(arena: Arena) -> int | None:
    pins = arena.pins()
    if not pins.parity_every:
        return None
    epochs = (r.epoch for r in arena.records() if r.committed)
    return min((e for e in epochs if e > pins.parity_floor and e % pins.parity_every == 0), default=None)


def _check_group(group: tuple[GroupMember, ...], every: int) -> None:
    if group and every < 1:
        raise ValueError(f"parity every {every} epochs: at least 1")
    ranks = [rank for member in group for rank in member.ranks]
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"a rank stands twice in the parity group: {ranks}")
