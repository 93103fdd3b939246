"""The bundle: the frames of up to 128 nodes in one columnar request, from a relay to the service.

``values`` is little-endian float32 in C order, shape [time, narrow signal, entity]; ``wide`` is little-endian int64,
shape [time, wide signal, entity]. The entities of all subjects stand side by side, in the order of the layout. All
frames of a bundle have the same catalog, interval and number of samples; sample k of a subject was taken at its
``starts + k * dt``.

(relay, stream, sequence) identifies a bundle: sent again, it holds the same bytes. A frame can arrive in two bundles,
or in a bundle and directly, when an acknowledgement was lost: (subject, its stream, its sequence) identifies a frame.

Only the relay, the service and benches import this module: it needs numpy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from mainstay.probes.core_types import validate_name
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.frame import FRAME_VERSION, Axis, Frame, FrameError, check_entities, checksum

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BUNDLE_VERSION: Final = 1
MAX_BUNDLE_BYTES: Final = 64 * 1024 * 1024
"""Of the tensors, uncompressed, and of a body: 128 nodes with 16 GPUs, 100 signals and 10 s at 1 Hz are 14 MB."""
MAX_SUBJECTS: Final = 128
MAX_BUNDLE_ENTITIES: Final = 32_768
"""128 nodes with 256 devices."""
MAX_SPREAD_SECONDS: Final = 60.0
"""Between the earliest and the latest start in a bundle."""
_LEVEL: Final = 1
_WORTH_BYTES: Final = 512
_WINDOW_LOG: Final = MAX_BUNDLE_BYTES.bit_length() - 1
"""The decoder allocates no larger window than a bundle can need."""


class BundleCodec(StrEnum):
    RAW = "raw"
    ZSTD = "zstd"


class BundleLayout(msgspec.Struct, frozen=True, array_like=True):
    """Whose samples a bundle holds, in the order of the tensors: the same bytes while the nodes stay the same."""

    subjects: tuple[str, ...]
    streams: tuple[str, ...]
    """Of each subject's spool."""
    entities: tuple[tuple[str, ...], ...]
    """Of each subject."""


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """Frames of many nodes. Fields that a later version adds are ignored."""

    version: int
    relay: str
    """The relay's name."""
    stream: str
    """One life of the relay's process."""
    sequence: int
    catalog: str
    dt: float
    samples: int
    layout: msgspec.Raw
    """A ``BundleLayout`` as msgpack; a receiver keeps what it decoded by these bytes."""
    sequences: tuple[int, ...]
    """Of each subject's frame."""
    starts: tuple[float, ...]
    """Unix seconds of each subject's first sample."""
    crc32: int
    """Of the raw tensors, with any codec."""
    values: bytes
    wide: bytes
    codec: BundleCodec = BundleCodec.RAW
    """How ``values`` and ``wide`` travel; ``decode_bundle`` gives them raw."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Bundle)
_layout_decoder: Final = msgspec.msgpack.Decoder(BundleLayout)


def pack(frames: Sequence[Frame], *, relay: str, stream: str, sequence: int) -> Bundle:
    """Put decoded frames side by side, sorted by subject; ``encode_bundle`` makes it small.

    Raises:
        FrameError: the frames do not fit together, or one has a payload of another shape.
    """
    frames = sorted(frames, key=lambda frame: frame.subject)
    _check_together(frames)
    first = frames[0]
    layout = BundleLayout(
        tuple(frame.subject for frame in frames),
        tuple(frame.stream for frame in frames),
        tuple(frame.entities for frame in frames),
    )
    values = _side_by_side([frame.values for frame in frames], frames, "<f4")
    wide = _side_by_side([frame.wide for frame in frames], frames, "<i8")
    return Bundle(
        version=BUNDLE_VERSION,
        relay=relay,
        stream=stream,
        sequence=sequence,
        catalog=first.catalog,
        dt=first.dt,
        samples=first.samples,
        layout=msgspec.Raw(_encoder.encode(layout)),
        sequences=tuple(frame.sequence for frame in frames),
        starts=tuple(frame.t0 for frame in frames),
        crc32=checksum(values, wide),
        values=values,
        wide=wide,
    )


def _check_together(frames: Sequence[Frame]) -> None:
    if not 0 < len(frames) <= MAX_SUBJECTS:
        raise FrameError(f"{len(frames)} frames do not make a bundle, 1 to {MAX_SUBJECTS} do")
    if len({frame.subject for frame in frames}) != len(frames):
        raise FrameError("a subject stands twice among the frames of a bundle")
    if len({(frame.catalog, frame.dt, frame.samples) for frame in frames}) != 1:
        raise FrameError("frames of a bundle must have the same catalog, dt and samples")
    if any(frame.axis is not Axis.TIME for frame in frames):
        raise FrameError("a bundle holds frames on the time axis only")
    _check_spread([frame.t0 for frame in frames])


def _side_by_side(payloads: Sequence[bytes], frames: Sequence[Frame], dtype: str) -> bytes:
    """Payloads [entity, signal, time] each, as one block [time, signal, entity of all]."""
    samples, width = frames[0].samples, np.dtype(dtype).itemsize
    signals = len(payloads[0]) // (width * len(frames[0].entities) * samples)
    parts = []
    for payload, frame in zip(payloads, frames, strict=True):
        shape = (len(frame.entities), signals, samples)
        if len(payload) != width * math.prod(shape):
            raise FrameError(f"a payload of {frame.subject} has {len(payload)} bytes: not the shape of its neighbors")
        parts.append(np.frombuffer(payload, dtype).reshape(shape).T)
    return np.concatenate(parts, axis=2).tobytes()


def encode_bundle(bundle: Bundle) -> bytes:
    """The bundle as bytes, its tensors compressed when that makes it smaller."""
    if bundle.codec is BundleCodec.RAW and len(bundle.values) + len(bundle.wide) > _WORTH_BYTES:
        values, wide = zstd.compress(bundle.values, _LEVEL), zstd.compress(bundle.wide, _LEVEL)
        if len(values) + len(wide) < len(bundle.values) + len(bundle.wide):
            bundle = msgspec.structs.replace(bundle, values=values, wide=wide, codec=BundleCodec.ZSTD)
    return _encoder.encode(bundle)


def decode_bundle(body: bytes) -> Bundle:
    """Parse and check everything but the layout, with the tensors raw; ``decode_layout`` and ``read_tensors`` follow.

    Raises:
        FrameError: truncated, oversized, wrong schema or version, bad ids or times, or checksum mismatch.
    """
    if len(body) > MAX_BUNDLE_BYTES:
        raise FrameError(f"bundle has {len(body)} bytes, more than the {MAX_BUNDLE_BYTES} allowed")
    try:
        bundle = _decoder.decode(body)
    except UNREADABLE as error:
        raise FrameError(f"not a bundle: {error}") from error
    _check_envelope(bundle)
    bundle = _inflated(bundle)
    if bundle.crc32 != checksum(bundle.values, bundle.wide):
        raise FrameError("checksum mismatch: the tensors were damaged on the way")
    return bundle


def _inflated(bundle: Bundle) -> Bundle:
    if bundle.codec is BundleCodec.RAW:
        return bundle
    values = _inflate(bundle.values, MAX_BUNDLE_BYTES)
    wide = _inflate(bundle.wide, MAX_BUNDLE_BYTES - len(values))
    return msgspec.structs.replace(bundle, values=values, wide=wide, codec=BundleCodec.RAW)


def _inflate(data: bytes, limit: int) -> bytes:
    inflater = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    try:
        raw = inflater.decompress(data, limit + 1)
    except zstd.ZstdError as error:
        raise FrameError(f"the tensors cannot be inflated: {error}") from error
    if len(raw) > limit:
        raise FrameError(f"the tensors inflate to more than the {MAX_BUNDLE_BYTES} bytes allowed")
    if not inflater.eof or inflater.unused_data:
        raise FrameError("the tensors are not one whole zstd frame")
    return raw


def _check_envelope(bundle: Bundle) -> None:
    if bundle.version != BUNDLE_VERSION:
        raise FrameError(f"bundle version {bundle.version}, this service reads {BUNDLE_VERSION}")
    try:
        for what in ("relay", "stream", "catalog"):
            validate_name(getattr(bundle, what), what)
    except ValueError as error:
        raise FrameError(str(error)) from error
    if not (0 < len(bundle.sequences) == len(bundle.starts) <= MAX_SUBJECTS):
        raise FrameError(
            f"bundle has {len(bundle.sequences)} sequences and {len(bundle.starts)} starts: "
            f"one of each for 1 to {MAX_SUBJECTS} subjects is needed"
        )
    for sequence in (bundle.sequence, min(bundle.sequences), max(bundle.sequences)):
        if not 0 <= sequence < 2**63:
            raise FrameError(f"sequence {sequence} is not a number from 0 to 2^63-1")
    if not all(map(math.isfinite, bundle.starts)) or min(bundle.starts) < 0:
        raise FrameError("a start is not a finite time from 0 upwards")
    _check_spread(bundle.starts)
    if not (math.isfinite(bundle.dt) and bundle.dt > 0) or bundle.samples < 1:
        raise FrameError(f"dt={bundle.dt} must be finite and positive, samples={bundle.samples} at least one")


def _check_spread(starts: Sequence[float]) -> None:
    if max(starts) - min(starts) > MAX_SPREAD_SECONDS:
        raise FrameError(
            f"starts of a bundle differ by {max(starts) - min(starts):.0f} s, "
            f"more than the {MAX_SPREAD_SECONDS:.0f} s allowed"
        )


def decode_layout(raw: bytes | msgspec.Raw) -> BundleLayout:
    """Parse and check a layout: names are legal and stand once, and each subject has a stream and entities.

    Raises:
        FrameError: names what is wrong.
    """
    try:
        layout = _layout_decoder.decode(raw)
    except UNREADABLE as error:
        raise FrameError(f"not the layout of a bundle: {error}") from error
    try:
        _check_layout(layout)
    except ValueError as error:
        raise FrameError(str(error)) from error
    return layout


def _check_layout(layout: BundleLayout) -> None:
    counts = (len(layout.subjects), len(layout.streams), len(layout.entities))
    if not (0 < counts[0] <= MAX_SUBJECTS and len(set(counts)) == 1):
        raise FrameError("layout has {} subjects, {} streams and {} lists of entities".format(*counts))
    if len(set(layout.subjects)) != len(layout.subjects):
        raise FrameError("a subject stands twice in the layout")
    for subject, stream, entities in zip(layout.subjects, layout.streams, layout.entities, strict=True):
        validate_name(subject, "subject")
        validate_name(stream, "stream")
        if not entities or len(set(entities)) != len(entities):
            raise FrameError(f"subject {subject} has no entities, or one twice")
    every = tuple(chain.from_iterable(layout.entities))
    if len(every) > MAX_BUNDLE_ENTITIES:
        raise FrameError(f"layout has {len(every)} entities, at most {MAX_BUNDLE_ENTITIES} are allowed")
    check_entities(every)
    pair = next((entity for entity in every if ">" in entity), None)
    if pair is not None:
        raise FrameError(f"{pair!r} is a pair of ranks, not a device of a node")


def read_tensors(
    bundle: Bundle, layout: BundleLayout, *, narrow: int, wide: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The tensors [time, signal, entity] of a decoded bundle, without a copy.

    Args:
        bundle: what ``decode_bundle`` returned.
        layout: its layout.
        narrow: narrow signals of its catalog.
        wide: wide signals of its catalog.

    Raises:
        FrameError: layout, tensors and catalog do not fit together.
    """
    if len(layout.subjects) != len(bundle.sequences):
        raise FrameError(f"layout has {len(layout.subjects)} subjects, the bundle {len(bundle.sequences)} frames")
    entities = sum(map(len, layout.entities))
    shapes = (bundle.samples, narrow, entities), (bundle.samples, wide, entities)
    for what, data, need in (
        ("values", bundle.values, 4 * math.prod(shapes[0])),
        ("wide", bundle.wide, 8 * math.prod(shapes[1])),
    ):
        if len(data) != need:
            raise FrameError(f"{what} has {len(data)} bytes, its shape needs {need}")
    return np.frombuffer(bundle.values, "<f4").reshape(shapes[0]), np.frombuffer(bundle.wide, "<i8").reshape(shapes[1])


