"""One encoded tensor: a header that describes it, then sections of bytes, each stored as it is or as a zstd frame."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.layout import TensorSpec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VERSION: Final = 1
_PREFIX: Final = struct.Struct("<4sIQ")
"""Magic, bytes of the header, xxh3_64 of the header."""
_MAGIC: Final = b"MSTB"
_WINDOW_LOG: Final = 17
_OPTIONS: Final[dict[int, int]] = {
    # Byte planes hold no repeated text: the small hash table and long matches leave the work to the Huffman coder. On
    # planes of a trained model this is 1.6 times as fast as level 1 and 3% smaller. (zlib: as small, 10 times slower.)
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.strategy: zstd.Strategy.fast.value,
    zstd.CompressionParameter.window_log: _WINDOW_LOG,
    zstd.CompressionParameter.hash_log: 6,
    zstd.CompressionParameter.min_match: 7,
}
_LIMITS: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}


class TensorHeader(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """What every encoding says of its tensor."""

    version: int = VERSION
    dtype: str
    shape: tuple[int, ...]
    digest: int
    """xxh3_64 of the decoded tensor."""
    unit: int = 0
    """Bytes of a unit: only changed units are here, after a section that says which. 0: all bytes are here."""
    base: int | None = None
    """xxh3_64 of the tensor in the base; None: no base is needed."""
    sections: tuple[int, ...] = ()
    """Stored bytes of each section; as many as the decoded section has: stored as it is."""


class ExactHeader(TensorHeader, frozen=True, tag="exact", kw_only=True, array_like=True):
    """The same bits, stored as byte planes."""

    subtracted: bool
    """The words are differences to those of the base."""


class QuantizedHeader(TensorHeader, frozen=True, tag="quantized", kw_only=True, array_like=True):
    """Groups of values as codes of some bits; the sections are codes, parameters, and error bounds."""

    kind: str
    """``uniform`` or ``logarithmic``."""
    bits: int
    group: int
    """Values that share parameters."""
    error: float
    """The largest error bound of all groups; of ``logarithmic`` ones, relative to the value."""


class CastHeader(TensorHeader, frozen=True, tag="cast", kw_only=True, array_like=True):
    """The float32 tensor ``source`` of the same slot, rounded to this dtype (a master copy of mixed precision)."""

    source: str


Header = ExactHeader | QuantizedHeader | CastHeader
_HEADERS: Final[msgspec.msgpack.Decoder[Header]] = msgspec.msgpack.Decoder(Header)
"""Made while there is one thread: msgspec 0.22 crashes where several threads are the first to decode a type."""


def join(header: Header, sections: Sequence[bytes]) -> bytes:
    """The blob of a header, whose ``sections`` are filled in here, and of its stored sections."""
    text = msgspec.msgpack.encode(msgspec.structs.replace(header, sections=tuple(map(len, sections))))
    return b"".join((_PREFIX.pack(_MAGIC, len(text), digest(text)), text, *sections))


def split(blob: bytes | memoryview, spec: TensorSpec) -> tuple[Header, Sections]:
    """The header of a blob, checked against what the layout says of the tensor, and its sections.

    Raises:
        CheckpointError: truncated, damaged, of another version, or another tensor's; names the tensor.
    """
    view, what = memoryview(blob), f"encoded tensor {spec.name!r}"
    if len(view) < _PREFIX.size:
        raise CheckpointError(f"{what} ends within its header")
    magic, length, check = _PREFIX.unpack(view[: _PREFIX.size])
    text = view[_PREFIX.size : _PREFIX.size + length]
    if magic != _MAGIC or len(text) != length or digest(text) != check:
        raise CheckpointError(f"{what} has a damaged header")
    try:
        header = _HEADERS.decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(f"{what} has a header of an unknown kind: {error}") from error
    if header.version != VERSION:
        raise CheckpointError(f"{what} has version {header.version}, this program reads {VERSION}")
    if (header.dtype, header.shape) != (spec.dtype, spec.shape):
        raise CheckpointError(f"{what} is {header.dtype}{list(header.shape)}, not {spec.dtype}{list(spec.shape)}")
    body = view[_PREFIX.size + length :]
    if min(header.sections, default=0) < 0 or sum(header.sections) != len(body):
        raise CheckpointError(f"{what} has {len(body)} bytes of sections instead of {sum(header.sections)}")
    return header, Sections(body, header.sections, what)


class Sections:
    """The stored sections of a blob, read one after another."""

    def __init__(self, body: memoryview, sizes: tuple[int, ...], what: str) -> None:
        self._body, self._sizes, self.what = body, iter(sizes), what

    def read(self, nbytes: int) -> Bytes:
        """The next section, which has ``nbytes`` decoded bytes; read-only.

        Raises:
            CheckpointError: there is none, or it does not decode to so many.
        """
        size = next(self._sizes, None)
        if size is None:
            raise CheckpointError(f"{self.what} lacks a section")
        stored, self._body = self._body[:size], self._body[size:]
        if size == nbytes:
            return np.frombuffer(stored, np.uint8)
        inflater = zstd.ZstdDecompressor(options=_LIMITS)
        try:
            content = inflater.decompress(stored, max_length=nbytes + 1)
        except zstd.ZstdError as error:
            raise CheckpointError(f"{self.what} is damaged: {error}") from error
        if len(content) != nbytes or not inflater.eof or inflater.unused_data:
            raise CheckpointError(f"{self.what} has a section that does not decode to {nbytes} bytes")
        return np.frombuffer(content, np.uint8)

    def finish(self) -> None:
        """Require that every section was read.

        Raises:
            CheckpointError: there are more.
        """
        if next(self._sizes, None) is not None:
            raise CheckpointError(f"{self.what} has more sections than its header explains")


def stored(section: npt.NDArray[np.generic]) -> bytes:
    """A section as a zstd frame, or as it is where that is no smaller."""
    raw = np.ascontiguousarray(section).view(np.uint8).data
    frame = zstd.compress(raw, options=_OPTIONS)
    return frame if len(frame) < len(raw) else bytes(raw)


def chunks(count: int, size: int) -> Iterator[slice]:
    """``range(count)`` in slices of at most ``size``."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
