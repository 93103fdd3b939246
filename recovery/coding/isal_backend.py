"""The backend on Intel's ISA-L, by ctypes: the library inside the pyeclib wheel (``mainstay[codes]``) or the system's.

pyeclib itself is never imported: its own encode allocates and copies fragments and loses nine tenths of the speed.
ctypes releases the interpreter lock during each call.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.metadata
import logging
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from mainstay.recovery.coding.galois_field import Bytes, Matrix

TILE: Final = 256 * 1024
"""Bytes of each block a call: large enough that a call costs nothing; the limit is 2 GiB (ISA-L's lengths are int)."""
_TABLE: Final = 32
"""Bytes of ISA-L's tables a coefficient."""
_XOR_ALIGNMENT: Final = 32
"""What ``xor_gen`` asks of every pointer."""

_Int, _Pointer = ctypes.c_int, ctypes.c_void_p

logger = logging.getLogger("mainstay.coding")


class IsalBackend:
    """See ``backend.Backend``."""

    name = "isa-l"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.ec_init_tables.argtypes = [_Int, _Int, _Pointer, _Pointer]
        library.ec_encode_data.argtypes = [_Int, _Int, _Int, _Pointer, _Pointer, _Pointer]
        library.ec_encode_data_update.argtypes = [_Int, _Int, _Int, _Int, _Pointer, _Pointer, _Pointer]
        library.xor_gen.argtypes = [_Int, _Int, _Pointer]
        for function in (library.ec_init_tables, library.ec_encode_data, library.ec_encode_data_update):
            function.restype = None
        self._tables_of = functools.lru_cache(maxsize=512)(self._make_tables)

    def combine(self, matrix: Matrix, blocks: Sequence[Bytes], out: Sequence[Bytes]) -> None:
        sources, targets = _addresses(blocks), _addresses(out)
        size = len(out[0]) if len(out) else 0
        if len(out) == 1 and len(blocks) > 1 and (matrix == 1).all() and _aligned(sources, targets):
            self._xor(np.concatenate([sources, targets]), size)
            return
        rows, columns = matrix.shape
        tables = self._tables_of(rows, columns, matrix.tobytes())
        for step in _steps(size):
            self._library.ec_encode_data(
                step, columns, rows, tables.ctypes.data, sources.ctypes.data, targets.ctypes.data
            )
            sources += np.uintp(step)
            targets += np.uintp(step)

    def multiply_add(self, coefficient: int, block: Bytes, out: Bytes) -> None:
        tables = self._tables_of(1, 1, bytes([coefficient]))
        target, source = _addresses([out]), int(block.ctypes.data)
        for step in _steps(len(out)):
            self._library.ec_encode_data_update(step, 1, 1, 0, tables.ctypes.data, source, target.ctypes.data)
            target += np.uintp(step)
            source += step

    def _xor(self, vectors: Addresses, size: int) -> None:
        """The last vector becomes the XOR of the others."""
        for step in _steps(size):
            if self._library.xor_gen(len(vectors), step, vectors.ctypes.data):
                raise RuntimeError(f"ISA-L refused to XOR {len(vectors) - 1} blocks of {step} bytes")
            vectors += np.uintp(step)

    def _make_tables(self, rows: int, columns: int, matrix: bytes) -> Bytes:
        tables: Bytes = np.zeros(_TABLE * rows * columns, np.uint8)
        self._library.ec_init_tables(columns, rows, matrix, tables.ctypes.data)
        return tables


Addresses = np.ndarray[tuple[int], np.dtype[np.uintp]]


def load() -> ctypes.CDLL | None:
    """ISA-L, if it is here and works."""
    for path in _places():
        try:
            library = ctypes.CDLL(path)
            _ = library.ec_encode_data, library.ec_encode_data_update, library.ec_init_tables, library.xor_gen
        except (OSError, AttributeError) as error:
            logger.warning("%s cannot be used: %s", path, error)
        else:
            return library
    return None


def _places() -> Iterator[str]:
    try:
        files = importlib.metadata.files("pyeclib") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (str(file.locate()) for file in files if file.name.startswith("libisal"))
    system = ctypes.util.find_library("isal")
    if system is not None:
        yield system


def _addresses(blocks: Sequence[Bytes]) -> Addresses:
    return np.array([block.ctypes.data for block in blocks], np.uintp)


def _aligned(*addresses: Addresses) -> bool:
    return not any((part % _XOR_ALIGNMENT).any() for part in addresses)


def _steps(size: int) -> Iterator[int]:
    for at in range(0, size, TILE):
        yield min(TILE, size - at)
