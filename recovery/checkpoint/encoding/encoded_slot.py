"""A file with the encoded tensors of one slot, and the chain of such files back to a full slot.

The file holds the blobs of the tensors, an index with their sizes and digests, and a footer with the length and digest
of the index. It is written by temporary name, fsync, and rename: under its own name a file is whole.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from mainstay.probes.durable_files import sync_directory
from mainstay.recovery.checkpoint.encoding.chain_policy import MAX_LINKS
from mainstay.recovery.checkpoint.encoding.exact import decode_exact, encode_exact
from mainstay.recovery.checkpoint.encoding.quantized import (
    can_quantize,
    decode_quantized,
    encode_quantized,
    rounded_to_bfloat16,
)
from mainstay.recovery.checkpoint.encoding.tensor_blob import CastHeader, ExactHeader, join, split
from mainstay.recovery.checkpoint.encoding.units import Base, UnitDigests, changed_units, unit_bytes, unit_digests
from mainstay.recovery.checkpoint.manifest import MAX_JSON_BYTES, CheckpointError, remove_file
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import CorruptArenaError
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.model_names import MODEL

VERSION: Final = 1
_FOOTER: Final = struct.Struct("<QQ4s")
"""Bytes of the index, its xxh3_64, magic."""
_MAGIC: Final = b"MSTI"
_CAST_SAMPLE: Final = 1024

SlotBase = Bytes | Mapping[str, UnitDigests]
"""The slot of the base, or what ``slot_digests`` kept of it."""
_Masters = dict[tuple[int, ...], list[TensorSpec]]


@dataclass(frozen=True, slots=True)
class Quantization:
    """How to quantize; never for a step that promises the same bits."""

    bits: int
    kmeans: bool = False
    prefixes: tuple[str, ...] = MODEL
    """Tensors whose names begin so, if they hold finite floats; others stay exact."""


class SlotId(msgspec.Struct, frozen=True, array_like=True):
    """One committed slot of one rank."""

    run: str
    epoch: int
    rank: int
    generation: int


class BlobEntry(msgspec.Struct, frozen=True, array_like=True):
    """The blob of one tensor."""

    nbytes: int
    digest: int
    """xxh3_64 of the blob."""


class SlotIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What an encoded file holds."""

    version: int = VERSION
    slot: SlotId
    layout: str
    """As ``Layout.to_json``."""
    exact: bool
    """This file and all of its bases decode to the bits that were encoded."""
    base: SlotId | None = None
    base_check: int = 0
    """The ``check`` of the base."""
    blobs: tuple[BlobEntry, ...]

    @property
    def check(self) -> int:
        """Identifies the file by content: the xxh3_64 of the encoded index."""
        return digest(msgspec.msgpack.encode(self))


@dataclass(frozen=True, slots=True)
class FullSlot:
    """A slot in a file of another format, on which a chain of differences may begin."""

    slot: SlotId
    check: int
    """Identifies its content, as ``CheckpointPart.check``."""
    read: Callable[[Bytes], None]
    """Reads it into a uint8 [layout.nbytes], or raises ``LayoutMismatchError`` or ``CheckpointError``."""
    exact: bool = True


ChainBase = SlotIndex | FullSlot
FindBase = Callable[[SlotId], Path | FullSlot]
"""Where a base is."""


# A slot


def slot_digests(layout: Layout, data: Bytes) -> dict[str, UnitDigests]:
    """What to keep of a slot (uint8 [layout.nbytes]) to encode a later one against it without its bytes."""
    return {spec.name: unit_digests(spec, _part(data, spec)) for spec in layout.tensors}


def changed_bytes(layout: Layout, data: Bytes, base: SlotBase) -> int:
    """Bytes of the units of a slot that differ from the base: what to predict the size of a difference from."""
    changed = ((spec, changed_units(spec, _part(data, spec), _base_of(base, spec))) for spec in layout.tensors)
    return sum(min(spec.nbytes, int(mask.sum()) * unit_bytes(spec)) for spec, mask in changed)


