"""One checksum for data, records, headers and layouts: xxh3_64, faster than memcpy and therefore never skipped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

Bytes = npt.NDArray[np.uint8]

CHUNK: Final = 8 * 1024 * 1024
"""Bytes digested between two chances for other threads; xxhash releases the interpreter lock within a call."""


def digest(data: bytes | bytearray | memoryview | Bytes) -> int:
    """The xxh3_64 of ``data``, as an unsigned 64-bit number."""
    view = (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")
    if len(view) <= CHUNK:
        return int(xxhash.xxh3_64_intdigest(view))
    state = xxhash.xxh3_64()
    for start in range(0, len(view), CHUNK):
        state.update(view[start : start + CHUNK])
    return int(state.intdigest())


def digest_of(parts: Iterable[Bytes]) -> int:
    """The digest of ``parts`` one after the other, as if they were one."""
    state = xxhash.xxh3_64()
    for part in parts:
        for start in range(0, len(part), CHUNK):
            state.update(part[start : start + CHUNK].data)
    return int(state.intdigest())
