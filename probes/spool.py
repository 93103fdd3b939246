"""A bounded queue on disk: what was appended survives ``kill -9`` at any point, and leaves only when acknowledged.

Invariants:

* Sequence numbers start at 1 and grow by one for the life of the directory, whose random name is ``stream``; a number
  is never given to two payloads, because nothing is lent to a sender before it is durable (file and directory synced).
* The queue never holds more than ``max_bytes`` on disk: the oldest segment is dropped, counted and logged.
* A torn tail (the process or the machine died while appending) is discarded when the directory is opened again. A
  damaged segment is set aside as ``….damaged``: the others stay in use.
* An entry that the service refuses for ever is set aside in ``rejected/`` with the reason and never blocks the queue.

In the directory: segments (see ``mainstay.probes.segments``); ``acked``, the last acknowledged sequence (should it be
lost, entries are sent again, which changes nothing); ``lock``, held by the one process that owns the directory.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from mainstay.probes import segments
from mainstay.probes.data_dir import private_directory
from mainstay.probes.ids import uuid7
from mainstay.probes.segments import HEADER_BYTES, Entry, Segment, SpoolError

__all__ = ["Entry", "Spool", "SpoolError"]

log = logging.getLogger(__name__)

_ACKED: Final = struct.Struct("<QI")
_SEGMENTS: Final = 16
"""Segments in a full spool: dropping the oldest loses a sixteenth of what is held."""
_LARGEST: Final = 4
"""An entry may take a quarter of the spool."""
_REJECTED_KEPT: Final = 64
"""Enough to see what is wrong; a service that refuses everything must not fill the disk."""


class Spool:
    """A bounded, durable first-in-first-out queue of byte strings, safe to use from several threads.

    ``append`` puts a payload where it survives the death of this process and returns its sequence number. A sender
    then calls ``peek`` (which first makes everything durable against loss of power), sends in order, and says ``ack``
    or ``reject``.

    Raises:
        SpoolError: another process owns ``directory``.
        TooOpenError: group or others may use it.
    """

    def __init__(self, directory: Path, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.dropped = 0
        """Entries lost to the bound since this object was made."""
        self.rejected = 0
        """Entries set aside since this object was made."""
        self._changed = threading.Condition()
        self._sync_lock = threading.Lock()
        self._segments: deque[Segment] = deque()
        self._file: BinaryIO
        private_directory(directory)
        self._lock = _take(directory / "lock")
        self._acked_descriptor = os.open(directory / "acked", os.O_RDWR | os.O_CREAT, 0o600)
        self._acked = self._read_acked()
        try:
            self.stream = self._load()
        except BaseException:  # boundary: the error propagates after the directory is released
            os.close(self._acked_descriptor)
            self._lock.close()
            raise
        self._synced = self._next
        self._cursor = (self._segments[0], HEADER_BYTES)

    def append(self, payload: bytes | Callable[[int], bytes]) -> int:
        """Queue a payload and return its sequence number.

        A callable is given the sequence number and makes the payload: for formats that carry it inside.

        Raises:
            ValueError: the payload is empty or larger than a quarter of ``max_bytes``.
            OSError: the disk refuses; nothing was queued and the sequence number is not used up.
        """
        with self._changed:
            sequence = self._next
            body = payload(sequence) if callable(payload) else payload
            if not 0 < len(body) <= self.max_bytes // _LARGEST:
                raise ValueError(f"entry has {len(body)} bytes, allowed are 1 to {self.max_bytes // _LARGEST}")
            record = segments.record(sequence, body)
            self._make_room(len(record))
            self._write(record)
            self._changed.notify_all()
            return sequence

    def peek(self, limit: int = 1) -> list[Entry]:
        """The oldest unacknowledged entries, at most ``limit``, made durable before they are lent."""
        self.sync()
        with self._changed:
            entries: list[Entry] = []
            for entry in self._unacknowledged():
                if len(entries) == limit or entry.sequence >= self._synced:
                    break
                entries.append(entry)
            return entries

    def wait(self, timeout: float | None = None) -> bool:
        """Block until an entry is pending or ``wake`` is called; True when an entry is pending."""
        with self._changed:
            if not self._pending():
                self._changed.wait(timeout)
            return self._pending() > 0

    def wait_empty(self, timeout: float) -> bool:
        """Block until everything was acknowledged; False when ``timeout`` seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending(), timeout)

    def wake(self) -> None:
        """Let ``wait`` return now."""
        with self._changed:
            self._changed.notify_all()

    def ack(self, sequence: int) -> None:
        """Everything up to and including ``sequence`` has been delivered; it is deleted."""
        with self._changed:
            self._acked = max(self._acked, min(sequence, self._next - 1))
            os.pwrite(self._acked_descriptor, _ACKED.pack(self._acked, segments.crc(self._acked, b"acked")), 0)
            while len(self._segments) > 1 and self._segments[0].next <= self._acked + 1:
                self._remove_oldest()
            self._changed.notify_all()

    def reject(self, entry: Entry, reason: str) -> None:
        """Set the oldest entry aside in ``rejected/`` with the reason; the queue continues behind it."""
        self.set_aside(entry, reason)
        self.ack(entry.sequence)

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Keep a copy of an entry in ``rejected/`` with the reason; it still waits for its acknowledgement."""
        self.rejected += 1
        log.error("spool %s: entry %d set aside: %s", self.directory.name, entry.sequence, reason)
        aside = self.directory / "rejected"
        try:
            aside.mkdir(exist_ok=True)
            path = aside / f"{entry.sequence:016d}.entry"
            path.with_suffix(".reason").write_text(reason + "\n")
            path.write_bytes(entry.payload)
            for old in sorted(aside.glob("*.entry"))[:-_REJECTED_KEPT]:
                old.unlink()
                old.with_suffix(".reason").unlink(missing_ok=True)
        except OSError:
            log.exception("spool %s: a rejected entry could not be kept", self.directory.name)

    def sync(self) -> None:
        """Make everything appended so far durable against loss of power: one fdatasync for all of it."""
        with self._sync_lock:
            with self._changed:
                upto = self._next
                if upto == self._synced:
                    return
                descriptor = os.dup(self._file.fileno())  # an append may start another segment meanwhile
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            with self._changed:
                self._synced = max(self._synced, upto)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, with entries that were acknowledged and are not yet deleted."""
        with self._changed:
            return self._bytes()

    def __len__(self) -> int:
        """Entries that wait for an acknowledgement."""
        with self._changed:
            return self._pending()

    def close(self) -> None:
        """Sync and release the directory; what is pending stays for the next owner."""
        self.sync()
        self._file.close()
        os.close(self._acked_descriptor)
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Below: called with the condition held, or before any other thread knows the object.

    @property
    def _next(self) -> int:
        return self._segments[-1].next

    def _bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def _pending(self) -> int:
        return sum(max(0, s.next - max(s.first, self._acked + 1)) for s in self._segments)

    def _load(self) -> str:
        stream, first = self._load_segments()
        stream = stream or uuid7()
        first = max(first, self._acked + 1)
        if not self._segments or self._next < first:
            # Numbers that were once given away are never used again, even if the disk lost what carried them.
            self._start_segment(stream, first)
            return stream
        last = self._segments[-1]
        self._file = last.path.open("r+b", buffering=0)
        self._truncate(last)
        os.fsync(self._file.fileno())
        return stream

    def _load_segments(self) -> tuple[str, int]:
        """Append what is whole; set aside what is damaged. Returns the stream and the first number that is free."""
        stream, first = "", 1
        for path in sorted(self.directory.glob("*.seg"), reverse=True):
            try:
                stream = stream or segments.stream_of(path)
                segment = segments.scan(path, stream)
            except (SpoolError, OSError, ValueError) as error:
                aside = path.with_suffix(".damaged")
                first = max(first, _beyond(path))
                path.rename(aside)
                log.warning("%s; it was set aside as %s", error, aside.name)
                continue
            if self._segments and (lost := path.stat().st_size - segment.size):  # not the torn tail of the newest
                log.warning("%s is damaged: its last %d bytes are lost", path, lost)
            self._segments.appendleft(segment)
        return stream, first

    def _start_segment(self, stream: str, first: int) -> None:
        segment, self._file = segments.create(self.directory, stream, first)
        self._segments.append(segment)

    def _make_room(self, size: int) -> None:
        last = self._segments[-1]
        if last.next > last.first and last.size + size > self.max_bytes // _SEGMENTS:
            previous = self._file
            os.fdatasync(previous.fileno())
            self._synced = self._next
            self._start_segment(self.stream, first=self._next)
            previous.close()
        while self._bytes() + size > self.max_bytes and len(self._segments) > 1:
            self._drop_oldest()

    def _write(self, record: bytes) -> None:
        last = self._segments[-1]
        written = 0
        try:
            written = self._file.write(record)
        finally:
            if written != len(record):
                self._truncate(last)
        if written != len(record):
            raise OSError(errno.ENOSPC, f"{last.path} cannot take {len(record)} more bytes")
        last.size += len(record)
        last.next += 1

    def _truncate(self, segment: Segment) -> None:
        self._file.truncate(segment.size)
        self._file.seek(segment.size)

    def _drop_oldest(self) -> None:
        oldest = self._segments[0]
        lost = oldest.next - max(oldest.first, self._acked + 1)
        if lost > 0:
            self.dropped += lost
            log.warning("spool %s is full: its %d oldest entries are lost", self.directory.name, lost)
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        gone = self._segments.popleft()
        gone.path.unlink(missing_ok=True)
        if self._cursor[0] is gone:
            self._cursor = (self._segments[0], HEADER_BYTES)

    def _unacknowledged(self) -> Iterator[Entry]:
        segment, offset = self._cursor
        for candidate in list(self._segments)[self._segments.index(segment) :]:
            if candidate is not segment:
                offset = HEADER_BYTES
            for entry, end in segments.read(candidate, offset, candidate.size):
                if entry.sequence > self._acked:
                    yield entry
                else:
                    self._cursor = (candidate, end)

    def _read_acked(self) -> int:
        try:
            sequence, check = _ACKED.unpack(os.pread(self._acked_descriptor, _ACKED.size, 0))
        except struct.error:  # a new directory
            return 0
        return int(sequence) if check == segments.crc(sequence, b"acked") else 0


def _beyond(path: Path) -> int:
    """A number above all that a segment can hold: each entry has more than one byte."""
    return int(path.stem) + path.stat().st_size if path.stem.isdecimal() else 1


def _take(path: Path) -> BinaryIO:
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SpoolError(f"{path.parent} is in use by another process") from None
    return file
