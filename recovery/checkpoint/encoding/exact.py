"""A tensor to the same bits: units that changed since a base, as differences where smaller, in byte planes, with zstd.

Words are either rotated, so that the exponent fills a byte, or subtracted from those of the base as integers: nearby
floats have nearby bits. Byte planes then separate what can be compressed from what cannot.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from mainstay.recovery.checkpoint.encoding.tensor_blob import ExactHeader, Sections, chunks, join, stored
from mainstay.recovery.checkpoint.encoding.units import ReadBytes, Selection, UnitDigests, unit_digests
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import DTYPES, TensorSpec

CHUNK: Final = 256 * 1024
"""Words that are transposed at once: they stay in the cache, and bound the extra memory to some MiB."""
_SAMPLE: Final = 16 * 1024
_SAMPLES: Final = 4

Words = npt.NDArray[np.unsignedinteger]


def encode_exact(
    spec: TensorSpec, data: Bytes, base: UnitDigests | None = None, own: UnitDigests | None = None
) -> bytes:
    """The blob of a tensor.

    Args:
        spec: of the tensor; its offset does not matter.
        data: uint8 [spec.nbytes].
        base: of the same tensor of the base; None: there is none. One that is read is subtracted, and never in memory
            as a whole.
        own: the digests of ``data``; None: not known.

    Raises:
        CheckpointError: the base cannot be read, or is damaged.
    """
    own = own or unit_digests(spec, data)
    chosen = Selection.build(spec, own, base)
    words, found = chosen.gather(data).view(_words(spec)), xxhash.xxh3_64()
    read = base.read if base else None
    header = ExactHeader(
        dtype=spec.dtype, shape=spec.shape, digest=own.whole, unit=chosen.unit,
        base=base.whole if base and (chosen.unit or read) else None, subtracted=read is not None,
    )  # fmt: skip
    planes = []
    for part in chunks(len(words), CHUNK):
        under = _words_below(read, words, part) if read else None
        planes += _planes(words[part], under)
        if under is not None:
            found.update(under.data)
    if base and read and found.intdigest() != base.whole:
        raise CheckpointError(f"tensor {spec.name!r} of the base is damaged on disk")
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


def _words(spec: TensorSpec) -> np.dtype[np.unsignedinteger]:
    """One number, also within a complex one."""
    return np.dtype(f"u{np.dtype(DTYPES[spec.dtype]).itemsize // (2 if spec.dtype.startswith('complex') else 1)}")


def _words_below(read: ReadBytes, words: Words, part: slice) -> Words:
    """The words of the base that lie under a part of a tensor's."""
    found = np.empty_like(words[part])
    read(part.start * words.itemsize, found.view(np.uint8))
    return found


def sampled_sizes(spec: TensorSpec, data: Bytes, base: UnitDigests) -> tuple[int, int]:
    """Bytes of a tensor (uint8 [spec.nbytes]) alone, and subtracted from a base that can be read, by samples of it.

    Raises:
        CheckpointError: the base cannot be read.
    """
    words, read = data.view(_words(spec)), base.read
    assert read is not None
    size = min(_SAMPLE, max(_SAMPLE // 4, len(words) // 16))
    step = max(4 * size, len(words) // _SAMPLES)  # a quarter of the words, and less of large tensors
    places = [slice(start, min(start + size, len(words))) for start in range(0, len(words), step)]
    plain = less = count = 0
    for at in places:
        count += at.stop - at.start
        plain += sum(map(len, _planes(words[at], None)))
        less += sum(map(len, _planes(words[at], _words_below(read, words, at))))
    return plain * len(words) // max(count, 1), less * len(words) // max(count, 1)


def _planes(piece: Words, under: Words | None) -> list[bytes]:
    bits = piece.dtype.itemsize * 8
    if under is None:
        ready = (piece << 1) | (piece >> (bits - 1))
    else:
        delta = (piece - under).view(f"i{piece.dtype.itemsize}")
        ready = ((delta << 1) ^ (delta >> (bits - 1))).view(piece.dtype)
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