def encode_slot(
    layout: Layout, data: Bytes, base: SlotBase | None = None, quantization: Quantization | None = None
) -> Iterator[bytes]:
    """The blob of each tensor in the order of the layout, one at a time in memory.

    Args:
        layout: of the slot.
        data: uint8 [layout.nbytes].
        base: of the same layout, before it was quantized; where its bytes are there, differences may be subtracted.
        quantization: None: exact; then the base must be exact too.
    """
    masters = {} if quantization else _masters(layout)
    for spec in layout.tensors:
        tensor, below = _part(data, spec), None if base is None else _base_of(base, spec)
        source = _cast_source(masters, spec, data)
        if source is not None:
            yield join(CastHeader(dtype=spec.dtype, shape=spec.shape, digest=digest(tensor), source=source.name), [])
            continue
        if quantization and spec.name.startswith(quantization.prefixes) and can_quantize(spec):
            blob = encode_quantized(spec, tensor, quantization.bits, kmeans=quantization.kmeans, base=below)
            yield blob or encode_exact(spec, tensor)  # a reader has no exact base
        else:
            yield encode_exact(spec, tensor, below)


def decode_slot(layout: Layout, blobs: Iterator[bytes], out: Bytes, *, verify: bool = True) -> None:
    """Decode in place: ``out`` holds the slot of the base before, if there is one, and the slot after.

    Args:
        layout: of the slot.
        blobs: one for each tensor, as ``encode_slot`` yields them.
        out: uint8 [layout.nbytes].
        verify: check the digest of exact tensors; not needed for a base, whose blobs are checked.

    Raises:
        CheckpointError: a blob is damaged, or the base is not the one it was encoded against; ``out`` is worthless.
    """
    casts = []
    for spec, blob in zip(layout.tensors, blobs, strict=True):
        header, sections = split(blob, spec)
        tensor = _part(out, spec)
        if isinstance(header, CastHeader):
            casts.append((spec, header))
        elif isinstance(header, ExactHeader):
            decode_exact(header, sections, spec, tensor)
        else:
            decode_quantized(header, sections, spec, tensor)
        if verify and isinstance(header, ExactHeader):
            _verify(spec, tensor, header.digest)
    for spec, header in casts:
        source = layout.specs().get(header.source)
        if source is None or (source.dtype, source.shape) != ("float32", spec.shape) or spec.dtype != "bfloat16":
            raise CheckpointError(f"encoded tensor {spec.name!r} is cast from {header.source!r}, which does not fit")
        _part(out, spec)[:] = rounded_to_bfloat16(_part(out, source).view(np.float32)).view(np.uint8)
        if verify:
            _verify(spec, _part(out, spec), header.digest)


def _verify(spec: TensorSpec, tensor: Bytes, expected: int) -> None:
    if digest(tensor) != expected:
        raise CheckpointError(f"tensor {spec.name!r} does not decode to what was encoded: its base is another one")


def _part(slot: Bytes, spec: TensorSpec) -> Bytes:
    return slot[spec.offset : spec.offset + spec.nbytes]


def _base_of(base: SlotBase, spec: TensorSpec) -> Base:
    return base[spec.name] if isinstance(base, Mapping) else _part(base, spec)


def _masters(layout: Layout) -> _Masters:
    found: _Masters = {}
    for spec in layout.tensors:
        if spec.dtype == "float32":
            found.setdefault(spec.shape, []).append(spec)
    return found


def _cast_source(masters: _Masters, spec: TensorSpec, data: Bytes) -> TensorSpec | None:
    """The float32 tensor that rounds to this bfloat16 one, as in mixed precision; a sample finds it among its likes."""
    if spec.dtype != "bfloat16" or not spec.nbytes:
        return None
    own = _part(data, spec).view(np.uint16)
    for source in masters.get(spec.shape, ()):
        values = _part(data, source).view(np.float32)
        counts = (_CAST_SAMPLE, len(values))
        if all(np.array_equal(rounded_to_bfloat16(values[:count]), own[:count]) for count in counts):
            return source
    return None


# Files


def write_encoded_slot(
    path: Path, slot: SlotId, layout: Layout, blobs: Iterator[bytes], *, exact: bool, base: ChainBase | None = None,
    still: Callable[[], None] = lambda: None,
) -> SlotIndex:  # fmt: skip
    """Write a file durably.

    Args:
        path: of the file; its directory exists.
        slot: whose state it is.
        layout: of the slot.
        blobs: as ``encode_slot`` yields them.
        exact: none of them is quantized.
        base: the slot that they were encoded against.
        still: raises if the bytes were not those of the slot all the time.

    Raises:
        ValueError: exact differences to a quantized base, which no reader could apply.
        OSError: the disk refused; nothing is left behind. And what ``still`` raises.
    """
    if exact and base is not None and not base.exact:
        raise ValueError(f"{path}: step {base.slot.epoch} is quantized and can be no base of an exact step")
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    entries = []
    try:
        with new.open("wb") as file:
            for blob in blobs:
                file.write(blob)
                entries.append(BlobEntry(len(blob), digest(blob)))
            still()
            index = SlotIndex(
                slot=slot, layout=layout.to_json().decode(), exact=exact,
                base=base.slot if base else None, base_check=base.check if base else 0, blobs=tuple(entries),
            )  # fmt: skip
            text = msgspec.msgpack.encode(index)
            file.write(text + _FOOTER.pack(len(text), digest(text), _MAGIC))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        remove_file(new)
    sync_directory(path.parent)
    return index


