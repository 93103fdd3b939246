"""An arena: one rank's slots in one plain memory-mapped file, which outlives every process that maps it.

The agent creates and pre-faults the file; trainers map it and write. A slot's bytes are believed only while its record
is committed, and a reader looks at the record again after it has read: a torn slot is never accepted. Stores reach
other processes in program order on x86; on ARM a torn slot would still be caught by its digest.

Not ``multiprocessing.shared_memory``: before Python 3.13 the death of a process that merely attached unlinks the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import (
    CorruptArenaError,
    FencedError,
    ShortMemoryError,
    SlotMissingError,
    TornSlotError,
)
from mainstay.recovery.memory.layout import Layout, align
from mainstay.recovery.memory.records import (
    CELL_BYTES,
    MAX_SLOTS,
    NO_EPOCH,
    PAGE,
    WORDS_AT,
    Header,
    SlotRecord,
    SlotState,
    Word,
    cell_at,
    pack_cell,
    pack_header,
    unpack_cell,
    unpack_header,
)
from mainstay.recovery.memory.slots import Pins, SlotChoice, choose_slot, newest

RANK_ARENA: Final = 0
PARITY_ARENA: Final = 1

ALIVE_SECONDS: Final = 3.0
"""The agent beats every 0.2 s; fifteen missed beats on a loaded machine mean that it is gone."""

_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; the constant is missing from Python 3.11's mmap
_PREFAULT_BYTES: Final = 8 << 20
_libc: Final = ctypes.CDLL(None, use_errno=True)
_READ_TRIES: Final = 50


class Arena:
    """A mapped arena. Create with ``Arena.create`` (the agent) or ``Arena.attach`` (everyone else)."""

    def __init__(self, path: Path, mapping: mmap.mmap, header: Header, layout: Layout) -> None:
        self.path = path
        self.header = header
        self.layout = layout
        self._mapping = mapping
        self.raw: Bytes = np.frombuffer(mapping, np.uint8)
        """The whole file. For this module alone; others ask for slots."""
        self._words: npt.NDArray[np.int64] = self.raw[WORDS_AT : WORDS_AT + 8 * len(Word)].view(np.int64)

    # Making and mapping

    @classmethod
    def create(cls, path: Path, *, rank: int, layout: Layout, slots: int, kind: int = RANK_ARENA) -> Arena:
        """Make the file, with every page already there, and map it. An existing file is replaced at once.

        Raises:
            ShortMemoryError: the file system cannot hold it; names the bytes needed and free.
            ValueError: fewer than two slots, or more than eight.
        """
        if not 2 <= slots <= MAX_SLOTS:
            raise ValueError(f"an arena has 2 to {MAX_SLOTS} slots, not {slots}")
        text = layout.to_json()
        slot_bytes, data_at = align(layout.nbytes, PAGE), PAGE + align(len(text), PAGE)
        size = data_at + slots * slot_bytes
        header = Header(slots, slot_bytes, layout.digest, len(text), rank, data_at, size, kind)
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            _allocate(new, size)
            arena = cls._map(new, header, layout)
            arena.repair_static()
            arena.reset()
            new.replace(path)
        except BaseException:  # boundary: after any failure, half an arena must not stay in memory
            new.unlink(missing_ok=True)
            raise
        arena.path = path
        return arena

    @classmethod
    def attach(cls, path: Path) -> Arena:
        """Map an existing arena.

        Raises:
            FileNotFoundError: there is none.
            CorruptArenaError: header, size or layout do not hold together.
        """
        with path.open("rb") as file:
            header = unpack_header(file.read(PAGE), str(path))
            text = file.read(header.layout_bytes)
            size = os.fstat(file.fileno()).st_size
        if size != header.file_bytes or header.slot_at(header.slots) != size:
            raise CorruptArenaError(f"{path} has {size} bytes, its header says {header.file_bytes}")
        if digest(text) != header.layout_digest:
            raise CorruptArenaError(f"{path}: the layout does not match its checksum")
        layout = Layout.from_json(text)
        if layout.nbytes > header.slot_bytes:
            raise CorruptArenaError(f"{path}: the layout needs {layout.nbytes} bytes, a slot has {header.slot_bytes}")
        return cls._map(path, header, layout)

    @classmethod
    def _map(cls, path: Path, header: Header, layout: Layout) -> Arena:
        with path.open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), header.file_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        return cls(path, mapping, header, layout)

    def prefault(self) -> None:
        """Fill this process's page table, so that the first copy is as fast as the later ones. Optional.

        A millisecond a megabyte at worst, in which other threads continue: ``mmap.madvise`` would keep the interpreter.
        """
        for at in range(0, len(self.raw), _PREFAULT_BYTES):  # one call would keep other threads from getting memory
            part = self.raw[at : at + _PREFAULT_BYTES]
            if _libc.madvise(ctypes.c_void_p(part.ctypes.data), ctypes.c_size_t(len(part)), _MADV_POPULATE_WRITE):
                return  # an old kernel: the first copy pays instead

    def close(self) -> None:
        """Release the mapping. Views given out keep it alive until they go; the file stays in any case."""
        self._words = np.zeros(len(Word), np.int64)
        self.raw = np.zeros(0, np.uint8)
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def reset(self) -> None:
        """A fresh arena's words and records. Only ``create`` may."""
        self._words[:] = NO_EPOCH
        self.set_word(Word.PARITY_EVERY, 0)
        self.set_word(Word.DISK_EVERY, 0)
        self.set_word(Word.FENCE, 0)
        self.set_word(Word.HEARTBEAT, time.monotonic_ns())
        for slot in range(self.header.slots):
            self.write_cell(self.blank(slot, 0), agent=False)
            self.write_cell(self.blank(slot, 0), agent=True)

    def repair_static(self) -> bool:
        """Put header and layout right; whether they were wrong."""
        wrong = False
        for at, right in ((0, pack_header(self.header)), (PAGE, self.layout.to_json())):
            here = self.raw[at : at + len(right)]
            if here.tobytes() != right:
                here[:] = np.frombuffer(right, np.uint8)
                wrong = True
        return wrong

    # Words

    def word(self, which: Word) -> int:
        return int(self._words[which])

    def set_word(self, which: Word, value: int) -> None:
        """The agent's alone: see ``Word``."""
        self._words[which] = value

    def pins(self) -> Pins:
        return Pins(
            parity_epoch=self.word(Word.PARITY_EPOCH),
            parity_floor=self.word(Word.PARITY_FLOOR),
            parity_every=self.word(Word.PARITY_EVERY),
            disk_floor=self.word(Word.DISK_FLOOR),
            disk_every=self.word(Word.DISK_EVERY),
            disk_once=self.word(Word.DISK_ONCE),
        )

    def agent_alive(self) -> bool:
        return time.monotonic_ns() - self.word(Word.HEARTBEAT) < ALIVE_SECONDS * 1e9

    # Records

    def record(self, slot: int) -> SlotRecord:
        """What may be believed about ``slot`` now. A cell that stays damaged makes it INVALID."""
        cell = self.read_cell(slot, agent=False)
        if cell is None or cell.slot != slot or cell.layout_digest != self.header.layout_digest:
            return self.blank(slot, 0)
        if cell.state is SlotState.COPIED:
            agent = self.read_cell(slot, agent=True)
            if agent is not None and (agent.sequence, agent.epoch) == (cell.sequence, cell.epoch):
                return cell._replace(state=SlotState.VERIFIED, digest=agent.digest)
        return cell

    def records(self) -> list[SlotRecord]:
        return [self.record(slot) for slot in range(self.header.slots)]

    def newest(self) -> SlotRecord | None:
        """The newest committed record, or None."""
        return newest(self.records())

    def find(self, epoch: int) -> SlotRecord:
        """The committed record of ``epoch``, verified before merely copied.

        Raises:
            SlotMissingError: names the epochs that are there.
        """
        here = [r for r in self.records() if r.committed]
        found = [r for r in here if r.epoch == epoch]
        if not found:
            epochs = sorted(r.epoch for r in here)
            raise SlotMissingError(f"rank {self.header.rank} has no slot of epoch {epoch}, only of {epochs}")
        return max(found, key=lambda r: (r.state, r.generation, r.sequence))

    def unchanged(self, record: SlotRecord) -> bool:
        """Whether the bytes that ``record`` names are still the committed ones: call it after reading them."""
        now = self.record(record.slot)
        return now.committed and (now.sequence, now.epoch) == (record.sequence, record.epoch)

    # Writing

    def choose(self) -> SlotChoice:
        """The slot to write next; see ``slots.choose``."""
        return choose_slot(self.records(), self.pins())

    def begin_write(self, slot: int, generation: int) -> Bytes:
        """Invalidate ``slot`` and give its bytes out for writing: uint8 [slot bytes].

        Raises:
            FencedError: ``generation`` was revoked.
        """
        self.require_live(generation)
        self.write_cell(self.blank(slot, self._sequence(slot) + 1), agent=False)
        return self.slot_bytes(slot)

    def commit(self, slot: int, epoch: int, generation: int, nbytes: int | None = None) -> SlotRecord:
        """Declare the bytes of ``slot`` complete: COPIED.

        Raises:
            FencedError: ``generation`` was revoked while they were copied.
        """
        self.require_live(generation)
        size = self.layout.nbytes if nbytes is None else nbytes
        blank = self.blank(slot, self._sequence(slot))
        cell = blank._replace(state=SlotState.COPIED, epoch=epoch, generation=generation, nbytes=size)
        self.write_cell(cell, agent=False)
        return self.record(slot)

    def verify(self, record: SlotRecord, found: int | None = None) -> SlotRecord:
        """Digest the bytes of a COPIED slot and write the agent's cell: VERIFIED. The agent's alone.

        ``found`` is the digest that the agent has taken while it filled the slot; None: it must be taken now.

        Raises:
            TornSlotError: the slot was written meanwhile.
        """
        if found is None:
            found = digest(self.slot_bytes(record.slot)[: record.nbytes])
        if not self.unchanged(record):
            raise TornSlotError(f"rank {self.header.rank}: slot {record.slot} changed while it was digested")
        self.write_cell(record._replace(state=SlotState.VERIFIED, digest=found), agent=True)
        return self.record(record.slot)

    def discard_after(self, epoch: int) -> None:
        """Invalidate every slot of a later epoch: the job went back to ``epoch``. Only while no process writes."""
        for record in self.records():
            if record.committed and record.epoch > epoch:
                self.invalidate(record)

    def retire_twins(self, record: SlotRecord) -> None:
        """Invalidate other slots of the same epoch, so that an epoch never means two things. After a commit."""
        for other in self.records():
            if other.committed and other.epoch == record.epoch and other.slot != record.slot:
                self.invalidate(other)

    def invalidate(self, record: SlotRecord) -> None:
        """Declare a slot worthless, for instance because its digest does not hold."""
        self.write_cell(self.blank(record.slot, record.sequence + 1), agent=False)

    def require_live(self, generation: int) -> None:
        fence = self.word(Word.FENCE)
        if generation < fence:
            raise FencedError(
                f"rank {self.header.rank}: generation {generation} was fenced, {fence} is the lowest alive"
            )

    # Bytes

    def slot_bytes(self, slot: int) -> Bytes:
        """The raw room of a slot, uint8, without a copy."""
        start = self.header.slot_at(slot)
        return self.raw[start : start + self.header.slot_bytes]

    @property
    def data(self) -> Bytes:
        """All slots side by side, for whoever registers them with a device."""
        return self.raw[self.header.data_at :]

    @contextlib.contextmanager
    def reading(self, record: SlotRecord) -> Iterator[Bytes]:
        """The bytes of a committed slot; leaving the block checks that they were still committed.

        Raises:
            TornSlotError: on leaving, when the slot was overwritten meanwhile.
        """
        yield self.slot_bytes(record.slot)[: record.nbytes]
        if not self.unchanged(record):
            raise TornSlotError(f"rank {self.header.rank}: slot {record.slot} of epoch {record.epoch} was overwritten")

    def check(self, record: SlotRecord, found: int | None = None) -> None:
        """Digest a VERIFIED slot again; with ``found``, the digest of its bytes as they were read, compare that.

        Raises:
            CorruptArenaError: the bytes are not the ones that were verified.
            TornSlotError: overwritten meanwhile.
        """
        with self.reading(record) as data:
            found = digest(data) if found is None else found
        if record.state is SlotState.VERIFIED and found != record.digest:
            raise CorruptArenaError(
                f"rank {self.header.rank}: epoch {record.epoch} in slot {record.slot} has digest {found:016x}, "
                f"not {record.digest:016x}"
            )

    # Cells

    def blank(self, slot: int, sequence: int) -> SlotRecord:
        return SlotRecord(SlotState.INVALID, slot, NO_EPOCH, 0, self.header.layout_digest, 0, 0, sequence)

    def _sequence(self, slot: int) -> int:
        """The number of the last write; from the agent's cell too, in case the writer's own was damaged."""
        cells = (self.read_cell(slot, agent=False), self.read_cell(slot, agent=True))
        return max((cell.sequence for cell in cells if cell is not None), default=0)

    def write_cell(self, cell: SlotRecord, *, agent: bool) -> None:
        at = cell_at(cell.slot, agent=agent)
        self.raw[at : at + CELL_BYTES] = np.frombuffer(pack_cell(cell), np.uint8)

    def read_cell(self, slot: int, *, agent: bool) -> SlotRecord | None:
        at = cell_at(slot, agent=agent)
        for _ in range(_READ_TRIES):
            cell = unpack_cell(self.raw[at : at + CELL_BYTES].tobytes())
            if cell is not None:
                return cell
        return None


def _allocate(path: Path, size: int) -> None:
    """Create ``path`` with ``size`` bytes of real pages, charged to this process, or refuse."""
    free = free_bytes(path.parent)
    if size > free:
        raise ShortMemoryError(_short(path, size, free))
    path.touch(mode=0o600, exist_ok=False)
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.ENOMEM}:
            raise ShortMemoryError(_short(path, size, free_bytes(path.parent))) from error
        raise


def free_bytes(directory: Path) -> int:
    """Bytes that can still be stored in the file system of ``directory``."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def _short(path: Path, size: int, free: int) -> str:
    return (
        f"{path.parent} cannot hold an arena of {size} bytes, only {free} are free; make it larger "
        f"(mount -o remount,size=…; in a container --shm-size) or name another directory in MAINSTAY_SHM_DIR"
    )
