"""Intel's ISA-L, by ctypes: the library inside the pyeclib wheel (``mainstay[codes]``) or the system's.

pyeclib itself is never imported: its own encode allocates and copies fragments and loses nine tenths of the speed.
ctypes releases the interpreter lock during each call.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.metadata
import logging
from collections.abc import Iterator
from typing import Final

from mainstay.recovery.coding.galois_field import Bytes

TILE: Final = 256 * 1024
"""Bytes of each block a call: large enough that a call costs nothing; the limit is 2 GiB (ISA-L's lengths are int)."""
TABLE: Final = 32
"""Bytes of ISA-L's tables a coefficient."""

_Int, _Pointer = ctypes.c_int, ctypes.c_void_p

logger = logging.getLogger("mainstay.coding")


class Isal:
    """``gf.MultiplyAdd`` by the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.ec_init_tables.argtypes = [_Int, _Int, _Pointer, _Pointer]
        library.ec_encode_data_update.argtypes = [_Int, _Int, _Int, _Int, _Pointer, _Pointer, _Pointer]
        library.ec_init_tables.restype = library.ec_encode_data_update.restype = None
        self._table_of = functools.cache(self._make_table)

    def multiply_add(self, coefficient: int, block: Bytes, out: Bytes) -> None:
        table, source, target = self._table_of(coefficient), int(block.ctypes.data), int(out.ctypes.data)
        for at in range(0, len(out), TILE):
            rows = (_Pointer * 1)(target + at)
            self._library.ec_encode_data_update(min(TILE, len(out) - at), 1, 1, 0, table, source + at, rows)

    def _make_table(self, coefficient: int) -> ctypes.Array[ctypes.c_char]:
        table = ctypes.create_string_buffer(TABLE)
        self._library.ec_init_tables(1, 1, bytes([coefficient]), table)
        return table


def load() -> ctypes.CDLL | None:
    """ISA-L, if it is here and works."""
    for path in _places():
        try:
            library = ctypes.CDLL(path)
            _ = library.ec_encode_data_update, library.ec_init_tables
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
