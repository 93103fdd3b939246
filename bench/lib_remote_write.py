"""Requests with the samples of ``bench.fleet`` in the formats that other stores take, built once for all rounds."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bench.lib_fleet import GPU, GPUS, Samples
from mainstay.service.exposition.protobuf import label, varint

FRAME_SECONDS = 5
"""As ``bench.fleet`` has it by default; each series has one sample a second."""

Labels = dict[str, str]
Values = Sequence[np.float32]
Pieces = Callable[[Labels, Values], list[bytes]]


_NOW = time.time_ns() // 1_000_000
_STAMP_BYTES = len(varint(_NOW))


def protobuf_pieces(labels: Labels, values: Values) -> list[bytes]:
    """One ``TimeSeries`` of a ``WriteRequest`` in pieces with a timestamp between each two."""
    head = b"".join(label(key, value) for key, value in sorted(labels.items()))
    samples = [b"\x12" + varint(10 + _STAMP_BYTES) + b"\x09" + struct.pack("<d", value) + b"\x10" for value in values]
    size = len(head) + sum(map(len, samples)) + len(samples) * _STAMP_BYTES
    return [b"\x0a" + varint(size) + head + samples[0], *samples[1:], b""]


def json_pieces(labels: Labels, values: Values) -> list[bytes]:
    """One line of ``/api/v1/import`` in pieces with a timestamp between each two."""
    readings = ",".join(str(value) for value in values)
    head = f'{{"metric":{json.dumps(labels)},"values":[{readings}],"timestamps":['
    return [head.encode(), *[b","] * (len(values) - 1), b"]}\n"]


def literal_snappy(size: int) -> bytes:
    """What comes before ``size`` bytes to make them a block of one literal."""
    return varint(size) + b"\xfc" + struct.pack("<I", size - 1)


class Format(NamedTuple):
    pieces: Pieces
    stamp: Callable[[int], bytes]
    """A timestamp in milliseconds; each has the same length."""
    head: Callable[[int], bytes]
    """What comes before a body of this size."""


PROTOBUF = Format(protobuf_pieces, varint, literal_snappy)
JSON_LINES = Format(json_pieces, lambda stamp: str(stamp).encode(), lambda _: b"")


class Body:
    """A request built once; only its timestamps differ from round to round."""

    def __init__(self, form: Format, series: Iterable[tuple[Labels, Values]]) -> None:
        self._stamp, pieces = form.stamp, [b""]
        for labels, values in series:
            first, *rest = form.pieces(labels, values)
            pieces[-1] += first
            pieces += rest
        width = len(form.stamp(_NOW))
        self._bytes = np.frombuffer(bytearray(bytes(width).join(pieces)), np.uint8)
        ends = np.cumsum([len(piece) for piece in pieces[:-1]]) + np.arange(len(pieces) - 1) * width
        self._at = ends[:, None] + np.arange(width)
        self._head = form.head(len(self._bytes))

    @property
    def samples(self) -> int:
        return len(self._at)

    def at(self, start: int) -> bytes:
        """The request whose first samples are at second ``start``."""
        stamps = b"".join(self._stamp((start + second) * 1000) for second in range(FRAME_SECONDS))
        seconds = np.frombuffer(stamps, np.uint8).reshape(FRAME_SECONDS, -1)
        self._bytes[self._at] = np.tile(seconds, (self.samples // FRAME_SECONDS, 1))
        return self._head + self._bytes.tobytes()


def series(nodes: range) -> Iterator[tuple[Labels, Values]]:
    """The readings of ``bench.lib_fleet.Samples`` that are not missing; each GPU's signal is a series."""
    samples = Samples(FRAME_SECONDS)
    narrow = np.frombuffer(samples.values, "<f4").reshape(GPUS, -1, FRAME_SECONDS)
    wide = np.frombuffer(samples.wide, "<i8").reshape(GPUS, -1, FRAME_SECONDS).astype("<f4")
    values, names = np.concatenate([narrow, wide], axis=1), GPU.narrow + GPU.wide
    present = [(gpu, at) for gpu in range(GPUS) for at in range(len(names)) if np.isfinite(values[gpu, at]).all()]
    for node in nodes:
        for gpu, at in present:
            yield {"__name__": names[at], "gpu": str(gpu), "node": f"n{node:05d}"}, list(values[gpu, at])
