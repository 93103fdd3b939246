"""A systematic erasure code: ``data`` blocks, ``parity`` blocks more, and any ``data`` of them give all back.

Blocks have numbers: 0 to data-1 are the data, data to data+parity-1 the parity. With "xor" the one parity block is the
XOR of all data; with "rs" (Reed and Solomon) parity row i is the sum of 1/((data+i) XOR j) times block j over
GF(2^8), ISA-L's Cauchy matrix. Which backend computes it makes no difference to a single byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from mainstay.recovery.coding import galois_field
from mainstay.recovery.coding.backend import Backend, find
from mainstay.recovery.coding.galois_field import MAX_BLOCKS, Bytes, Matrix

NAMES: Final = ("xor", "rs")


class Code:
    """Encodes and decodes; make one with ``code``. Holds no state between calls, any thread may use it."""

    def __init__(self, name: str, rows: Matrix, backend: Backend) -> None:
        self.name = name
        self.rows = rows
        """Coefficients of the parity: uint8 [parity, data]."""
        self.parity, self.data = rows.shape
        self._backend = backend
        self._generator: Matrix = np.concatenate([np.eye(self.data, dtype=np.uint8), rows])

    @property
    def backend(self) -> str:
        """What does the work: "isa-l" or "numpy"."""
        return self._backend.name

    def encode(self, blocks: Sequence[Bytes], out: Sequence[Bytes]) -> None:
        """Write the parity of ``blocks`` into ``out``.

        Args:
            blocks: ``data`` arrays, uint8 [n].
            out: ``parity`` arrays, uint8 [n], that overlap none of the blocks.

        Raises:
            ValueError: another number, length or type; names what was given.
        """
        self._require_count("data blocks", len(blocks), self.data)
        self._require_count("outputs", len(out), self.parity)
        size = require_blocks(blocks, "data block")
        require_blocks(out, "output", size)
        self._backend.combine(self.rows, blocks, out)

    def decode(self, present: Mapping[int, Bytes], missing: Sequence[int], out: Sequence[Bytes]) -> None:
        """Write the blocks numbered ``missing`` into ``out``, from any ``data`` of those that are ``present``.

        Args:
            present: blocks by number, uint8 [n], at least ``data`` of them.
            missing: numbers of data or parity blocks.
            out: one array for each, uint8 [n], that overlaps none of the present ones.

        Raises:
            ValueError: too few blocks, a number that the code does not have, or arrays of unequal length.
        """
        chosen = sorted(present)[: self.data]  # data blocks first: their rows of the inverse cost nothing
        coefficients = self.decode_coefficients(chosen, missing)
        self._require_count("outputs", len(out), len(missing))
        size = require_blocks([present[index] for index in chosen], "present block")
        require_blocks(out, "output", size)
        if missing:
            self._backend.combine(coefficients, [present[index] for index in chosen], out)

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

    def _require_count(self, what: str, got: int, wanted: int) -> None:
        if got != wanted:
            raise ValueError(f"{self.name}({self.data}, {self.parity}) takes {wanted} {what}, not {got}")


def code(name: str, data: int, parity: int, *, backend: str | None = None) -> Code:
    """The code ``name`` ("xor" or "rs") over ``data`` blocks with ``parity`` blocks of parity.

    Args:
        name: "xor" has exactly one block of parity; "rs" any number.
        data: at least 1.
        parity: at least 1; both together at most 255.
        backend: "isa-l" or "numpy"; without, the faster one that is here.

    Raises:
        ValueError: names what does not go.
    """
    if name not in NAMES:
        raise ValueError(f"code {name!r}: one of {', '.join(NAMES)}")
    if data < 1 or parity < 1 or data + parity > MAX_BLOCKS:
        raise ValueError(f"{data} data and {parity} parity blocks: at least one each, at most {MAX_BLOCKS} together")
    if name == "xor" and parity != 1:
        raise ValueError(f"an XOR code has one parity block, not {parity}; choose rs")
    rows = np.ones((1, data), np.uint8) if name == "xor" else galois_field.cauchy(data, parity)
    return Code(name, rows, find(backend))


def require_blocks(blocks: Sequence[Bytes], what: str, size: int | None = None) -> int:
    """The common length of ``blocks``.

    Raises:
        ValueError: not one-dimensional contiguous uint8, or of another length than ``size`` or each other.
    """
    for number, block in enumerate(blocks):
        if block.dtype != np.uint8 or block.ndim != 1 or not block.flags.c_contiguous:
            raise ValueError(f"{what} {number} is {block.dtype}{list(block.shape)}, not contiguous uint8 [n]")
        size = len(block) if size is None else size
        if len(block) != size:
            raise ValueError(f"{what} {number} has {len(block)} bytes, the others have {size}")
    return size or 0