def read_index(path: Path) -> SlotIndex:
    """The index of a file.

    Raises:
        CheckpointError: missing, truncated, damaged, or of another version; names the path.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _FOOTER.size))
            footer = file.read(_FOOTER.size)
            length, check, magic = _FOOTER.unpack(footer) if len(footer) == _FOOTER.size else (0, 0, b"")
            if magic != _MAGIC or length > min(size - _FOOTER.size, MAX_JSON_BYTES):
                raise CheckpointError(f"{path} is truncated or no encoded slot")
            file.seek(size - _FOOTER.size - length)
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    if digest(text) != check:
        raise CheckpointError(f"{path} has a damaged index")
    try:
        index = msgspec.msgpack.decode(text, type=SlotIndex)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(f"{path} has a damaged index: {error}") from error
    if index.version != VERSION:
        raise CheckpointError(f"{path} has version {index.version}, this program reads {VERSION}")
    nbytes = [0, *(blob.nbytes for blob in index.blobs)]
    if min(nbytes) < 0 or sum(nbytes) + length + _FOOTER.size != size:
        raise CheckpointError(f"{path} has {size} bytes, not what its index says")
    return index


def read_chain(path: Path, find: FindBase) -> tuple[FullSlot | None, list[tuple[Path, SlotIndex]]]:
    """What a restore of ``path`` reads, in this order: a slot of another format, if one is the first base, and files.

    Raises:
        CheckpointError: a file is missing or damaged, a base is not the one that was written against, or there are too
            many.
    """
    chain = [(path, read_index(path))]
    while (last := chain[-1][1]).base is not None:
        place = find(last.base)
        if isinstance(place, FullSlot):
            _require_base(place, last)
            return place, chain[::-1]
        index = read_index(place)
        _require_base(index, last)
        if index.layout != last.layout or len(chain) == MAX_LINKS:
            raise CheckpointError(f"{place} is no base for {path}: other tensors, or more than {MAX_LINKS} files")
        chain.append((place, index))
    return None, chain[::-1]


def _require_base(base: ChainBase, of: SlotIndex) -> None:
    if (base.slot, base.check) != (of.base, of.base_check) or base.slot.epoch >= of.slot.epoch:
        raise CheckpointError(f"{base.slot} is not the base that step {of.slot.epoch} was written against, {of.base}")


def read_encoded_slot(path: Path, layout: Layout, out: Bytes, find: FindBase, *, exact: bool = True) -> None:
    """Read a file and its bases into ``out``.

    Args:
        path: of the file.
        layout: that the slot must have.
        out: uint8 [layout.nbytes].
        find: where a base is.
        exact: refuse quantized files.

    Raises:
        LayoutMismatchError: it holds other tensors; names the first.
        CheckpointError: see ``read_chain``; or a blob is damaged; or quantized; ``out`` is worthless.
    """
    full, chain = read_chain(path, find)
    newest = chain[-1][1]
    try:
        layout.require_same(Layout.from_json(newest.layout.encode()), str(path))
    except CorruptArenaError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if exact and not newest.exact:
        raise CheckpointError(f"{path} is quantized: it restores values near those that were saved, not the same bits")
    out[:] = 0
    if full:
        full.read(out)
    for place, index in chain:
        try:
            decode_slot(layout, _blobs(place, index, layout), out, verify=index is newest)
        except (CheckpointError, OSError) as error:
            raise CheckpointError(f"{place}: {error}") from error


def _blobs(path: Path, index: SlotIndex, layout: Layout) -> Iterator[bytes]:
    if len(index.blobs) != len(layout.tensors):
        raise CheckpointError(f"{len(index.blobs)} blobs for {len(layout.tensors)} tensors")
    with path.open("rb") as file:
        for entry, spec in zip(index.blobs, layout.tensors, strict=True):
            blob = file.read(entry.nbytes)
            if digest(blob) != entry.digest:
                raise CheckpointError(f"encoded tensor {spec.name!r} is damaged")
            yield blob
