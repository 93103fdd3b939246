"""Tensors of a part of a step, each checked against its digest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import xxhash

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.logical import read_at
from mainstay.recovery.checkpoint.manifest import LAYOUT, CheckpointError, CheckpointPart, DamagedError, TensorEntry
from mainstay.recovery.memory.digest import Bytes, digest_of
from mainstay.recovery.memory.layout import Layout, TensorSpec

if TYPE_CHECKING:
    from mainstay.recovery.checkpoint.encoding.encoded_slot import FullSlot, SlotId

IN_CACHE: Final = 2 * 1024 * 1024
"""Read or copied at a time: digested before it leaves the processor's cache."""
ReadTensor = Callable[[TensorEntry, Bytes], None]
"""Reads a tensor into a uint8 [entry.nbytes], and checks it."""
ReadBytes = Callable[[TensorEntry, int, Bytes], None]
"""Reads bytes of a tensor from an offset on, without a check."""


@contextmanager
def part_file(run: RunDirectory, part: CheckpointPart) -> Iterator[ReadTensor]:
    """Open the file of ``part``, to read one tensor after another.

    Raises:
        CheckpointError: a file is missing, short, or a tensor does not match its digest.
    """
    if part.is_encoded:
        yield encoded_part(run, part)
        return
    path = run.data_file(part)
    with full_part(run, part) as read_bytes:
        yield lambda entry, out: _read_tensor(read_bytes, entry, out, path)


@contextmanager
def full_part(run: RunDirectory, part: CheckpointPart) -> Iterator[ReadBytes]:
    """Open the file of ``part``, which is not encoded, to read any bytes of tensors without a check.

    Raises:
        CheckpointError: the file is missing or short.
    """
    path = run.data_file(part)
    with file_errors(path):
        file = path.open("rb", buffering=0)
    with file:  # errors of who reads are not of this file
        yield lambda entry, start, out: read_at(file.fileno(), out, entry.at + start, path)


def _read_tensor(read_bytes: ReadBytes, entry: TensorEntry, out: Bytes, path: Path) -> None:
    if len(out) != entry.nbytes:
        raise CheckpointError(f"{path}: tensor {entry.name!r} has {entry.nbytes} bytes instead of {len(out)}")

    def chunks() -> Iterator[Bytes]:
        for start in range(0, len(out), IN_CACHE):
            chunk = out[start : start + IN_CACHE]
            read_bytes(entry, start, chunk)
            yield chunk

    _require_digest(path, entry, digest_of(chunks()))


def _require_digest(path: Path, entry: TensorEntry, found: int) -> None:
    if found != entry.digest:
        raise DamagedError(f"{path}: tensor {entry.name!r} has digest {found:016x}, not {entry.digest:016x}")


def layout_text(layout: Layout) -> tuple[TensorSpec, Bytes]:
    """The layout of a slot as one more tensor."""
    text = np.frombuffer(layout.to_json(), np.uint8)
    (spec,) = Layout.build({LAYOUT: ("uint8", (len(text),))}).tensors
    return spec, text


def encoded_part(run: RunDirectory, part: CheckpointPart) -> ReadTensor:
    """Find the file of an encoded ``part`` and its bases. A tensor is decoded alone: no more than that is in memory.

    Raises:
        CheckpointError: a file is missing or damaged, or a base is not the one that was written against; so does what
            is returned.
    """
    from mainstay.recovery.checkpoint.encoding.slot_chain import SlotChain  # noqa: PLC0415 - few need zstd

    path = run.data_file(part)
    chain = SlotChain.open(path, lambda slot: _base(run, slot), exact=part.quantized is msgspec.UNSET)

    def read(entry: TensorEntry, out: Bytes) -> None:
        if entry.name == LAYOUT:
            out[:] = layout_text(chain.layout)[1]
        elif chain.read(entry.name, out) != entry.digest:
            raise DamagedError(f"{path}: tensor {entry.name!r} is not the one that was encoded")

    return read


