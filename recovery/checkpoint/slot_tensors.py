"""The tensors of a slot, as they are written one after the other: digests, and where they lie in the whole model."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import xxhash

from mainstay.recovery.checkpoint.direct_file import DirectFile
from mainstay.recovery.checkpoint.load import layout_text
from mainstay.recovery.checkpoint.manifest import CheckpointError, TensorEntry
from mainstay.recovery.checkpoint.torchfile import Archive
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.global_slices import SLICES, GlobalSlice, decode
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.shard import SHARED, cut_rows
from mainstay.recovery.memory.shard import share as rows_by_tensor


def write_tensors(
    file: DirectFile, layout: Layout, data: Bytes, share: tuple[int, int] | None, weights: tuple[int, ...]
) -> tuple[list[TensorEntry], TensorEntry, int | None, int | msgspec.UnsetType]:
    """The tensors, and behind them the layout, by which our slot can be made again from a state dict alone.

    And the digest of the slot as it was written: tensors, and what lies between them in memory. None for a share, which
    has the digest of all that replicas hold alike instead.
    """
    slot = SlotDigest(data) if share is None else None
    places = slices_of(layout, data)
    mine = {} if share is None else rows_by_tensor(layout, *share, weights)
    entries = []
    for spec in layout.tensors:
        place, tensor = places.get(spec.name), data[spec.offset : spec.offset + spec.nbytes]
        if share is None or not spec.name.startswith(SHARED):
            entries.append(_write_tensor(file, spec, tensor, place, slot))
        elif spec.name in mine:
            part = cut_rows(spec, mine[spec.name], place)
            piece = replace(spec, shape=part.shape, nbytes=part.stop - part.start)
            entries.append(_write_tensor(file, piece, tensor[part.start : part.stop], part.place))
    spec, text = layout_text(layout)
    described = _write_tensor(file, spec, text, None)
    if slot is None:
        return entries, described, None, _alike_digest(layout, data)
    return entries, described, slot.finish(), msgspec.UNSET


def _alike_digest(layout: Layout, data: Bytes) -> int:
    """Of what data-parallel replicas hold alike: values, and where they lie in the whole model."""
    found = xxhash.xxh3_64()
    for spec in layout.tensors:
        if spec.name.startswith((*SHARED, SLICES)):
            found.update(data[spec.offset : spec.offset + spec.nbytes].data)
    return int(found.intdigest())


class SlotDigest:
    """The digest of a slot, out of what is copied from it tensor by tensor."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._at = 0
        self.state = xxhash.xxh3_64()

    def skip(self, at: int, nbytes: int) -> None:
        """Digest what lies before a tensor at ``at``; its own ``nbytes`` are digested as they are copied."""
        self.state.update(self._data[self._at : at].data)
        self._at = at + nbytes

    def finish(self) -> int:
        self.skip(len(self._data), 0)
        return int(self.state.intdigest())


def slices_of(layout: Layout, data: Bytes) -> dict[str, GlobalSlice]:
    """Where the cut tensors of a slot lie in the whole model.

    Raises:
        CheckpointError: the slot says what cannot be.
    """
    specs = layout.specs()
    if SLICES not in specs:
        return {}
    try:
        places = decode(specs[SLICES].view(data).view(np.uint8))
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    wrong = [name for name, place in places.items() if name not in specs or not place.fits(specs[name].shape)]
    if wrong:
        raise CheckpointError(f"{SLICES} places {wrong[0]!r} where it cannot lie")
    return places


def _write_tensor(
    file: DirectFile, spec: TensorSpec, data: Bytes, place: GlobalSlice | None, slot: SlotDigest | None = None
) -> TensorEntry:
    file.pad()
    begin = file.size
    archive = Archive(spec, begin)
    file.append_bytes(archive.head)
    if slot is not None:
        slot.skip(spec.offset, spec.nbytes)
        file.digest = slot.state
    digest = file.append(data)
    file.digest = None
    file.append_bytes(archive.tail)
    nbytes = file.size - begin
    return TensorEntry(spec.name, spec.dtype, spec.shape, archive.data_at, spec.nbytes, digest, begin, nbytes, place)
