"""The bytes of an arena's header and slot records, and nothing else. Every cell has exactly one writer and a checksum.

One 4 KiB page: static header (256 B) | words (256 B) | slot records (128 B each), then the layout as JSON, then slots.
A slot record is two cells of 64 B. The writer's cell goes INVALID -> COPIED; the agent's cell says which write
(``sequence``) it has digested. A slot is VERIFIED while both speak of the same write, so that no process ever writes a
cell that another one may be writing, and a verdict can never outlive the bytes it was about.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from mainstay.recovery.memory.digest import digest
from mainstay.recovery.memory.errors import CorruptArenaError

PAGE: Final = 4096
MAGIC: Final = b"MAINSTAY"
VERSION: Final = 1
MAX_SLOTS: Final = 8
WORDS_AT: Final = 256
RECORDS_AT: Final = 512
RECORD_BYTES: Final = 128
CELL_BYTES: Final = 64
NO_EPOCH: Final = -1

_HEADER = struct.Struct("<8sIIQQIIQQI")
"""magic version slots slot_bytes layout_digest layout_bytes rank data_at file_bytes kind"""
_CELL = struct.Struct("<IIqQQQQQ")  # state slot epoch generation layout_digest nbytes digest sequence
_CRC = struct.Struct("<Q")


class Word(IntEnum):
    """Index of each live word. A word is 8 aligned bytes, stored at once, and has one writer: the agent."""

    PARITY_EPOCH = 0
    """Newest epoch whose parity every member of the group holds."""
    PARITY_FLOOR = 1
    """Parity epochs up to here are done or given up; later ones are pending and their slots pinned."""
    PARITY_EVERY = 2
    """Epochs divisible by this get parity; 0 means none do."""
    DISK_FLOOR = 3
    """Disk epochs up to here are written or given up; later ones are pending and their slots pinned."""
    DISK_EVERY = 4
    """Epochs divisible by this go to disk; 0 means none do."""
    FENCE = 5
    """Lowest generation that may still write."""
    HEARTBEAT = 6
    """The agent's ``time.monotonic_ns()``; the clock is the machine's, not the process's."""
    DISK_ONCE = 7
    """One more epoch that goes to disk, on request."""


class SlotState(IntEnum):
    INVALID = 0
    COPIED = 1
    VERIFIED = 2


class Header(NamedTuple):
    """The part of an arena that never changes after its creation, in the order of its bytes."""

    slots: int
    slot_bytes: int
    """Room of one slot: the layout's bytes, rounded up to a page."""
    layout_digest: int
    layout_bytes: int
    rank: int
    data_at: int
    file_bytes: int
    kind: int
    """0: a rank's snapshots. 1: parity rows."""

    def slot_at(self, slot: int) -> int:
        return self.data_at + slot * self.slot_bytes


class SlotRecord(NamedTuple):
    """What one cell says of a slot, in the order of its bytes; or what a reader believes after checking both cells.

    In the agent's cell ``state`` is VERIFIED and ``digest`` is that of the data.
    """

    state: SlotState
    slot: int
    epoch: int
    generation: int
    layout_digest: int
    nbytes: int
    digest: int
    """xxh3_64 of the data; 0 unless VERIFIED."""
    sequence: int
    """Counts the writes of this slot; a reader compares it before and after."""

    @property
    def committed(self) -> bool:
        return self.state is not SlotState.INVALID


def pack_header(header: Header) -> bytes:
    body = _HEADER.pack(MAGIC, VERSION, *header)
    return body + _CRC.pack(digest(body))


def unpack_header(page: bytes, what: str) -> Header:
    """The header of an arena.

    Raises:
        CorruptArenaError: not an arena, another version, or damaged; names ``what``.
    """
    if len(page) < PAGE or page[:8] != MAGIC:
        raise CorruptArenaError(f"{what} is not an arena")
    body = page[: _HEADER.size]
    (crc,) = _CRC.unpack_from(page, _HEADER.size)
    if crc != digest(body):
        raise CorruptArenaError(f"{what}: the header does not match its checksum")
    _, version, *fields = _HEADER.unpack(body)
    if version != VERSION:
        raise CorruptArenaError(f"{what} has format version {version}, this program reads {VERSION}")
    return Header(*fields)


def cell_at(slot: int, *, agent: bool) -> int:
    """Where a cell lies in the file."""
    return RECORDS_AT + slot * RECORD_BYTES + (CELL_BYTES if agent else 0)


def pack_cell(cell: SlotRecord) -> bytes:
    body = _CELL.pack(*cell)
    return body + _CRC.pack(digest(body))


def unpack_cell(raw: bytes) -> SlotRecord | None:
    """The cell, or None if its checksum fails: torn while being written, or damaged. Either way it says nothing."""
    body = raw[: _CELL.size]
    if _CRC.unpack_from(raw, _CELL.size)[0] != digest(body):
        return None
    state, *rest = _CELL.unpack(body)
    return SlotRecord(SlotState(state), *rest) if state in SlotState.__members__.values() else None


assert _CELL.size + _CRC.size == CELL_BYTES, "a cell is one cache line"
