"""A systematic erasure code: ``data`` blocks, ``parity`` blocks more, and any ``data`` of them give all back.

Blocks have numbers: 0 to data-1 are the data, data to data+parity-1 the parity. With "xor" the one parity block is the
XOR of all data; with "rs" (Reed and Solomon) parity row i is the sum of 1/((data+i) XOR j) times block j over
GF(2^8), ISA-L's Cauchy matrix. A code knows the coefficients; ``gf.multiply_add`` does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mainstay.recovery.coding import galois_field
from mainstay.recovery.coding.galois_field import MAX_BLOCKS, Matrix

NAMES: Final = ("xor", "rs")


class Code:
    """The coefficients of a code; make one with ``code``."""

    def __init__(self, rows: Matrix) -> None:
        self.rows = rows
        """Coefficients of the parity: uint8 [parity, data]."""
        self.parity, self.data = rows.shape
        self._generator: Matrix = np.concatenate([np.eye(self.data, dtype=np.uint8), rows])

    def decode_coefficients(self, present: Sequence[int], missing: Sequence[int]) -> Matrix:
        """How each missing block is made of the present ones, for whoever shares the work.

        Args:
            present: the numbers of ``data`` different blocks.
            missing: the numbers of the blocks that are wanted.

        Returns:
            uint8 [missing, data]: missing block i is the sum over j of ``[i, j]`` times ``present[j]``.

        Raises:
            ValueError: not ``data`` different numbers, or one that the code does not have.
        """
        total = self.data + self.parity
        strange = [index for index in (*present, *missing) if not 0 <= index < total]
        if strange:
            raise ValueError(f"block {strange[0]}: this code numbers its blocks 0 to {total - 1}")
        if len(present) != self.data or len(set(present)) != self.data:
            raise ValueError(f"{self.data} different blocks are needed to decode, not {list(present)}")
        return galois_field.multiply(
            self._generator[list(missing)], galois_field.invert(self._generator[list(present)])
        )


def code(name: str, data: int, parity: int) -> Code:
    """The code ``name`` ("xor" or "rs") over ``data`` blocks with ``parity`` blocks of parity.

    Args:
        name: "xor" has exactly one block of parity; "rs" any number.
        data: at least 1.
        parity: at least 1; both together at most 255.

    Raises:
        ValueError: names what does not go.
    """
    if name not in NAMES:
        raise ValueError(f"code {name!r}: one of {', '.join(NAMES)}")
    if data < 1 or parity < 1 or data + parity > MAX_BLOCKS:
        raise ValueError(f"{data} data and {parity} parity blocks: at least one each, at most {MAX_BLOCKS} together")
    if name == "xor" and parity != 1:
        raise ValueError(f"an XOR code has one parity block, not {parity}; choose rs")
    return Code(np.ones((1, data), np.uint8) if name == "xor" else galois_field.cauchy(data, parity))
