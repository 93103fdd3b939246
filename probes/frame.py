"""The telemetry frame: a small msgpack envelope around one tensor. The one format from probe to chart.

``values`` is little-endian float32 in C order, shape [entity, narrow signal, time]; ``wide`` is little-endian int64,
shape [entity, wide signal, time]. On the ``time`` axis sample k was taken at ``t0 + k * dt`` Unix seconds; on the
``step`` axis it belongs to step ``t0 + k`` (``dt`` is 1). Encoding needs no numpy, so a node daemon stays small.

Sequence numbers grow by one within a ``stream`` (the life of one spool directory): a repeated (subject, stream,
sequence) is the same frame again, which is why a retry changes nothing.
"""

from __future__ import annotations

import math
import re
import zlib
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from mainstay.probes.core_types import NAME_PATTERN, validate_name
from mainstay.probes.decoding import UNREADABLE

FRAME_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 8 * 1024 * 1024
"""A minute of 16 GPUs at 10 Hz with 100 signals is 3.8 MB; twice that is an error, not data."""
MAX_ENTITIES: Final = 65_536
_REMEMBERED_ENTITIES: Final = 64
"""A frame of more entities belongs to a job: its names are checked each time, since they would fill the memory."""
_WORTH_BYTES: Final = 512
_PAIR: Final = re.compile(r"[0-9]{1,7}>[0-9]{1,7}")
_ENTITIES: Final = re.compile(rf"(?:{NAME_PATTERN[1:-1]}\n|{_PAIR.pattern}\n)*+")
"""Legal entities, one a line: a frame may hold thousands, and one search over all is cheaper than one for each."""


class Axis(StrEnum):
    TIME = "time"
    STEP = "step"


class Codec(StrEnum):
    RAW = "raw"
    ZLIB = "zlib"


class FrameError(ValueError):
    """The bytes are not an acceptable frame; the message names what is wrong."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One node's (or one job's) samples over a second or more.

    A field that a newer version added is set aside: what it must not be set aside for has another ``version``.
    """

    version: int
    subject: str
    """Node name on the time axis, job id on the step axis."""
    axis: Axis
    stream: str
    sequence: int
    t0: float
    dt: float
    catalog: str
    entities: tuple[str, ...]
    """Device ids of the node (``"host"`` first), or rank numbers of the job, as text; a pair of ranks is
    ``3>4`` (rank 3 sends to rank 4)."""
    samples: int
    crc32: int
    """Of the raw tensors, with any codec."""
    values: bytes
    wide: bytes = b""
    codec: Codec = Codec.RAW
    """How ``values`` and ``wide`` travel; ``decode`` gives them raw."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def checksum(values: bytes, wide: bytes) -> int:
    return zlib.crc32(wide, zlib.crc32(values))


def encode(frame: Frame) -> bytes:
    """The frame as bytes, compressed when that makes it smaller: most signals are slow, and most of a frame is gaps."""
    if frame.codec is Codec.RAW and len(frame.values) + len(frame.wide) > _WORTH_BYTES:
        values, wide = zlib.compress(frame.values, 1), zlib.compress(frame.wide, 1)
        if len(values) + len(wide) < len(frame.values) + len(frame.wide):
            frame = msgspec.structs.replace(frame, values=values, wide=wide, codec=Codec.ZLIB)
    return _encoder.encode(frame)


def decode(body: bytes) -> Frame:
    """Parse and check a frame; shapes against a catalog are checked by ``check_shape``.

    Raises:
        FrameError: truncated, oversized, wrong schema or version, bad ids, non-finite times, or checksum mismatch.
    """
    return open_payload(read_envelope(body))


def read_envelope(body: bytes) -> Frame:
    """Parse and check the envelope; ``open_payload`` then inflates and checks the payload.

    Raises:
        FrameError: truncated, oversized, wrong schema or version, bad ids, or non-finite times.
    """
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame has {len(body)} bytes, more than the {MAX_FRAME_BYTES} allowed")
    try:
        frame = _decoder.decode(body)
    except UNREADABLE as error:
        raise FrameError(f"not a frame: {error}") from error
    _check_envelope(frame)
    return frame


def open_payload(frame: Frame) -> Frame:
    """The frame with raw tensors.

    Raises:
        FrameError: the payload cannot be inflated, is too large, or does not match its checksum.
    """
    frame = _inflated(frame)
    if frame.crc32 != checksum(frame.values, frame.wide):
        raise FrameError("checksum mismatch: the payload was damaged on the way")
    return frame


def _inflated(frame: Frame) -> Frame:
    if frame.codec is Codec.RAW:
        return frame
    values = _inflate(frame.values, MAX_FRAME_BYTES)
    wide = _inflate(frame.wide, MAX_FRAME_BYTES - len(values))
    return msgspec.structs.replace(frame, values=values, wide=wide, codec=Codec.RAW)


def _inflate(data: bytes, limit: int) -> bytes:
    """At most ``limit`` bytes, so that a small body cannot fill the memory."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise FrameError(f"the payload cannot be inflated: {error}") from error
    if len(raw) > limit:
        raise FrameError(f"the payload inflates to more than the {MAX_FRAME_BYTES} bytes allowed")
    if not inflater.eof or inflater.unused_data:
        raise FrameError("the payload is not one whole zlib stream")
    return raw


