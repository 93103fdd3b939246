"""The parity rows that a node keeps for others: one small arena of two slots a position group, with the same records.

A row carries, beside the XOR of its stripes, the size and digest of every slot that went into it, so that a rebuilt
slot is checked against what the lost node had, and a row is never combined with data of another history.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from recovery.agent.errors import NoSuchSlotError
from recovery.agent.messages import ParityInfo
from recovery.memory import room
from recovery.memory.arena import PARITY_ARENA, Arena
from recovery.memory.digest import Bytes
from recovery.memory.errors import ArenaError, CorruptArenaError
from recovery.memory.layout import Layout
from recovery.memory.records import SlotRecord, Word

_ROW: Final = "row"
_META: Final = "meta"
_META_BYTES: Final = 16 * 1024
"""Room for the descriptions of some hundred members."""

Ranks = tuple[int, ...]

logger = logging.getLogger("mainstay.agent")


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one member's slot."""

    rank: int
    nbytes: int
    digest: int
    layout_digest: int
    generation: int


class Row(msgspec.Struct, frozen=True):
    """A committed row, ready to be read."""

    arena: Arena
    record: SlotRecord
    parts: tuple[Part, ...]

    @property
    def digests(self) -> tuple[int, ...]:
        return tuple(part.digest for part in self.parts)

    @property
    def data(self) -> Bytes:
        """uint8 [stripe bytes]."""
        spec = self.arena.layout.specs()[_ROW]
        return self.arena.slot_bytes(self.record.slot)[spec.offset : spec.offset + spec.nbytes]


class Rows:
    """Row arenas by the ranks that they protect (one of each member, in group order)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._arenas: dict[Ranks, Arena] = {}
        self._lock = threading.RLock()
        for path in sorted(directory.glob("parity-*.arena")):
            try:
                ranks = tuple(int(part) for part in path.stem.removeprefix("parity-").split("_"))
                self._arenas[ranks] = Arena.attach(path)
            except (ArenaError, ValueError, OSError) as error:
                logger.warning("%s cannot be used and is removed: %s", path.name, error)
                path.unlink(missing_ok=True)

    def find(self, ranks: Ranks, epoch: int) -> Row:
        """The row of ``epoch`` for ``ranks``.

        Raises:
            NoSuchSlotError: there is none.
            CorruptArenaError: it does not match its digest.
        """
        arena = self._arenas.get(ranks)
        if arena is None:
            raise NoSuchSlotError(f"no parity of ranks {ranks} here")
        record = arena.find(epoch)
        return Row(arena, record, _parts(arena, record))

    def begin(self, ranks: Ranks, position: int, stripe: int) -> tuple[Arena, int, Bytes]:
        """A slot for a new row: (arena, slot, uint8 [stripe]). The newest complete row is never the one given out."""
        layout = Layout.build({_ROW: ("uint8", (stripe,)), _META: ("uint8", (_META_BYTES,))})
        with self._lock:
            arena = self._arenas.get(ranks)
            if arena is None or arena.layout.digest != layout.digest:
                path = self.directory / f"parity-{'_'.join(map(str, ranks))}.arena"
                arena = Arena.create(path, rank=position, layout=layout, slots=2, kind=PARITY_ARENA)
                self._arenas[ranks] = arena
        complete = arena.word(Word.PARITY_EPOCH)
        loose = [r for r in arena.records() if not r.committed or r.epoch != complete]
        slot = min(loose, key=lambda r: (r.committed, r.epoch)).slot
        return arena, slot, arena.begin(slot, arena.word(Word.FENCE))[:stripe]

    def commit(self, arena: Arena, slot: int, epoch: int, parts: tuple[Part, ...]) -> None:
        """Declare a row whole: its description, its record, its digest."""
        spec = arena.layout.specs()[_META]
        room.put(msgspec.msgpack.encode(parts), arena.slot_bytes(slot)[spec.offset : spec.offset + spec.nbytes])
        arena.commit(slot, epoch, arena.word(Word.FENCE))
        # A member that was restored from elsewhere has other bytes for the same epoch: the row over its old ones, found
        # first, would make the others wait for ever.
        arena.retire_twins(arena.verify(arena.record(slot)))

    def complete(self, ranks: Ranks, epoch: int) -> None:
        """Every member holds its row: this one is worth keeping, and rows of other groups of these ranks are not."""
        with self._lock:
            self._arenas[ranks].set_word(Word.PARITY_EPOCH, epoch)
            for other in [r for r in self._arenas if r != ranks and set(r) & set(ranks)]:
                self._arenas.pop(other).path.unlink(missing_ok=True)

    def discard_after(self, epoch: int) -> None:
        with self._lock:
            for arena in self._arenas.values():
                arena.discard_after(epoch)

    def infos(self) -> Iterator[ParityInfo]:
        with self._lock:
            arenas = sorted(self._arenas.items())
        for ranks, arena in arenas:
            for record in arena.records():
                if record.committed:
                    done = record.epoch == arena.word(Word.PARITY_EPOCH)
                    yield ParityInfo(epoch=record.epoch, ranks=ranks, nbytes=record.nbytes, complete=done)

    def drop(self) -> None:
        with self._lock:
            for arena in self._arenas.values():
                arena.path.unlink(missing_ok=True)
            self._arenas.clear()


def _parts(arena: Arena, record: SlotRecord) -> tuple[Part, ...]:
    spec = arena.layout.specs()[_META]
    raw = np.array(arena.slot_bytes(record.slot)[spec.offset : spec.offset + spec.nbytes])
    try:
        return msgspec.msgpack.decode(room.take(raw), type=tuple[Part, ...])
    except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise CorruptArenaError(f"{arena.path.name}: the description of epoch {record.epoch} is damaged") from error
