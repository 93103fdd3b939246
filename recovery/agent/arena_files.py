"""What a node keeps for the protection of others: arenas of two slots each, one file for each key."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, TypeVar

from mainstay.recovery.agent.errors import CorruptError
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError, CorruptArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import SlotRecord, Word

K = TypeVar("K")

logger = logging.getLogger("mainstay.agent")


class ArenaFiles(Generic[K]):
    """Arenas by key. Written by the encoder's thread alone."""

    def __init__(self, directory: Path, pattern: str, key_of: Callable[[Arena], K]) -> None:
        self.directory = directory
        self._arenas: dict[K, Arena] = {}
        self._lock = threading.RLock()
        for path in sorted(directory.glob(pattern)):
            try:
                arena = Arena.attach(path)
                self._arenas[key_of(arena)] = arena
            except (ArenaError, ValueError, OSError) as error:
                logger.warning("%s cannot be used and is removed: %s", path.name, error)
                path.unlink(missing_ok=True)

    def begin_slot(self, key: K, file: str, *, rank: int, layout: Layout, kind: int) -> tuple[Arena, int]:
        """A slot to write to, never that of the newest complete epoch, of an arena with this layout."""
        with self._lock:
            arena = self._arenas.get(key)
            if arena is None or arena.layout.digest != layout.digest:
                arena = Arena.create(self.directory / file, rank=rank, layout=layout, slots=2, kind=kind)
                self._arenas[key] = arena
        slot = spare_slot(arena)
        arena.begin_write(slot, arena.word(Word.FENCE))
        return arena, slot

    def complete(self, key: K, epoch: int) -> None:
        """Everything that protects ``epoch`` is there, in the whole job: this arena's slot of it is the one to keep."""
        with self._lock:
            if key in self._arenas:
                self._arenas[key].set_word(Word.PARITY_EPOCH, epoch)

    def retain(self, keys: Collection[K]) -> None:
        """Release all others."""
        self.release(self._arenas.keys() - set(keys))

    def release(self, keys: Collection[K]) -> None:
        """Release these."""
        with self._lock:
            for key in self._arenas.keys() & set(keys):
                self._arenas.pop(key).path.unlink(missing_ok=True)

    def discard_after(self, epoch: int) -> None:
        with self._lock:
            for arena in self._arenas.values():
                arena.discard_after(epoch)

    def all(self) -> list[tuple[K, Arena]]:
        with self._lock:
            return sorted(self._arenas.items())

    def forget(self) -> None:
        """Their files are gone."""
        with self._lock:
            self._arenas.clear()


def commit_checked(
    arena: Arena, slot: int, epoch: int, generation: int, expected: int, *, digested: bool = False
) -> SlotRecord:
    """Commit and verify a slot that the agent itself has filled; ``digested``: ``expected`` is what it has found.

    Raises:
        FencedError: ``generation`` was revoked.
        CorruptError: the bytes do not have the digest that they should; the slot is invalid again.
    """
    arena.commit(slot, epoch, generation)
    try:
        record = arena.verify(arena.record(slot), expected if digested else None)
        if record.digest != expected:
            raise CorruptArenaError(f"digest {record.digest:016x} instead of {expected:016x}")
    except ArenaError as error:
        arena.invalidate(arena.record(slot))
        raise CorruptError(f"rank {arena.header.rank} epoch {epoch}: what came is damaged: {error}") from error
    arena.retire_twins(record)
    return record


def spare_slot(arena: Arena) -> int:
    """Of an arena of two slots: the one that is not the newest complete epoch's."""
    complete = arena.word(Word.PARITY_EPOCH)
    loose = [r for r in arena.records() if not r.committed or r.epoch != complete]
    return min(loose, key=lambda r: (r.committed, r.epoch)).slot
