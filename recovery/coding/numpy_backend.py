"""The backend that needs numpy alone: words of eight bytes at a time, in tiles that stay in a core's cache.

A row is summed bit by bit of its coefficients (Horner): from the highest bit down, double what there is, then XOR the
blocks whose coefficient has the bit. That is seven doublings a row, however many blocks there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from mainstay.recovery.coding.galois_field import PRODUCTS, Bytes, Matrix

Words = npt.NDArray[np.uint64]

TILE: Final = 128 * 1024
"""Bytes of each block at a time: output, scratch and the block being read fit a second-level cache of 512 KiB."""
_HIGHEST: Final = np.uint8(0x80)
_REST: Final = np.uint8(0x1D)
"""What x^8 is, as the lower eight bits of the polynomial."""


class NumpyBackend:
    """See ``backend.Backend``."""

    name = "numpy"

    def combine(self, matrix: Matrix, blocks: Sequence[Bytes], out: Sequence[Bytes]) -> None:
        whole = len(out[0]) & ~7 if len(out) else 0
        sources = [block[:whole].view(np.uint64) for block in blocks]
        targets = [row[:whole].view(np.uint64) for row in out]
        scratch = np.empty(min(TILE, whole) // 8, np.uint64)
        for at in range(0, whole // 8, TILE // 8):
            tile = slice(at, at + TILE // 8)
            parts = [source[tile] for source in sources]
            for coefficients, target in zip(matrix, targets, strict=True):
                _sum(coefficients, parts, target[tile], scratch)
        for coefficients, row in zip(matrix, out, strict=True):
            ends = [PRODUCTS[c, block[whole:]] for c, block in zip(coefficients, blocks, strict=True)]
            row[whole:] = np.bitwise_xor.reduce(ends, axis=0)

    def multiply_add(self, coefficient: int, block: Bytes, out: Bytes) -> None:
        if coefficient == 1:
            xor_into(out, block)
            return
        matrix, product = np.array([[coefficient]], np.uint8), np.empty(min(TILE, len(out)), np.uint8)
        for at in range(0, len(out), TILE):
            part = block[at : at + TILE]
            self.combine(matrix, [part], [product[: len(part)]])
            xor_into(out[at : at + TILE], product[: len(part)])


def xor_into(target: Bytes, other: Bytes) -> None:
    """``target ^= other``, equally long, in words of 8 bytes as far as they go."""
    whole = len(other) & ~7
    words = target[:whole].view(np.uint64)
    np.bitwise_xor(words, other[:whole].view(np.uint64), out=words)
    np.bitwise_xor(target[whole:], other[whole:], out=target[whole:])


def _sum(coefficients: Bytes, parts: Sequence[Words], target: Words, scratch: Words) -> None:
    """``target`` becomes the sum of all parts, each times its coefficient."""
    highest = int(coefficients.max()).bit_length()
    if not highest:
        target[:] = 0
        return
    empty = True
    for bit in range(highest - 1, -1, -1):
        if not empty:
            _double(target, scratch[: len(target)])
        for coefficient, part in zip(coefficients, parts, strict=True):
            if not coefficient >> bit & 1:
                continue
            if empty:
                np.copyto(target, part)
            else:
                np.bitwise_xor(target, part, out=target)
            empty = False


def _double(words: Words, scratch: Words) -> None:
    """Each byte times x: twice the byte, and the polynomial's rest where its highest bit falls off."""
    values, rest = words.view(np.uint8), scratch.view(np.uint8)
    np.greater_equal(values, _HIGHEST, out=rest.view(np.bool_))
    np.multiply(rest, _REST, out=rest)
    np.add(values, values, out=values)
    np.bitwise_xor(words, scratch, out=words)
