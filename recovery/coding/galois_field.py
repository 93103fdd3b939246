"""The field GF(2^8) with the polynomial x^8+x^4+x^3+x^2+1 (0x11d, ISA-L's), its matrices, and no bulk data.

Addition is XOR. Generator matrices are those of ISA-L, so that every backend and any other ISA-L user write the same
parity.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Matrix = npt.NDArray[np.uint8]
"""uint8 [rows, columns]."""

POLYNOMIAL: Final = 0x11D
MAX_BLOCKS: Final = 255
"""Data and parity together: what a code over 8-bit symbols can tell apart (ISA-L's bound)."""


def _products() -> Matrix:
    """By Horner: from the highest bit of a down, double what there is, then add b where a has the bit."""
    values = np.arange(256)
    found: npt.NDArray[np.integer] = np.zeros((256, 256), np.int64)
    for bit in range(7, -1, -1):
        found = found << 1 ^ (found >> 7) * POLYNOMIAL ^ np.outer(values >> bit & 1, values)
    return found.astype(np.uint8)


PRODUCTS: Final = _products()
"""``PRODUCTS[a, b]`` is a·b: uint8 [256, 256]."""


def inverse(value: int) -> int:
    """1/``value``.

    Raises:
        ZeroDivisionError: of 0.
    """
    if not 0 < value < 256:
        raise ZeroDivisionError(f"{value} has no inverse in GF(2^8)")
    return int(np.flatnonzero(PRODUCTS[value] == 1)[0])


def multiply(a: Matrix, b: Matrix) -> Matrix:
    """The product of two matrices: [n, k] by [k, m]."""
    product: Matrix = np.bitwise_xor.reduce(PRODUCTS[a[:, :, None], b[None, :, :]], axis=1)
    return product


def invert(matrix: Matrix) -> Matrix:
    """The inverse of a square matrix, by Gauss and Jordan.

    Raises:
        ValueError: it has none.
    """
    size = len(matrix)
    work = np.concatenate([matrix, np.eye(size, dtype=np.uint8)], axis=1)
    for column in range(size):
        pivots = np.flatnonzero(work[column:, column])
        if not len(pivots):
            raise ValueError("the matrix has no inverse: these blocks do not determine the others")
        pivot = column + int(pivots[0])
        work[[column, pivot]] = work[[pivot, column]]
        work[column] = PRODUCTS[inverse(int(work[column, column])), work[column]]
        factors = work[:, column].copy()
        factors[column] = 0
        work ^= PRODUCTS[factors[:, None], work[column][None, :]]
    return work[:, size:]


def cauchy(data: int, parity: int) -> Matrix:
    """Parity rows [parity, data] of ISA-L's ``gf_gen_cauchy1_matrix``: row i, column j is 1/((data+i) XOR j).

    Every square part of such a matrix has an inverse, so any ``data`` of all blocks determine the rest.
    """
    rows = [[inverse((data + i) ^ j) for j in range(data)] for i in range(parity)]
    return np.array(rows, np.uint8).reshape(parity, data)
