"""The parity rows that a node keeps: one small arena of two slots a member of a group, with the same records.

Rows carry, beside the parity, the size and digest of every slot that went into them, so that a rebuilt slot is checked
against what the lost node had, and a row is never combined with data of another history.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from mainstay.recovery.agent.arena_files import ArenaFiles
from mainstay.recovery.agent.errors import NoSuchSlotError
from mainstay.recovery.agent.messages import ParityInfo
from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.memory import varlen_buffer
from mainstay.recovery.memory.arena import PARITY_ARENA, Arena
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import ArenaError, CorruptArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import SlotRecord, Word

META: Final = "meta"
_META_BYTES: Final = 16 * 1024
"""Room for the descriptions of some hundred members."""


class ParityRowKey(NamedTuple):
    """One member's rows: the ranks of its group, and which of them it is."""

    ranks: tuple[int, ...]
    place: int


class ParityMember(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one member's slot."""

    rank: int
    nbytes: int
    digest: int
    layout_digest: int
    generation: int


class RowDescription(msgspec.Struct, frozen=True, array_like=True):
    """What a member's rows are parity of."""

    parity: int
    parts: tuple[ParityMember, ...]


_descriptions = msgspec.msgpack.Decoder(RowDescription)


class ParityRow(msgspec.Struct, frozen=True):
    """A member's committed rows of one epoch, ready to be read."""

    key: ParityRowKey
    arena: Arena
    record: SlotRecord
    parity: int
    parts: tuple[ParityMember, ...]

    @property
    def geometry(self) -> Geometry:
        return Geometry(len(self.key.ranks), self.parity)

    @property
    def digests(self) -> tuple[int, ...]:
        return tuple(part.digest for part in self.parts)

    @property
    def size(self) -> int:
        """Bytes of a stripe."""
        return self.arena.layout.specs()[row_name(0)].nbytes

    @property
    def problem(self) -> str:
        """Why what was read of it is worthless; empty: it is not."""
        return "" if self.arena.unchanged(self.record) else "the parity row was overwritten meanwhile"

    def data(self, word: int) -> Bytes:
        """uint8 [stripe bytes]: the row of codeword ``word``.

        Raises:
            NoSuchSlotError: this member keeps no row of it.
        """
        words = self.geometry.rows_of(self.key.place)
        if word not in words:
            raise NoSuchSlotError(f"member {self.key.place} of {self.key.ranks} keeps no row of codeword {word}")
        return _view(self.arena, self.record.slot, row_name(words.index(word)))


class ParityStore(ArenaFiles[ParityRowKey]):
    """Row arenas by group (the ranks that it protects, one of each member in order) and place in it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "parity-*.arena", _key_of)

    def find(self, key: ParityRowKey, epoch: int, *, check: bool = False) -> ParityRow:
        """The rows of ``epoch``.

        Raises:
            NoSuchSlotError: there are none.
            CorruptArenaError: the description is damaged or, with ``check``, anything else of them.
        """
        arena = self._arenas.get(key)
        if arena is None:
            raise NoSuchSlotError(f"no parity of ranks {key.ranks} for member {key.place} here")
        record = arena.find(epoch)
        if check:
            arena.check(record)
        return _row(key, arena, record)

    def begin_row(self, key: ParityRowKey, parity: int, stripe: int) -> tuple[Arena, int, list[Bytes]]:
        """A slot for new rows: (arena, slot, a uint8 [stripe] for each). Never that of the newest complete epoch."""
        layout = Layout.build(
            {row_name(p): ("uint8", (stripe,)) for p in range(parity)} | {META: ("uint8", (_META_BYTES,))}
        )
        file = f"parity-{key.place}-{digest(repr(key.ranks).encode()):016x}.arena"
        arena, slot = self.begin_slot(key, file, rank=key.place, layout=layout, kind=PARITY_ARENA)
        return arena, slot, [_view(arena, slot, row_name(p)) for p in range(parity)]

    def commit(self, arena: Arena, slot: int, epoch: int, parity: int, parts: tuple[ParityMember, ...]) -> None:
        """Declare rows whole: their description, their record, their digest."""
        varlen_buffer.write_bytes(msgspec.msgpack.encode(RowDescription(parity, parts)), _view(arena, slot, META))
        arena.commit(slot, epoch, arena.word(Word.FENCE))
        # A member restored from another source has other bytes for the same epoch: the row over its old ones, found
        # first, would make the others wait for ever.
        arena.retire_twins(arena.verify(arena.record(slot)))

    def infos(self) -> Iterator[ParityInfo]:
        for key, arena in self.all():
            for record in arena.records():
                if record.committed:
                    try:
                        row = _row(key, arena, record)
                    except ArenaError:
                        continue  # damaged: it protects nothing
                    yield ParityInfo(
                        epoch=record.epoch,
                        ranks=key.ranks,
                        place=key.place,
                        parity=row.parity,
                        nbytes=record.nbytes,
                        complete=record.epoch == arena.word(Word.PARITY_EPOCH),
                    )


def row_name(row: int) -> str:
    """Of the tensor that row ``row`` is in a slot of rows."""
    return f"row{row}"


def _view(arena: Arena, slot: int, name: str) -> Bytes:
    spec = arena.layout.specs()[name]
    return arena.slot_bytes(slot)[spec.offset : spec.offset + spec.nbytes]


def _key_of(arena: Arena) -> ParityRowKey:
    """Whose rows an arena holds, as the newest of them say.

    Raises:
        CorruptArenaError: none of them holds the layout.
    """
    newest = arena.newest()
    if newest is None:
        raise CorruptArenaError(f"{arena.path.name} holds no rows")
    parts = _described(arena, newest).parts
    return ParityRowKey(tuple(part.rank for part in parts), arena.header.rank)


def _row(key: ParityRowKey, arena: Arena, record: SlotRecord) -> ParityRow:
    found = _described(arena, record)
    if tuple(part.rank for part in found.parts) != key.ranks or not 1 <= found.parity < len(key.ranks):
        raise CorruptArenaError(f"{arena.path.name}: the description of epoch {record.epoch} is of another group")
    return ParityRow(key, arena, record, found.parity, found.parts)


def _described(arena: Arena, record: SlotRecord) -> RowDescription:
    try:
        return read_description(np.array(_view(arena, record.slot, META)))
    except ValueError as error:
        raise CorruptArenaError(f"{arena.path.name}: the description of epoch {record.epoch} is damaged") from error


def read_description(raw: Bytes) -> RowDescription:
    """Read the tensor ``META`` of a slot of rows.

    Raises:
        ValueError: it is damaged.
    """
    return _descriptions.decode(varlen_buffer.read_bytes(raw))
