"""A file with the encoded tensors of one slot.

The file holds the blobs of the tensors, an index with their sizes and digests, and a footer with the length and digest
of the index. It is written by temporary name, fsync, and rename: under its own name a file is whole.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from mainstay.probes.durable_files import new_file
from mainstay.recovery.checkpoint.encoding.exact import encode_exact, sampled_sizes
from mainstay.recovery.checkpoint.encoding.quantized import can_quantize, encode_quantized, rounded_to_bfloat16
from mainstay.recovery.checkpoint.encoding.tensor_blob import CastHeader, Header, QuantizedHeader, join, split
from mainstay.recovery.checkpoint.encoding.units import UnitDigests, unit_bytes, unit_digests
from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.manifest import MAX_JSON_BYTES, CheckpointError, DamagedError
from mainstay.recovery.checkpoint.quantization_bound import QuantizationBound
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.model_names import MODEL

VERSION: Final = 1
_FOOTER: Final = struct.Struct("<QQ4s")
"""Bytes of the index, its xxh3_64, magic."""
_MAGIC: Final = b"MSTI"
_CAST_SAMPLE: Final = 1024

SlotDigests = Mapping[str, UnitDigests]
_Masters = dict[tuple[int, ...], list[TensorSpec]]


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
    """It decodes to the bits that were encoded: none of its tensors is quantized."""
    base: SlotId | None = None
    base_check: int = 0
    """The ``check`` of the base."""
    blobs: tuple[BlobEntry, ...]
    bound: QuantizationBound | msgspec.UnsetType = msgspec.UNSET
    """Of the quantized tensors in this file."""

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
    read: Callable[[TensorSpec, Bytes], None]
    """Reads a tensor of it into a uint8 [spec.nbytes], or raises ``CheckpointError``."""


_INDEXES: Final = msgspec.msgpack.Decoder(SlotIndex)
"""Made while there is one thread: msgspec 0.22 crashes where several threads are the first to decode a type."""
ChainBase = SlotIndex | FullSlot


# A slot


def slot_digests(layout: Layout, data: Bytes) -> SlotDigests:
    """What to keep of a slot (uint8 [layout.nbytes]) to encode a later one against it without its bytes."""
    return {spec.name: unit_digests(spec, _part(data, spec)) for spec in layout.tensors}


def changed_bytes(layout: Layout, own: SlotDigests, base: SlotDigests) -> int:
    """Bytes of the units of a slot that differ from the base: what to predict the size of a difference from."""
    return sum(_changed(spec, own[spec.name], base[spec.name]) for spec in layout.tensors)


def _changed(spec: TensorSpec, own: UnitDigests, base: UnitDigests) -> int:
    return min(spec.nbytes, int(np.count_nonzero(own.units != base.units)) * unit_bytes(spec))


def sampled_against(layout: Layout, data: Bytes, own: SlotDigests, stored: SlotDigests) -> tuple[int, int, SlotDigests]:
    """Predict the bytes of a slot by samples of its tensors.

    Args:
        layout: of the slot.
        data: uint8 [layout.nbytes].
        own: digests of ``data``.
        stored: of a base that can be read.

    Returns:
        Bytes without a base, bytes with this one, and how to encode against it: a tensor is read where that pays.

    Raises:
        CheckpointError: the base cannot be read.
    """
    masters, alone, against = _masters(layout), 0, 0
    base = dict(stored)
    for spec in layout.tensors:
        below, plain, less, changed = stored[spec.name], 0, 0, 0
        if spec.nbytes and _cast_source(masters, spec, data) is None:
            plain, less = sampled_sizes(spec, _part(data, spec), below)
            changed = plain * _changed(spec, own[spec.name], below) // spec.nbytes
        if less >= changed:
            base[spec.name] = replace(below, read=None)
        alone, against = alone + plain, against + min(less, changed)
    return alone, against, base


def encode_slot(
    layout: Layout, data: Bytes, base: SlotDigests | None = None, bits: int | None = None,
    *, own: SlotDigests | None = None, copied: Callable[[TensorSpec], Bytes] | None = None,
) -> Iterator[bytes]:  # fmt: skip
    """The blob of each tensor in the order of the layout, one at a time in memory.

    Args:
        layout: of the slot.
        data: uint8 [layout.nbytes].
        base: of the same layout; exact tensors that it can be read of are subtracted.
        bits: of a value of the model's and the optimizer's tensors, where these hold finite floats; None: exact.
        own: digests of ``data``; None: not known.
        copied: gives a copy of a tensor, which does not change meanwhile; None: ``data`` does not.
    """
    masters = {} if bits else _masters(layout)
    for spec in layout.tensors:
        tensor = _part(data, spec) if copied is None else copied(spec)
        source = _cast_source(masters, spec, data)
        if source is not None:
            yield join(CastHeader(dtype=spec.dtype, shape=spec.shape, digest=digest(tensor), source=source.name), [])
            continue
        if bits and spec.name.startswith(MODEL) and can_quantize(spec):
            yield encode_quantized(spec, tensor, bits) or encode_exact(spec, tensor)
        else:
            below, known = (None if of is None else of[spec.name] for of in (base, own))
            yield encode_exact(spec, tensor, below, known)


def _part(slot: Bytes, spec: TensorSpec) -> Bytes:
    return slot[spec.offset : spec.offset + spec.nbytes]


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
    path: Path, slot: SlotId, layout: Layout, blobs: Iterator[bytes], *, base: ChainBase | None = None,
    still: Callable[[], None] = lambda: None,
) -> SlotIndex:  # fmt: skip
    """Write a file durably.

    Args:
        path: of the file; its directory exists.
        slot: whose state it is.
        layout: of the slot.
        blobs: as ``encode_slot`` yields them.
        base: the slot that they were encoded against.
        still: raises if the bytes were not those of the slot all the time.

    Raises:
        OSError: the disk refused; nothing is left behind. And what ``still`` raises.
    """
    entries, bounds = [], []
    with new_file(path) as file:
        for spec, blob in zip(layout.tensors, blobs, strict=True):
            file.write(blob)
            entries.append(BlobEntry(len(blob), digest(blob)))
            bounds += _bound(split(blob, spec)[0])
        still()
        index = SlotIndex(
            slot=slot, layout=layout.to_json().decode(), exact=not bounds,
            base=base.slot if base else None, base_check=base.check if base else 0, blobs=tuple(entries),
            bound=QuantizationBound.of_all(bounds),
        )  # fmt: skip
        text = msgspec.msgpack.encode(index)
        file.write(text + _FOOTER.pack(len(text), digest(text), _MAGIC))
    return index


def _bound(header: Header) -> list[QuantizationBound]:
    if not isinstance(header, QuantizedHeader):
        return []
    relative = header.kind == "logarithmic"
    return [QuantizationBound(header.bits, 0.0 if relative else header.error, header.error if relative else 0.0)]


def read_index(path: Path) -> SlotIndex:
    """The index of a file.

    Raises:
        CheckpointError: missing, truncated, damaged, or of another version; names the path.
    """
    with file_errors(path, "has a damaged index"), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _FOOTER.size))
        footer = file.read(_FOOTER.size)
        length, check, magic = _FOOTER.unpack(footer) if len(footer) == _FOOTER.size else (0, 0, b"")
        if magic != _MAGIC or length > min(size - _FOOTER.size, MAX_JSON_BYTES):
            raise DamagedError(f"{path} is truncated or no encoded slot")
        file.seek(size - _FOOTER.size - length)
        text = file.read(length)
        if digest(text) != check:
            raise DamagedError(f"{path} has a damaged index")
        index = _INDEXES.decode(text)
    if index.version != VERSION:
        raise CheckpointError(f"{path} has version {index.version}, this program reads {VERSION}")
    nbytes = [0, *(blob.nbytes for blob in index.blobs)]
    if min(nbytes) < 0 or sum(nbytes) + length + _FOOTER.size != size:
        raise DamagedError(f"{path} has {size} bytes, not what its index says")
    return index