def unpack(bundle: Bundle, layout: BundleLayout, subject: str | None = None) -> Iterator[Frame]:
    """The frames of a decoded bundle, of one subject or of all, as ``pack`` took them.

    Raises:
        FrameError: layout and tensors do not fit together.
    """
    sizes = [len(devices) for devices in layout.entities]
    cells = bundle.samples * sum(sizes)
    if len(bundle.values) % (4 * cells) or len(bundle.wide) % (8 * cells):
        raise FrameError("the tensors of the bundle do not have a whole number of signals")
    shape = (bundle.samples, -1, sum(sizes))
    tensors = np.frombuffer(bundle.values, "<f4"), np.frombuffer(bundle.wide, "<i8")
    narrow, wide = (tensor.reshape(shape) if tensor.size else tensor.reshape(0, 0, 0) for tensor in tensors)
    stop = 0
    for member, size in enumerate(sizes):
        start, stop = stop, stop + size
        if subject in {None, layout.subjects[member]}:
            values, wides = (tensor[:, :, start:stop].T.tobytes() for tensor in (narrow, wide))
            yield Frame(
                version=FRAME_VERSION, subject=layout.subjects[member], axis=Axis.TIME, stream=layout.streams[member],
                sequence=bundle.sequences[member], t0=bundle.starts[member], dt=bundle.dt, catalog=bundle.catalog,
                entities=layout.entities[member], samples=bundle.samples, crc32=checksum(values, wides),
                values=values, wide=wides,
            )  # fmt: skip
