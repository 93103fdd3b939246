"""Whole slots that a node keeps for ranks of other nodes: an arena of two slots each, as GEMINI's peers do.

They are served and listed like slots of the node's own ranks, so that a lost rank simply fetches one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from mainstay.recovery.agent.errors import CorruptError
from mainstay.recovery.agent.messages import SlotInfo
from mainstay.recovery.agent.parity_store import spare_slot
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import SlotRecord, SlotState, Word

COPY_ARENA: Final = 2

logger = logging.getLogger("mainstay.agent")


class PeerCopyStore:
    """Copy arenas by rank. Written by the encoder's thread alone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.extra_copies: frozenset[int] = frozenset()
        """Ranks of which copies are kept beside the scheme; see ``extra_copies``."""
        self._arenas: dict[int, Arena] = {}
        self._lock = threading.RLock()
        for path in sorted(directory.glob("copy-*.arena")):
            try:
                arena = Arena.attach(path)
                self._arenas[arena.header.rank] = arena
            except (ArenaError, ValueError, OSError) as error:
                logger.warning("%s cannot be used and is removed: %s", path.name, error)
                path.unlink(missing_ok=True)

    def find_copy(self, rank: int) -> Arena | None:
        return self._arenas.get(rank)

    def find(self, rank: int, epoch: int, *, check: bool = False) -> tuple[Arena, SlotRecord] | None:
        """The copy of a rank's slot, if a verified one is here (and, with ``check``, still has its digest)."""
        arena = self._arenas.get(rank)
        if arena is None:
            return None
        with contextlib.suppress(ArenaError):
            record = arena.find(epoch)
            if record.state is SlotState.VERIFIED:
                if check:
                    arena.check(record)
                return arena, record
        return None

    def begin_copy(self, rank: int, layout: Layout) -> tuple[Arena, int]:
        """A slot for a new copy, never that of the newest complete epoch."""
        with self._lock:
            arena = self._arenas.get(rank)
            if arena is None or arena.layout.digest != layout.digest:
                path = self.directory / f"copy-{rank}.arena"
                arena = self._arenas[rank] = Arena.create(path, rank=rank, layout=layout, slots=2, kind=COPY_ARENA)
        slot = spare_slot(arena)
        arena.begin_write(slot, arena.word(Word.FENCE))
        return arena, slot

    def commit(self, arena: Arena, slot: int, epoch: int, generation: int, expected: int) -> None:
        """Declare a copy whole if it has the digest that it should.

        Raises:
            CorruptError: it has another one, and is invalid again.
        """
        arena.commit(slot, epoch, generation)
        record = arena.verify(arena.record(slot))
        if record.digest != expected:
            arena.invalidate(record)
            raise CorruptError(f"rank {arena.header.rank} epoch {epoch}: the copy that came is damaged")
        arena.retire_twins(record)

    def complete(self, rank: int, epoch: int) -> None:
        """Everything that protects ``epoch`` is there, in the whole job."""
        if arena := self._arenas.get(rank):
            arena.set_word(Word.PARITY_EPOCH, epoch)

    def retain(self, ranks: Collection[int]) -> None:
        """Release the copies of all other ranks."""
        self.release(self._arenas.keys() - set(ranks) - self.extra_copies)

    def release(self, ranks: Collection[int]) -> None:
        """Release the copies of these ranks."""
        with self._lock:
            for rank in self._arenas.keys() & set(ranks):
                self._arenas.pop(rank).path.unlink(missing_ok=True)

    def discard_after(self, epoch: int) -> None:
        with self._lock:
            for arena in self._arenas.values():
                arena.discard_after(epoch)

    def all(self) -> list[tuple[int, Arena]]:
        with self._lock:
            return sorted(self._arenas.items())

    def infos(self) -> Iterator[SlotInfo]:
        for rank, arena in self.all():
            for record in arena.records():
                if record.state is SlotState.VERIFIED:
                    yield SlotInfo(
                        rank=rank,
                        epoch=record.epoch,
                        generation=record.generation,
                        nbytes=record.nbytes,
                        verified=True,
                    )

    def forget(self) -> None:
        """Their files are gone."""
        with self._lock:
            self._arenas.clear()
