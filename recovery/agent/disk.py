"""The disk level: whole slots as files ``rank-R/epoch-E.slot``, written by temporary name, fsync and rename.

A file is one 4 KiB page (numbers and their checksum), the layout as JSON padded to pages, then the bytes of the slot.
Only if page, size and digest agree is it believed: a torn or foreign file is refused, never loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from recovery.agent.background import Background
from recovery.agent.errors import CorruptError, NoSuchSlotError
from recovery.agent.messages import DiskInfo, Fetched, LoadDisk
from recovery.agent.node import Node
from recovery.memory.arena import Arena
from recovery.memory.digest import digest
from recovery.memory.errors import ArenaError, LayoutMismatchError
from recovery.memory.layout import Layout, align
from recovery.memory.records import PAGE, SlotRecord, Word

CHUNK: Final = 8 * 1024 * 1024
_MAGIC: Final = b"MAINSLOT"
# magic version rank epoch generation nbytes digest layout_digest layout_bytes
_PAGE: Final = struct.Struct("<8sIIqQQQQI")
_CRC: Final = struct.Struct("<Q")
_NAME: Final = re.compile(r"^epoch-(\d+)\.slot$")
_MAX_LISTED: Final = 4096


class Page:
    """The first page of a file."""

    def __init__(self, path: Path, raw: bytes) -> None:
        body = raw[: _PAGE.size]
        if len(raw) < PAGE or _CRC.unpack_from(raw, _PAGE.size)[0] != digest(body) or body[:8] != _MAGIC:
            raise CorruptError(f"{path} is not a whole slot file")
        numbers: tuple[int, ...] = _PAGE.unpack(body)[2:]
        self.rank, self.epoch, self.generation, self.nbytes, self.digest, self.layout_digest, self.layout_bytes = (
            numbers
        )
        self.data_at = PAGE + align(self.layout_bytes, PAGE)


def slot_path(directory: Path, rank: int, epoch: int) -> Path:
    return directory / f"rank-{rank}" / f"epoch-{epoch}.slot"


def write_slot(arena: Arena, record: SlotRecord, directory: Path) -> Path:
    """Write a verified slot durably.

    Raises:
        TornSlotError: overwritten meanwhile; nothing is left behind.
        OSError: the disk refused; nothing is left behind.
    """
    path = slot_path(directory, arena.header.rank, record.epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with new.open("wb", buffering=0) as file, arena.reading(record) as data:
            file.write(_header(arena, record))
            for at in range(0, len(data), CHUNK):
                _write_all(file.fileno(), data[at : at + CHUNK].data)
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return path


def _header(arena: Arena, record: SlotRecord) -> bytes:
    text = arena.layout.to_json()
    body = _PAGE.pack(
        _MAGIC,
        1,
        arena.header.rank,
        record.epoch,
        record.generation,
        record.nbytes,
        record.digest,
        arena.layout.digest,
        len(text),
    )
    return (body + _CRC.pack(digest(body))).ljust(PAGE, b"\0") + text.ljust(align(len(text), PAGE), b"\0")


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_page(path: Path) -> Page:
    """The page of a file that has the size which it says.

    Raises:
        NoSuchSlotError, CorruptError.
    """
    try:
        with path.open("rb") as file:
            page = Page(path, file.read(PAGE))
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise NoSuchSlotError(f"{path} does not exist") from error
    if size != page.data_at + page.nbytes:
        raise CorruptError(f"{path} has {size} bytes, its page says {page.data_at + page.nbytes}")
    return page


def read_layout(path: Path) -> Layout:
    """The layout in a file: what somebody needs who has no arena yet."""
    page = read_page(path)
    with path.open("rb") as file:
        file.seek(PAGE)
        text = file.read(page.layout_bytes)
    if digest(text) != page.layout_digest:
        raise CorruptError(f"{path}: the layout does not match its checksum")
    return Layout.from_json(text)


def list_disk(directory: Path) -> Iterator[DiskInfo]:
    """Files whose page and size hold; the digest is only checked when one is loaded."""
    found = sorted(directory.glob("rank-*/epoch-*.slot"), reverse=True)
    for path in found[:_MAX_LISTED]:
        with contextlib.suppress(NoSuchSlotError, CorruptError, OSError):
            page = read_page(path)
            yield DiskInfo(rank=page.rank, epoch=page.epoch, nbytes=page.nbytes, generation=page.generation)


def load_disk(node: Node, order: LoadDisk, generation: int) -> Fetched:
    """Carry out ``LoadDisk``: see ``AgentClient.load_disk``."""
    begun = time.perf_counter()
    store = node.store
    arena = store.arena(order.rank)
    path = slot_path(Path(order.directory), order.rank, order.epoch)
    page = read_page(path)
    if (page.rank, page.epoch) != (order.rank, order.epoch):
        raise CorruptError(f"{path} holds rank {page.rank} epoch {page.epoch}")
    if page.layout_digest != arena.layout.digest:
        raise LayoutMismatchError(f"{path} holds other tensors than rank {order.rank} has now")
    with store.lock(order.rank):
        slot = arena.choose().slot
        out = arena.begin(slot, generation)[: page.nbytes]
        with path.open("rb", buffering=0) as file:
            file.seek(page.data_at)
            _read_all(file.fileno(), out.data, path)
        node.meter.add("disk_read", page.nbytes, time.perf_counter() - begun)
        record = store.accept(order.rank, slot, order.epoch, page.generation, page.digest)
    return Fetched(nbytes=record.nbytes, seconds=time.perf_counter() - begun, digest=record.digest)


def _read_all(fd: int, out: memoryview, path: Path) -> None:
    done = 0
    while done < len(out):
        count = os.readv(fd, [out[done : done + CHUNK]])
        if not count:
            raise CorruptError(f"{path} ended after {done} of {len(out)} bytes")
        done += count


class DiskWriter(Background):
    """Writes every pending disk epoch of every rank, then lets its slot go; what cannot be written is reported."""

    def __init__(self, node: Node, directory: Path) -> None:
        super().__init__("mainstay-disk")
        self._store = node.store
        self._meter = node.meter
        self._keep = node.settings.disk_keep
        self._directory = directory

    def turn(self) -> float:
        for rank, arena in self._store.all():
            discards = self._store.discards
            for epoch in _pending(arena):
                self._persist(rank, arena, epoch)
                if not self._settle(rank, arena, epoch, discards):
                    break
        return 0.5

    def _settle(self, rank: int, arena: Arena, epoch: int, discards: int) -> bool:
        """Let the slot go. Not if the job went back meanwhile: then its epoch is still to be made, and written."""
        with self._store.lock(rank):
            if self._store.discards != discards:
                return False
            arena.set_word(Word.DISK_FLOOR, epoch)
            return True

    def _persist(self, rank: int, arena: Arena, epoch: int) -> None:
        subject = f"disk level of rank {rank}"
        try:
            begun = time.perf_counter()
            record = self._store.verified(rank, epoch)[1]
            if not _written(slot_path(self._directory, rank, epoch), record):
                path = write_slot(arena, record, self._directory)
                self._meter.add("disk_write", record.nbytes, time.perf_counter() - begun)
                _prune(path.parent, self._keep)
        except (ArenaError, OSError) as error:
            self._store.degraded[subject] = f"epoch {epoch} was not written: {error}"
        else:
            self._store.degraded.pop(subject, None)


def _written(path: Path, record: SlotRecord) -> bool:
    """Whether the very same slot lies there already. Equal bytes of a past generation may count as given up."""
    try:
        page = read_page(path)
    except (NoSuchSlotError, CorruptError, OSError):
        return False
    return bool(page.digest == record.digest and page.generation >= record.generation)


def _pending(arena: Arena) -> list[int]:
    pins = arena.pins()
    if not pins.disk_every:
        return []
    epochs = {r.epoch for r in arena.records() if r.committed}
    return sorted(e for e in epochs if e > pins.disk_floor and e % pins.disk_every == 0)


def _prune(directory: Path, keep: int) -> None:
    """Keep the files written last. Not the highest epochs: a job that went back must not keep an abandoned future."""
    files = sorted((p for p in directory.iterdir() if _NAME.match(p.name)), key=lambda p: p.stat().st_mtime_ns)
    for path in files[:-keep]:
        path.unlink(missing_ok=True)
