"""Tensors of the whole model in the parts of a step, and any box of one out of the pieces that are stored.

Parts hold pieces (``memory.global_slices``): what FSDP2 or tensor parallelism cut, and what replicas divided among
themselves to write. A box is put together from the pieces that meet it; each piece is checked against its digest, so
that memory beyond the box is that of one piece. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.load import ReadTensor, encoded_part, part_file
from mainstay.recovery.checkpoint.logical import lengths, overlap
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart, TensorEntry
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.global_slices import GlobalSlice
from mainstay.recovery.memory.layout import DTYPES
from mainstay.recovery.memory.model_names import MODEL

Piece = tuple[CheckpointPart, TensorEntry]


class TensorIndex:
    """The model's tensors of some parts of one step, by name."""

    def __init__(self, run: RunDirectory, parts: Sequence[CheckpointPart]) -> None:
        """Look through ``parts``; of a tensor that several hold alike the first counts.

        Raises:
            CheckpointError: two hold different bytes of the same place, and no rank has them as its own.
        """
        self._run = run
        self._pieces: dict[str, dict[tuple[GlobalSlice, tuple[int, ...]], Piece]] = {}
        self._encoded: dict[str, ReadTensor] = {}
        for part in parts:
            for entry in part.tensors:
                if entry.name.startswith(MODEL):
                    self._add(part, entry)

    def _add(self, part: CheckpointPart, entry: TensorEntry) -> None:
        pieces = self._pieces.setdefault(entry.name, {})
        there, known = pieces.setdefault((entry.slice, entry.shape), (part, entry))
        # Buffers may differ between replicas; tied parameters are in several stages, and unlike ones have no place.
        if known.digest != entry.digest and not (entry.name.startswith("buffer.") and _peers(part, there)):
            where = self._run.data_file
            raise CheckpointError(f"{where(part)} and {where(there)} differ in {entry.name!r}")

    def read(self, name: str, dtype: str, wanted: GlobalSlice, out: npt.NDArray[np.generic]) -> int:
        """Fill ``out`` (numpy's type of ``dtype``, contiguous) with the box of ``name`` at ``wanted`` that is as large.

        Returns:
            Digest of the bytes of ``out``.

        Raises:
            CheckpointError: no part has the tensor, it has another type or shape there, pieces are missing, or one does
                not match its digest.
        """
        pieces = list(self._pieces.get(name, {}).values())
        if not pieces:
            raise CheckpointError(f"the step has no tensor {name!r}, which this rank needs")
        there = next((e for _, e in pieces if e.dtype != dtype or e.slice.global_shape != wanted.global_shape), None)
        if there is not None:
            raise CheckpointError(
                f"{name!r} is {there.dtype}{list(there.slice.global_shape)} there, {dtype}{list(wanted.global_shape)} "
                "here. Take the model that was saved, or give mainstay.attach sharding= if the script cuts tensors"
            )
        region = tuple(slice(at, at + size) for at, size in zip(wanted.offsets, out.shape, strict=True))
        found = ((part, entry, overlap(entry.slice.offsets, entry.shape, region)) for part, entry in pieces)
        met = [(part, entry, boxes) for part, entry, boxes in found if boxes]
        # A piece that has everything spares the others: replicas may be cut in more than one way.
        single = next((one for one in met if lengths(one[2][1]) == out.shape), None)
        filled = None if single else np.zeros(out.shape, bool)
        for part, entry, (source, target) in [single] if single else met:
            box = out[target] if target else out
            if box.shape == entry.shape and box.flags.c_contiguous:
                self.read_piece(part, entry, _raw(box))
                if single:
                    return entry.digest
            else:
                box[...] = self.array(part, entry)[source]
            if filled is not None:
                filled[target] = True
        if filled is not None and not filled.all():
            raise CheckpointError(f"the step lacks pieces of {name!r}, which this rank needs")
        return digest(_raw(out))

    def origin(self, name: str) -> tuple[tuple[GlobalSlice, int], ...]:
        """Place and digest of every stored piece of ``name``."""
        return tuple(sorted((place, entry.digest) for (place, _), (_, entry) in self._pieces.get(name, {}).items()))

    def array(self, part: CheckpointPart, entry: TensorEntry) -> npt.NDArray[np.generic]:
        """A stored piece, checked, in numpy's type.

        Raises:
            CheckpointError: it does not match its digest.
        """
        raw = np.empty(entry.nbytes, np.uint8)
        self.read_piece(part, entry, raw)
        return raw.view(np.dtype(DTYPES[entry.dtype])).reshape(entry.shape)

    def read_piece(self, part: CheckpointPart, entry: TensorEntry, out: Bytes) -> None:
        """Fill ``out`` (uint8 [entry.nbytes]) with a stored piece; of an encoded part, all files are found once.

        Raises:
            CheckpointError: a file is missing, short, or the piece does not match its digest.
        """
        if not part.is_encoded:
            with part_file(self._run, part) as read:
                read(entry, out)
            return
        if part.check not in self._encoded:
            self._encoded[part.check] = encoded_part(self._run, part)
        self._encoded[part.check](entry, out)


def _peers(a: CheckpointPart, b: CheckpointPart) -> bool:
    """Whether two parts are data-parallel replicas' of the same stage and slice."""
    return a.rank != b.rank and a.shape.cut(a.rank) == b.shape.cut(b.rank)


def _raw(array: npt.NDArray[np.generic]) -> Bytes:
    return array.reshape(-1).view(np.uint8)
