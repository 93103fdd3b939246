"""The process that writes: one a node, without torch, behind everything else on the machine.

A process and not a thread of the agent, because a disk that hangs takes whoever waits for it along: the agent must
answer, fence and end all the same. Orders come as lines of JSON on stdin, each is answered by one on stdout; the end of
stdin ends it at once, at any point: a part that is not finished is none.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.direct_file import BUFFER_BYTES, WriteMode
from mainstay.recovery.checkpoint.file_errors import problem_line
from mainstay.recovery.checkpoint.manifest import QUANTIZED, CheckpointError, DiskConfig
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.save import WriteTarget
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout

if TYPE_CHECKING:
    from mainstay.recovery.checkpoint.encoded_writer import EncodedWriter

NICE: Final = 10
"""Behind trainers and agent: a snapshot waits for the disk in its slot as long as it must."""


WRITERS: Final = max(2, min(8, (os.cpu_count() or 1) // 8))
"""Files written at a time. Two keep one device busy; nodes with many cores have many devices."""
COMMIT_PAUSES: Final = (0.2, 1.0)
"""Seconds before a manifest that the disk refused is written again: no other process does."""
MEMORY_BYTES: Final = WRITERS * BUFFER_BYTES + 16 * 1024 * 1024
"""Most memory that writing takes beside an idle process: the buffers of each file, and what Python itself needs."""


class SlotOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A slot to write."""

    arena: str
    rank: int
    epoch: int
    generation: int = 0
    layouts: dict[int, str] | None = None
    """Of parity rows: see ``CheckpointPart.layouts``; ``generation`` is that of their group."""
    copy: bool = False
    """The rank is on another node, which uploads its part."""


class SlotResult(msgspec.Struct, frozen=True, kw_only=True):
    problem: str = ""
    """Why it was not written; empty is good."""
    nbytes: int = 0
    """Of the slot; 0: it was there already."""
    encoded: bool = False


class WriteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write ``slots``; without any, make the run's directory."""

    directory: str
    job: str
    config: DiskConfig
    keep: RetentionPolicy
    slots: tuple[SlotOrder, ...] = ()
    read_rate: float = 0.0
    """Bytes a second of restores from disk; 0: none was measured."""
    final: bool = False
    """The last one: one replica of each stage makes the step whole."""


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    problem: str = ""
    """Why nothing was written, or, with ``slots``, why the step is not complete; empty is good."""
    slots: tuple[SlotResult, ...] = ()
    """In the order of the request."""
    seconds: float = 0.0
    """From the first byte until all parts were durable."""


class Writer:
    """Carries orders out, one after the other; the slots of an order side by side."""

    def __init__(self) -> None:
        self._arenas: dict[str, tuple[int, Arena]] = {}
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="checkpoint-part")
        self._mode = WriteMode()
        self.encoders: dict[int, EncodedWriter] = {}
        """By rank."""

    def carry_out(self, order: WriteRequest) -> WriteResult:
        """What came of ``order``; a refusal is an answer too."""
        target = WriteTarget(Path(order.directory), order.job, order.config)
        try:
            if not order.slots:
                save.begin_step(target)
                return WriteResult()
            return self._write(order, target)
        except (ArenaError, CheckpointError, OSError) as error:
            return WriteResult(problem=problem_line(error, order.directory))

    def _write(self, order: WriteRequest, target: WriteTarget) -> WriteResult:
        begun, direct = time.perf_counter(), self._mode.direct
        results = tuple(self._threads.map(lambda slot: self._write_slot(slot, order, direct=direct), order.slots))
        seconds = time.perf_counter() - begun
        if not any(result.encoded for result in results):
            self._mode.measure(sum(result.nbytes for result in results), seconds, direct=direct)
        problems = [_commit(target, epoch, order) for epoch in sorted({slot.epoch for slot in order.slots})]
        target.run.prune(order.keep, order.config.returns, order.config.common)
        return WriteResult(problem="; ".join(filter(None, problems)), slots=results, seconds=seconds)

    def _write_slot(self, slot: SlotOrder, order: WriteRequest, *, direct: bool) -> SlotResult:
        target = WriteTarget(Path(order.directory), order.job, order.config)
        try:
            arena = self._arena(slot.arena)
            record = arena.find(slot.epoch)
            if slot.layouts is not None:
                data, place = arena.slot_bytes(record.slot)[: record.nbytes], (slot.epoch, slot.rank, slot.generation)
                check = partial(arena.check, record)
                part = save.write_image(target, place, arena.layout, data, check, direct=direct, layouts=slot.layouts)
                return SlotResult(nbytes=part.nbytes)
            if save.written(target, record, slot.rank, final=order.final):
                return SlotResult()
            if slot.copy:
                save.leave_upload(target.run.step(slot.epoch), slot.rank, record.generation)
            if order.config.encoding == "full" or (order.final and order.config.encoding in QUANTIZED):
                part = save.write_part(arena, record, target, direct=direct, final=order.final)
            else:
                encoder = self._encoder(slot.rank, target, arena.layout)
                part = encoder.write(arena, record, target, direct=direct, read_rate=order.read_rate)
            return SlotResult(nbytes=part.nbytes, encoded=part.is_encoded)
        except (ArenaError, CheckpointError, OSError) as error:
            return SlotResult(problem=problem_line(error, order.directory))

    def _encoder(self, rank: int, target: WriteTarget, layout: Layout) -> EncodedWriter:
        from mainstay.recovery.checkpoint.encoded_writer import EncodedWriter  # noqa: PLC0415 - few need zstd

        known = self.encoders.get(rank)
        if known is None or not known.fits(target, layout):
            self.encoders[rank] = known = EncodedWriter(target, layout)
        return known

    def _arena(self, path: str) -> Arena:
        inode = Path(path).stat().st_ino
        known = self._arenas.get(path)
        if known is None or known[0] != inode:
            if known is not None:
                known[1].close()
            self._arenas[path] = known = (inode, Arena.attach(Path(path)))
        return known[1]


def _commit(target: WriteTarget, epoch: int, order: WriteRequest) -> str:
    """Complete a step whose parts are all there, in several tries; why it is not complete, or nothing."""
    problem = ""
    for pause in (0.0, *COMMIT_PAUSES):
        time.sleep(pause)
        try:
            save.commit(target, epoch, partial=order.final)
        except (CheckpointError, OSError) as error:
            problem = problem_line(error, order.directory)
            if not isinstance(error.__cause__ or error, OSError):
                break
        else:
            return ""
    return f"step {epoch} is not complete, although parts of it are written: its manifest is not: {problem}"


def main() -> int:
    """``python -m mainstay.recovery.checkpoint.writer``: until stdin ends."""
    os.nice(max(0, NICE - os.nice(0)))  # that of the thread which started it is inherited
    orders: queue.SimpleQueue[WriteRequest] = queue.SimpleQueue()
    decoder = msgspec.json.Decoder(WriteRequest)

    def listen() -> None:
        for line in sys.stdin.buffer:
            orders.put(decoder.decode(line))
        os._exit(0)  # whoever asked is gone; what is half done counts for nothing

    threading.Thread(target=listen, daemon=True).start()
    writer = Writer()
    while True:
        outcome = writer.carry_out(orders.get())
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