def _base(run: RunDirectory, slot: SlotId) -> Path | FullSlot:
    if slot.run != run.id:
        raise CheckpointError(f"{run.path} refers to run {slot.run}")
    part = run.part(slot.epoch, slot.rank, slot.generation)
    return run.data_file(part) if part.is_encoded else full_slot(run, part)


def full_slot(run: RunDirectory, part: CheckpointPart) -> FullSlot:
    """A part that is not encoded, as a base."""
    from mainstay.recovery.checkpoint.encoding.encoded_slot import FullSlot, SlotId  # noqa: PLC0415 - likewise

    entries = {entry.name: entry for entry in part.tensors}

    def read(spec: TensorSpec, out: Bytes) -> None:
        with part_file(run, part) as read_entry:
            read_entry(entries[spec.name], out)

    return FullSlot(SlotId(part.run, part.epoch, part.rank, part.generation), int(part.check, 16), read)


def read_tensors(run: RunDirectory, part: CheckpointPart) -> dict[str, Bytes]:
    """Name -> uint8 [nbytes] of every tensor of ``part``, checked.

    Raises:
        CheckpointError: see ``part_file``.
    """
    tensors: dict[str, Bytes] = {entry.name: np.empty(entry.nbytes, np.uint8) for entry in part.tensors}
    with part_file(run, part) as read:
        for entry in part.tensors:
            read(entry, tensors[entry.name])
    return tensors


def verify_part(run: RunDirectory, part: CheckpointPart) -> int:
    """Read a whole part and check every tensor; bytes read.

    Raises:
        CheckpointError: the file is missing, short, or a tensor does not match its digest.
    """
    with part_file(run, part) as read:
        for entry in part.tensors:
            read(entry, np.empty(entry.nbytes, np.uint8))
    return sum(entry.nbytes for entry in part.tensors)


def checked(run: RunDirectory, part: CheckpointPart, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pass on the file of ``part``; raise ``CheckpointError`` before the end of a tensor, or the file, that differs."""
    path, left, state, end = run.data_file(part), [*reversed(part.listed)], xxhash.xxh3_64(), 0
    if part.is_encoded:
        from mainstay.recovery.checkpoint.encoding.encoded_slot import read_index  # noqa: PLC0415 - few need zstd

        with file_errors(path):  # what is stored has digests of its own: no base is read
            blobs = read_index(path).blobs
            stored = zip(part.tensors, blobs, itertools.accumulate(blob.nbytes for blob in blobs), strict=True)
            left = [TensorEntry(e.name, "", (), to - b.nbytes, b.nbytes, b.digest, 0, 0) for e, b, to in stored][::-1]
    for piece in pieces:
        begin, end = end, end + len(piece)
        while left and left[-1].at < end:
            stop = left[-1].at + left[-1].nbytes
            state.update(memoryview(piece)[max(0, left[-1].at - begin) : stop - begin])
            if stop > end:
                break
            _require_digest(path, left.pop(), state.intdigest())
            state.reset()
        yield piece
    if end != part.file_bytes:
        raise CheckpointError(f"{path} has {end} bytes, not {part.file_bytes}")


def needed_steps(run: RunDirectory, parts: Sequence[CheckpointPart]) -> tuple[str, ...] | None:
    """Names of all steps that ``parts`` need; None: one is not complete, or is with other parts."""
    found: set[str] = set()
    based = [(part.rank, *part.base) for part in parts if part.base is not msgspec.UNSET]
    for epoch in {epoch for _, epoch, _ in based}:
        try:
            below = run.manifest(epoch)
        except CheckpointError:
            return None
        needed = {(rank, generation) for rank, base, generation in based if base == epoch}
        if not needed <= below.checks.keys():
            return None
        found |= {run.step(epoch).name, *(below.bases or ())}
    return tuple(sorted(found))
