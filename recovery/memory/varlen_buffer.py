"""A few bytes of varying length in a tensor of fixed size: 4 bytes of length, then the bytes."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from mainstay.recovery.memory.digest import Bytes

_LENGTH: Final = struct.Struct("<I")


def needed(body: bytes) -> int:
    """Bytes that ``put`` would fill."""
    return _LENGTH.size + len(body)


def write_bytes(body: bytes, out: Bytes) -> None:
    """Write ``body`` at the start of ``out``.

    Raises:
        ValueError: it does not fit; names both sizes.
    """
    if _LENGTH.size + len(body) > len(out):
        raise ValueError(f"the scalars of the state take {len(body)} bytes, their room is {len(out) - _LENGTH.size}")
    raw = _LENGTH.pack(len(body)) + body
    out[: len(raw)] = np.frombuffer(raw, np.uint8)


def read_bytes(raw: Bytes) -> bytes:
    """What ``put`` wrote; cut short if the length is damaged, for the decoder to refuse."""
    (length,) = _LENGTH.unpack(raw[: _LENGTH.size].tobytes())
    return raw[_LENGTH.size : _LENGTH.size + length].tobytes()
