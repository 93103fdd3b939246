"""Scrubbing: the agent rereads all that it keeps and repairs bytes that changed without a write.

A pass looks at headers, layouts and records, then digests every verified slot, copy and parity row, at a bounded rate.
A damaged slot of the protected epoch is compared with what the group decodes, and the bytes that differ are written; a
damaged row or copy is made again by the encoder. Training does not stop and no step is repeated. What is beyond repair
is declared worthless, so that no rank ever restores from it. Drills: see ``Scrubber._drill``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from mainstay.recovery.agent.encoder import answer_row
from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.messages import Rebuild, ScrubState
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.agent.parity_store import ParityRowKey
from mainstay.recovery.agent.peer_messages import Ack, ParityMismatch, ReadRow
from mainstay.recovery.agent.periodic_thread import PeriodicThread
from mainstay.recovery.agent.rebuild import MAX_STREAMS, query_members
from mainstay.recovery.agent.slot_reconstruction import reconstruct_slot
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.records import NO_EPOCH, SlotRecord, SlotState, Word
from mainstay.recovery.memory.repair import RecordShadow
from mainstay.recovery.protection_scheme import SchemeKind, parse

CHUNK: Final = 4 * 1024 * 1024
"""Digested at once, then the pause that the rate asks for."""
_NICE: Final = 19
"""Only processor time that no other process wants."""
_SETTLE_SECONDS: Final = 1.0
"""How long a trainer that began to write a slot just as it was repaired is waited for, between two looks."""

logger = logging.getLogger("mainstay.agent")


class Scrubber(PeriodicThread):
    """``again`` has the encoder make what it keeps for a rank's epoch again; see ``Encoder.again``."""

    nice = _NICE

    def __init__(self, node: AgentNode, again: Callable[[int, int], None]) -> None:
        super().__init__("mainstay-scrub")
        self.counts = ScrubState()
        self._node = node
        self._again = again
        self._ledgers: WeakKeyDictionary[Arena, RecordShadow] = WeakKeyDictionary()
        self._drilled_last = -1
        self._drill_at = time.monotonic() + node.settings.drill_seconds

    def run_once(self) -> float:
        """One pass, and a drill when it is time; seconds until the next."""
        settings = self._node.settings
        self.scan()
        if settings.drill_seconds and time.monotonic() >= self._drill_at:
            self._drill_at = time.monotonic() + settings.drill_seconds
            self.drill()
        return settings.scrub_pause

    def scan(self) -> None:
        """One pass over everything."""
        store = self._node.store
        for rank, arena in store.all():
            self._records(f"rank {rank}", arena)
            for record in self._damaged(arena):
                self._repair_slot(rank, arena, record)
        for rank, arena in store.copies.all():
            for record in (*self._records(f"copy of rank {rank}", arena), *self._damaged(arena)):
                self._make_again(f"copy of rank {rank}", arena, record, self._holders_of(rank))
        for key, arena in self._node.rows.all():
            for record in (*self._records(f"parity of rank {key.ranks[key.place]}", arena), *self._damaged(arena)):
                self._make_again(f"parity row {key.place} of {key.ranks}", arena, record, [key.ranks[key.place]])
        for rank, arena in store.all():
            self._missing(rank, arena)
        if store.verdicts_damaged:
            count, store.verdicts_damaged = store.verdicts_damaged, 0
            self._tell(f"{count} records were damaged, and the slots digested again", found=count, repaired=count)
        self.counts.passes += 1

    # Finding

    def _missing(self, rank: int, arena: Arena) -> None:
        """What this node should keep for its rank's group may have been lost whole, file and all."""
        epoch, group = arena.word(Word.PARITY_EPOCH), self._node.store.config.group_of(rank)
        if epoch == NO_EPOCH or not group or arena.word(Word.PARITY_FLOOR) < epoch:
            return
        ranks = tuple(member.rank for member in group)
        state = answer_row(self._node, ReadRow(ranks=ranks, place=ranks.index(rank), epoch=epoch))
        if not state.present and arena.word(Word.PARITY_EPOCH) == epoch:
            self._again(rank, epoch)
            words = f"what is kept for the group of rank {rank} epoch {epoch} was gone and is made again"
            self._tell(words, flipped=0, repaired=1)

    def _records(self, what: str, arena: Arena) -> tuple[SlotRecord, ...]:
        """Repair header, layout and records of an arena; slots that have lost the digest that they should have."""
        ledger = self._ledgers.setdefault(arena, RecordShadow())
        if arena.repair_static():
            self._tell(f"{what}: header or layout was damaged", repaired=1)
        damage = ledger.repair(arena)
        if damage.records:
            words = f"{what}: {damage.records} records were damaged"
            self._tell(words, found=damage.records, repaired=damage.records - damage.lost, lost=damage.lost)
        return damage.doubtful

    def _damaged(self, arena: Arena) -> Iterator[SlotRecord]:
        """Verified slots whose bytes do not have their digest any more."""
        for record in arena.records():
            if record.state is not SlotState.VERIFIED or self._digest(arena, record) == record.digest:
                continue
            if arena.record(record.slot) == record:  # else it was overwritten meanwhile, as it should be
                yield record

    def _digest(self, arena: Arena, record: SlotRecord) -> int:
        state, data = xxhash.xxh3_64(), arena.slot_bytes(record.slot)[: record.nbytes]
        rate = self._node.settings.scrub_rate
        for at in range(0, len(data), CHUNK):
            part = data[at : at + CHUNK]
            state.update(part.data)
            self.counts.nbytes += len(part)
            if rate and not self._stop:
                time.sleep(len(part) / rate)
        return int(state.intdigest())

    # Repairing

    def _repair_slot(self, rank: int, arena: Arena, record: SlotRecord) -> None:
        """Write what the group remembers over what differs; or declare the slot worthless."""
        what = f"rank {rank} epoch {record.epoch}"
        try:
            changed = self._patch(rank, arena, record)
        except (AgentError, ArenaError, OSError, ValueError) as error:
            self._give_up(rank, arena, record, f"{what} is damaged and cannot be repaired: {error}")
            return
        if not arena.unchanged(record):
            return  # overwritten meanwhile: what was damaged is gone
        if self._digest(arena, record) != record.digest:
            self._give_up(rank, arena, record, f"{what} is damaged, and the group remembers it otherwise")
            return
        self._tell(f"{what} was damaged in {changed} bytes and is repaired", repaired=1)

    def _patch(self, rank: int, arena: Arena, record: SlotRecord) -> int:
        """How many bytes were not as the group remembers them."""
        changed, data = 0, arena.slot_bytes(record.slot)
        for piece in reconstruct_slot(self._node, rank, record):
            here = data[piece.offset : piece.offset + len(piece.data)]
            wrong = np.flatnonzero(here != piece.data)
            if len(wrong):
                first, last = int(wrong[0]), int(wrong[-1]) + 1
                if not self._write(rank, arena, record, here[first:last], piece.data[first:last]):
                    break
                changed += len(wrong)
        return changed

    def _write(self, rank: int, arena: Arena, record: SlotRecord, here: Bytes, right: Bytes) -> bool:
        """Whether the slot was still the same. If a trainer began to write it in between, its write is worthless.

        The lock keeps the agent from verifying what the trainer writes; no reader trusts a slot before that.
        """
        with self._node.store.lock(rank):
            if not arena.unchanged(record):
                return False
            here[:] = right
            if arena.unchanged(record):
                return True
            deadline = time.monotonic() + _SETTLE_SECONDS
            while time.monotonic() < deadline:
                now = arena.record(record.slot)
                if now.committed:
                    arena.invalidate(now)
                    self._tell(
                        f"rank {rank} epoch {now.epoch} was written while it was repaired: worthless", flipped=0, lost=1
                    )
                    return False
                time.sleep(0.001)
        return False

    def _give_up(self, rank: int, arena: Arena, record: SlotRecord, why: str) -> None:
        with self._node.store.lock(rank):
            if arena.unchanged(record):
                arena.invalidate(record)
        self._tell(why, lost=1)
        self._node.store.degraded[f"scrub of rank {rank}"] = why

    def _make_again(self, what: str, arena: Arena, record: SlotRecord, ranks: list[int], *, flipped: int = 1) -> None:
        """A row or a copy, which the encoder makes from the data if that is still there."""
        if not arena.unchanged(record):
            return  # a newer one has taken its place
        arena.invalidate(record)
        kept = [r for r in ranks if self._node.store.arena(r).word(Word.PARITY_EPOCH) == record.epoch]
        for rank in kept:
            self._again(rank, record.epoch)
        verb = "is made again" if kept else "is released, a newer one is there or under way"
        self._tell(f"{what} epoch {record.epoch} was damaged and {verb}", flipped=flipped, repaired=1)

    def _holders_of(self, rank: int) -> list[int]:
        """Ranks here in whose group's name a copy of ``rank`` is kept."""
        group = [member.rank for member in self._node.store.config.group_of(rank)]
        return [own for own, _ in self._node.store.all() if own in group]

    # Drills

    def drill(self) -> bool | None:
        """Decode a local rank's protected slot from every row (or copy) of it, and compare with the one here.

        Ranks take turns. A row covers data of several members, and each of them tries it: where a node has one rank
        of the group, everything is tried within one period.
        Scrubbing sees what changed since it was written; a drill sees what was wrong when it was written, such as
        parity of another history. The node that decoded the bad bytes makes its row again (``ParityMismatch``).

        Returns:
            Whether all bytes were the same; None if there was nothing to compare.
        """
        candidates = [(rank, a) for rank, a in self._node.store.all() if a.word(Word.PARITY_EPOCH) != NO_EPOCH]
        if not candidates:
            return None
        rank, arena = min(candidates, key=lambda c: (c[0] <= self._drilled_last, c[0]))
        self._drilled_last = rank
        try:
            record = self._node.store.verified(rank, arena.word(Word.PARITY_EPOCH))[1]
            wrong = self._compare(rank, arena, record)
        except (AgentError, ArenaError, OSError, ValueError) as error:
            if arena.word(Word.PARITY_EPOCH) == NO_EPOCH:
                return None
            self._drilled(rank, f"drill: rank {rank} could not be decoded: {error}")
            return False
        if not arena.unchanged(record) or arena.word(Word.PARITY_EPOCH) != record.epoch:
            return None  # a newer epoch is protected by now: what was compared is gone
        if wrong and not self._data_is_whole(rank, arena, record):
            return None
        for place in sorted(wrong):
            self._doubt(rank, record.epoch, place)
        stale = f"drill: parity of rank {rank} epoch {record.epoch} from members {sorted(wrong)} is stale"
        self._drilled(rank, stale if wrong else "")
        return not wrong

    def _compare(self, rank: int, arena: Arena, record: SlotRecord) -> set[int]:
        """Members from whom other bytes came than are here."""
        data = arena.slot_bytes(record.slot)
        return {
            piece.place
            for piece in reconstruct_slot(self._node, rank, record, thorough=True)
            if not np.array_equal(piece.data, data[piece.offset : piece.offset + len(piece.data)])
        }

    def _data_is_whole(self, rank: int, arena: Arena, record: SlotRecord) -> bool:
        """Whether the slots that were compared still have their digests, here and at the members that decoded.

        One that was damaged since it was last checked would accuse good parity; made again from that slot, the parity
        could not repair it any more. The node that has it scrubs it.
        """
        if self._digest(arena, record) != record.digest:
            return False
        config = self._node.store.config
        if parse(config.scheme).kind is SchemeKind.COPIES:
            return True
        order = Rebuild(rank=rank, epoch=record.epoch, group=config.group_of(rank))
        with ThreadPoolExecutor(MAX_STREAMS, "mainstay-recall") as pool:
            held = query_members(self._node, pool, order, config.generation)
        return all(member.head is not None and member.head.present for member in held.values())

    def _doubt(self, rank: int, epoch: int, place: int) -> None:
        config = self._node.store.config
        group = config.group_of(rank)
        doubt = ParityMismatch(ranks=tuple(member.rank for member in group), place=place, epoch=epoch)
        try:
            with self._node.peer(group[place].endpoint, config.generation) as peer:
                peer.call(doubt, Ack)
        except (AgentError, ValueError) as error:
            logger.warning("member %d of rank %d's group did not hear that its parity is stale: %s", place, rank, error)

    def _drilled(self, rank: int, problem: str) -> None:
        self.counts.drills += 1
        self._node.store.degraded.report(f"drill of rank {rank}", problem)
        if problem:
            self.counts.drills_failed += 1
            self._tell(problem, flipped=0)

    def doubted(self, key: ParityRowKey, epoch: int) -> None:
        """Another node's drill found our rows of ``epoch`` wrong: make them again."""
        for known, arena in self._node.rows.all():
            for record in arena.records() if known == key else ():
                if record.committed and record.epoch == epoch:
                    what = f"parity row {key.place} of {key.ranks}"
                    self._make_again(what, arena, record, [key.ranks[key.place]], flipped=0)

    def _tell(
        self, words: str, *, found: int = 1, flipped: int | None = None, repaired: int = 0, lost: int = 0
    ) -> None:
        self.counts.found += found
        self.counts.flipped += found if flipped is None else flipped
        self.counts.repaired += repaired
        self.counts.lost += lost
        self.counts.last = words
        logger.error("%s", words)
