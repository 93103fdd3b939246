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


def _tables() -> tuple[Bytes, Bytes, Bytes]:
    powers, logs = np.zeros(510, np.uint8), np.zeros(256, np.uint8)
    value = 1
    for power in range(255):
        powers[power] = powers[power + 255] = value
        logs[value] = power
        value = value << 1 ^ (POLYNOMIAL if value & 0x80 else 0)
    products = powers[np.add.outer(logs.astype(int), logs.astype(int))]
    products[0, :] = products[:, 0] = 0
    return powers, logs, products


_POWERS, _LOGS, PRODUCTS = _tables()
"""``PRODUCTS[a, b]`` is a·b: uint8 [256, 256]."""


def inverse(value: int) -> int:
    """1/``value``.

    Raises:
        ZeroDivisionError: of 0.
    """
    if not 0 < value < 256:
        raise ZeroDivisionError(f"{value} has no inverse in GF(2^8)")
    return int(_POWERS[255 - int(_LOGS[value])])


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
