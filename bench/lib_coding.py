"""Whole blocks encoded and decoded at once, for a bench: the product combines blocks chunk by chunk as they arrive.

ISA-L sums all blocks of a row in one call, with its own encode and XOR; numpy adds one block after the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from mainstay.recovery.coding import Code, gf, isal
from mainstay.recovery.coding.galois_field import Bytes, Matrix

_XOR_ALIGNMENT = 32
"""What ``xor_gen`` asks of every pointer."""


class Library(Protocol):
    """Linear combinations of equal blocks."""

    name: str

    def combine(self, matrix: Matrix, blocks: Sequence[Bytes], out: Sequence[Bytes]) -> None:
        """``out[i]`` becomes the sum over j of ``matrix[i, j]``·``blocks[j]``."""


def encode(code: Code, library: Library, blocks: Sequence[Bytes], out: Sequence[Bytes]) -> None:
    """Write the parity of ``blocks`` into ``out``, which overlaps none of them."""
    library.combine(code.rows, blocks, out)


def decode(
    code: Code, library: Library, present: Mapping[int, Bytes], missing: Sequence[int], out: Sequence[Bytes]
) -> None:
    """Write the blocks numbered ``missing`` into ``out``, from any ``code.data`` of those that are ``present``."""
    chosen = sorted(present)[: code.data]  # data blocks first: their rows of the inverse cost nothing
    library.combine(code.decode_coefficients(chosen, missing), [present[index] for index in chosen], out)


def libraries() -> list[Library]:
    """Those that are here, the fastest first."""
    loaded = isal.load()
    return [*([] if loaded is None else [Isal(loaded)]), Numpy()]


class Isal:
    """See ``Library``."""

    name = "isa-l"

    def __init__(self, library: ctypes.CDLL) -> None:
        number, pointer = ctypes.c_int, ctypes.c_void_p
        library.ec_init_tables.argtypes = [number, number, pointer, pointer]
        library.ec_encode_data.argtypes = [number, number, number, pointer, pointer, pointer]
        library.xor_gen.argtypes = [number, number, pointer]
        library.ec_init_tables.restype = library.ec_encode_data.restype = None
        self._library = library

    def combine(self, matrix: Matrix, blocks: Sequence[Bytes], out: Sequence[Bytes]) -> None:
        sources, targets = _addresses(blocks), _addresses(out)
        both = np.concatenate([sources, targets])
        if len(out) == 1 and len(blocks) > 1 and (matrix == 1).all() and not (both % _XOR_ALIGNMENT).any():
            self._xor(both, len(out[0]))
            return
        rows, columns = matrix.shape
        tables = np.zeros(isal.TABLE * rows * columns, np.uint8)
        self._library.ec_init_tables(columns, rows, matrix.tobytes(), tables.ctypes.data)
        for step in _steps(len(out[0])):
            self._library.ec_encode_data(
                step, columns, rows, tables.ctypes.data, sources.ctypes.data, targets.ctypes.data
            )
            sources += np.uintp(step)
            targets += np.uintp(step)

    def _xor(self, vectors: _Addresses, size: int) -> None:
        """The last vector becomes the XOR of the others."""
        for step in _steps(size):
            if self._library.xor_gen(len(vectors), step, vectors.ctypes.data):
                raise RuntimeError(f"ISA-L refused to XOR {len(vectors) - 1} blocks of {step} bytes")
            vectors += np.uintp(step)


class Numpy:
    """See ``Library``."""

    name = "numpy"

    def combine(self, matrix: Matrix, blocks: Sequence[Bytes], out: Sequence[Bytes]) -> None:
        for coefficients, row in zip(matrix, out, strict=True):
            row[:] = 0
            for coefficient, block in zip(coefficients, blocks, strict=True):
                if coefficient == 1:
                    gf.multiply_add(1, block, row)
                elif coefficient:
                    gf.multiply_add_by_numpy(int(coefficient), block, row)


_Addresses = np.ndarray[tuple[int], np.dtype[np.uintp]]


def _addresses(blocks: Sequence[Bytes]) -> _Addresses:
    return np.array([block.ctypes.data for block in blocks], np.uintp)


def _steps(size: int) -> Iterator[int]:
    for at in range(0, size, isal.TILE):
        yield min(isal.TILE, size - at)
