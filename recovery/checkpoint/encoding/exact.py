"""A tensor to the same bits: units that changed since a base, as differences where smaller, in byte planes, with zstd.

Words are either rotated, so that the exponent fills a byte, or subtracted from those of the base as integers: nearby
floats have nearby bits. Byte planes then separate what can be compressed from what cannot.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from mainstay.recovery.checkpoint.encoding.tensor_blob import ExactHeader, Sections, chunks, join, stored
from mainstay.recovery.checkpoint.encoding.units import Base, Selection, UnitDigests
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.layout import DTYPES, TensorSpec

CHUNK: Final = 256 * 1024
"""Words that are transposed at once: they stay in the cache, and bound the extra memory to some MiB."""
_SAMPLE: Final = 16 * 1024
_SAMPLES: Final = 4

Words = npt.NDArray[np.unsignedinteger]


def encode_exact(spec: TensorSpec, data: Bytes, base: Base | None = None, own: UnitDigests | None = None) -> bytes:
    """The blob of a tensor.

    Args:
        spec: of the tensor; its offset does not matter.
        data: uint8 [spec.nbytes].
        base: the same tensor of the base, or its digests; None: nothing is known.
        own: the digests of ``data``; None: not known.
    """
    chosen = Selection.build(spec, data, base, own)
    words, under = chosen.gather(data).view(_words(spec)), None
    if base is not None and not isinstance(base, UnitDigests):
        under = chosen.gather(base).view(words.dtype)
        under = under if _smaller_subtracted(words, under) else None
    needed = base if chosen.unit or under is not None else None
    header = ExactHeader(
        dtype=spec.dtype, shape=spec.shape, digest=own.whole if own else digest(data), unit=chosen.unit,
        base=digest_of_base(needed), subtracted=under is not None,
    )  # fmt: skip
    planes = [plane for part in chunks(len(words), CHUNK) for plane in _planes(words, under, part)]
    return join(header, [*chosen.sections(), *planes])


def decode_exact(header: ExactHeader, sections: Sections, spec: TensorSpec, out: Bytes) -> None:
    """Decode in place; the digest is not checked yet.

    Args:
        header: of the blob.
        sections: of the blob.
        spec: of the tensor.
        out: uint8 [spec.nbytes]; holds the tensor of the base if the header has one.

    Raises:
        CheckpointError: the sections do not fit; ``out`` is worthless.
    """
    chosen = Selection.read(header, sections, spec)
    target = chosen.gather(out)
    words = target.view(_words(spec))
    for part in chunks(len(words), CHUNK):
        piece = words[part]
        found = _restored(_joined_planes(sections, piece.dtype, len(piece)), subtracted=header.subtracted)
        piece[:] = piece + found if header.subtracted else found
    sections.finish()
    chosen.scatter(target, out)


def digest_of_base(base: Base | None) -> int | None:
    """What the header says of the base."""
    return base.whole if isinstance(base, UnitDigests) else None if base is None else digest(base)


def _words(spec: TensorSpec) -> np.dtype[np.unsignedinteger]:
    """One number, also within a complex one."""
    return np.dtype(f"u{np.dtype(DTYPES[spec.dtype]).itemsize // (2 if spec.dtype.startswith('complex') else 1)}")


def _smaller_subtracted(words: Words, under: Words) -> bool:
    """Whether differences compress better, by samples spread over the words."""
    step = max(_SAMPLE, len(words) // _SAMPLES)
    places = [slice(start, start + _SAMPLE) for start in range(0, len(words), step)]
    plain, less = (sum(len(p) for at in places for p in _planes(words, base, at)) for base in (None, under))
    return less < plain


def _planes(words: Words, under: Words | None, part: slice) -> list[bytes]:
    piece, bits = words[part], words.dtype.itemsize * 8
    if under is None:
        ready = (piece << 1) | (piece >> (bits - 1))
    else:
        delta = (piece - under[part]).view(f"i{words.dtype.itemsize}")
        ready = ((delta << 1) ^ (delta >> (bits - 1))).view(words.dtype)
    return [stored(plane) for plane in ready.view(np.uint8).reshape(len(piece), -1).T]


def _joined_planes(sections: Sections, dtype: np.dtype[np.unsignedinteger], count: int) -> Words:
    found = np.empty(count, dtype)
    columns = found.view(np.uint8).reshape(count, dtype.itemsize)
    for column in range(dtype.itemsize):
        columns[:, column] = sections.read(count)
    return found


def _restored(ready: Words, *, subtracted: bool) -> Words:
    """The words that ``_planes`` rotated, or the differences that it made small unsigned numbers, modulo the width."""
    last = np.negative(ready & 1) if subtracted else ready << (ready.dtype.itemsize * 8 - 1)
    words: Words = np.bitwise_xor(ready >> 1, last)
    return words