def _check_envelope(frame: Frame) -> None:
    if frame.version != FRAME_VERSION:
        raise FrameError(f"frame version {frame.version}, this service reads {FRAME_VERSION}")
    check = _check_names if len(frame.entities) <= _REMEMBERED_ENTITIES else _check_names.__wrapped__
    check(frame.subject, frame.stream, frame.catalog, frame.entities)
    if not 0 <= frame.sequence < 2**63:
        raise FrameError(f"sequence {frame.sequence} is not a number from 0 to 2^63-1")
    if not (math.isfinite(frame.t0) and frame.t0 >= 0 and math.isfinite(frame.dt) and frame.dt > 0):
        raise FrameError(f"t0={frame.t0} and dt={frame.dt} must be finite, dt positive")
    if frame.samples < 1:
        raise FrameError(f"frame has {frame.samples} samples, at least one is needed")


@lru_cache(maxsize=16_384)
def _check_names(subject: str, stream: str, catalog: str, entities: tuple[str, ...]) -> None:
    """Check the names of a frame: a node sends the same ones again and again."""
    try:
        validate_name(subject, "subject")
        validate_name(stream, "stream")
        validate_name(catalog, "catalog")
        check_entities(entities)
    except ValueError as error:
        raise FrameError(str(error)) from error
    if not 0 < len(entities) <= MAX_ENTITIES:
        raise FrameError(f"frame has {len(entities)} entities, allowed are 1 to {MAX_ENTITIES}")
    if len(set(entities)) != len(entities):
        raise FrameError("an entity stands twice in the frame")


def check_entities(entities: tuple[str, ...]) -> None:
    """Check that each is a legal id or a pair of ranks.

    Raises:
        ValueError: names the first that is not.
    """
    lines = "\n".join((*entities, ""))
    if _ENTITIES.fullmatch(lines) and lines.count("\n") == len(entities):
        return
    for entity in entities:
        if not _PAIR.fullmatch(entity):
            validate_name(entity, "entity")


def check_shape(frame: Frame, *, narrow: int, wide: int) -> None:
    """Check the payload lengths against the catalog's number of narrow and wide signals.

    Raises:
        FrameError: names the half that is too short or too long, in bytes.
    """
    cells = len(frame.entities) * frame.samples
    for what, have, want in (
        ("values", len(frame.values), cells * narrow * 4),
        ("wide", len(frame.wide), cells * wide * 8),
    ):
        if have != want:
            raise FrameError(f"{what} has {have} bytes, its shape needs {want}")
