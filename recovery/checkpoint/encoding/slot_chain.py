"""The chain of encoded files back to a full slot: what a restore reads, one tensor at a time in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mainstay.recovery.checkpoint.encoding.chain_policy import MAX_LINKS
from mainstay.recovery.checkpoint.encoding.encoded_slot import ChainBase, FullSlot, SlotId, SlotIndex, read_index
from mainstay.recovery.checkpoint.encoding.exact import decode_exact
from mainstay.recovery.checkpoint.encoding.quantized import decode_quantized, rounded_to_bfloat16
from mainstay.recovery.checkpoint.encoding.tensor_blob import CastHeader, ExactHeader, Header, QuantizedHeader, split
from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.manifest import CheckpointError, DamagedError
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import CorruptArenaError
from mainstay.recovery.memory.layout import Layout, TensorSpec

FindBase = Callable[[SlotId], Path | FullSlot]
"""Where a base is."""
ReadBlob = Callable[[TensorSpec], bytes]
"""The blob of a tensor."""


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


class SlotChain:
    """A slot that is encoded in one or several files, each on top of the one before; read tensor by tensor.

    Safe from any thread.
    """

    def __init__(self, layout: Layout, links: Sequence[ReadBlob], full: FullSlot | None = None, what: str = "") -> None:
        """Read ``links``, the base first, on top of ``full``. ``what`` stands before errors."""
        self.layout, self._specs = layout, layout.specs()
        self._links, self._full, self._what = links, full, what

    @classmethod
    def open(cls, path: Path, find: FindBase, *, exact: bool = True) -> SlotChain:
        """The chain that ends with the file ``path``.

        Args:
            path: of the file.
            find: where a base is.
            exact: refuse quantized files.

        Raises:
            CheckpointError: see ``read_chain``; or quantized.
        """
        full, chain = read_chain(path, find)
        newest = chain[-1][1]
        try:
            layout = Layout.from_json(newest.layout.encode())
        except CorruptArenaError as error:
            raise CheckpointError(f"{path}: {error}") from error
        if exact and not newest.exact:
            raise CheckpointError(
                f"{path} is quantized: it restores values near those that were saved, not the same bits"
            )
        return cls(layout, [_blobs(place, index, layout) for place, index in chain], full, f"{path}: ")

    def read(self, name: str, out: Bytes) -> int:
        """Decode a tensor into ``out`` (uint8 [spec.nbytes]); its xxh3_64.

        Raises:
            CheckpointError: there is none of this size, a blob is missing or damaged, or a base is not the one that was
                encoded against; ``out`` is worthless.
        """
        spec = self._specs.get(name)
        if spec is None or spec.nbytes != len(out):
            raise CheckpointError(f"{self._what}there is no tensor {name!r} of {len(out)} bytes")
        header, found = self._decode(len(self._links) - 1, spec, out), digest(out)
        if not isinstance(header, QuantizedHeader) and found != header.digest:
            raise CheckpointError(
                f"{self._what}tensor {name!r} does not decode to what was encoded: its base is another one"
            )
        return found

    def _decode(self, at: int, spec: TensorSpec, out: Bytes) -> Header:
        """Decode a tensor as the file number ``at`` has it; digests of bases are not checked, as blobs have some."""
        header, sections = split(self._links[at](spec), spec)
        if isinstance(header, CastHeader):
            source = self._specs.get(header.source)
            if source is None or (source.dtype, source.shape) != ("float32", spec.shape) or spec.dtype != "bfloat16":
                raise CheckpointError(f"{self._what}{spec.name!r} is cast from {header.source!r}, which does not fit")
            values = np.empty(source.nbytes, np.uint8)
            self._decode(at, source, values)
            out[:] = rounded_to_bfloat16(values.view(np.float32)).view(np.uint8)
            return header
        if header.base is not None:
            self._decode_base(at, spec, out)
        if isinstance(header, ExactHeader):
            decode_exact(header, sections, spec, out)
        else:
            decode_quantized(header, sections, spec, out)
        return header

    def _decode_base(self, at: int, spec: TensorSpec, out: Bytes) -> None:
        if at:
            self._decode(at - 1, spec, out)
        elif self._full is not None:
            self._full.read(spec, out)
        else:
            raise CheckpointError(f"{self._what}tensor {spec.name!r} needs a base, and the file names none")


def _blobs(path: Path, index: SlotIndex, layout: Layout) -> ReadBlob:
    if len(index.blobs) != len(layout.tensors):
        raise CheckpointError(f"{path} has {len(index.blobs)} blobs for {len(layout.tensors)} tensors")
    ends = itertools.accumulate(blob.nbytes for blob in index.blobs)
    places = {s.name: (end - b.nbytes, b) for s, b, end in zip(layout.tensors, index.blobs, ends, strict=True)}

    def read(spec: TensorSpec) -> bytes:
        start, entry = places[spec.name]
        with file_errors(path), path.open("rb") as file:
            file.seek(start)
            blob = file.read(entry.nbytes)
        if digest(blob) != entry.digest:
            raise DamagedError(f"{path}: encoded tensor {spec.name!r} is damaged")
        return blob

    return read
