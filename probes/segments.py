"""The files of a spool: segments of checksummed records. A record is whole or it is not there.

A segment is a header (magic, stream id), then records (length, CRC-32 of sequence and payload, sequence, payload) whose
sequence numbers grow by one from the number in the file's name.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from mainstay.probes.durable_files import sync_directory

_MAGIC: Final = b"MSSPOOL1"
_HEADER: Final = struct.Struct("<8s36s")
_RECORD: Final = struct.Struct("<IIQ")
HEADER_BYTES: Final = _HEADER.size
RECORD_BYTES: Final = _RECORD.size


class SpoolError(RuntimeError):
    """The directory or a file in it cannot be used: another process owns it, or it is not ours."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One durable, unacknowledged payload."""

    sequence: int
    payload: bytes


@dataclass(slots=True, eq=False)
class Segment:
    """What is known of a segment file: its valid length and the numbers it holds (``first`` to ``next - 1``)."""

    path: Path
    first: int
    size: int
    next: int


def crc(sequence: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(sequence.to_bytes(8, "little")))


def record(sequence: int, payload: bytes) -> bytes:
    return _RECORD.pack(len(payload), crc(sequence, payload), sequence) + payload


def create(directory: Path, stream: str, first: int) -> tuple[Segment, BinaryIO]:
    """A new, durable, empty segment: it appears under its name only when its header is on disk."""
    path = directory / f"{first:016d}.seg"
    scratch = path.with_suffix(".tmp")
    file = scratch.open("w+b", buffering=0)
    file.write(_HEADER.pack(_MAGIC, stream.encode()))
    os.fsync(file.fileno())
    scratch.rename(path)
    sync_directory(directory)
    return Segment(path, first, HEADER_BYTES, first), file


def stream_of(path: Path) -> str:
    """The stream id in a segment's header.

    Raises:
        SpoolError: the file is not a segment.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if len(header) != HEADER_BYTES or not header.startswith(_MAGIC) or not path.stem.isdecimal():
        raise SpoolError(f"{path} is not a spool segment")
    return str(_HEADER.unpack(header)[1].decode("ascii", "replace"))


def scan(path: Path, stream: str) -> Segment:
    """Read a segment through and keep what is whole, up to the first record that is not."""
    found = stream_of(path)
    if found != stream:
        raise SpoolError(f"{path} belongs to stream {found}, the directory to {stream}")
    segment = Segment(path, int(path.stem), HEADER_BYTES, int(path.stem))
    for entry, end in read(segment, HEADER_BYTES, path.stat().st_size):
        segment.size, segment.next = end, entry.sequence + 1
    return segment


def read(segment: Segment, offset: int, end: int) -> Iterator[tuple[Entry, int]]:
    """Entries between two offsets, each with the offset after it; stops at the first damaged one."""
    with segment.path.open("rb") as file:
        file.seek(offset)
        while offset + RECORD_BYTES < end:
            size, check, sequence = _RECORD.unpack(file.read(RECORD_BYTES))
            offset += RECORD_BYTES + size
            if not size or offset > end:
                return
            payload = file.read(size)
            if check != crc(sequence, payload):
                return
            yield Entry(sequence, payload), offset
