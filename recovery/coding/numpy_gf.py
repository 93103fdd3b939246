"""Arithmetic over GF(2^8) that needs numpy alone: words of eight bytes at a time, in tiles that stay in a core's cache.

A product is summed bit by bit of its coefficient (Horner): from the highest bit down, double what there is, then XOR
the block if the coefficient has the bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from mainstay.recovery.coding.galois_field import PRODUCTS, Bytes

Words = npt.NDArray[np.uint64]

TILE: Final = 128 * 1024
"""Bytes of each block at a time: output, scratch and the block being read fit a second-level cache of 512 KiB."""
_HIGHEST: Final = np.uint8(0x80)
_REST: Final = np.uint8(0x1D)
"""What x^8 is, as the lower eight bits of the polynomial."""


def multiply_add(coefficient: int, block: Bytes, out: Bytes) -> None:
    """``gf.MultiplyAdd`` by numpy."""
    whole = len(out) & ~7
    words, targets = block[:whole].view(np.uint64), out[:whole].view(np.uint64)
    products, scratch = np.empty((2, min(TILE, whole) // 8), np.uint64)
    for at in range(0, len(words), TILE // 8):
        tile = slice(at, at + TILE // 8)
        product = products[: len(words[tile])]
        _multiply(coefficient, words[tile], product, scratch[: len(product)])
        np.bitwise_xor(targets[tile], product, out=targets[tile])
    out[whole:] ^= PRODUCTS[coefficient, block[whole:]]


def xor_into(target: Bytes, other: Bytes) -> None:
    """``target ^= other``, equally long, in words of 8 bytes as far as they go."""
    whole = len(other) & ~7
    words = target[:whole].view(np.uint64)
    np.bitwise_xor(words, other[:whole].view(np.uint64), out=words)
    np.bitwise_xor(target[whole:], other[whole:], out=target[whole:])


def _multiply(coefficient: int, words: Words, product: Words, scratch: Words) -> None:
    np.copyto(product, words)
    for bit in range(coefficient.bit_length() - 2, -1, -1):
        double(product, scratch)
        if coefficient >> bit & 1:
            np.bitwise_xor(product, words, out=product)


def double(words: Words, scratch: Words) -> None:
    """Each byte times x: twice the byte, and the polynomial's rest where its highest bit falls off."""
    values, rest = words.view(np.uint8), scratch.view(np.uint8)
    np.greater_equal(values, _HIGHEST, out=rest.view(np.bool_))
    np.multiply(rest, _REST, out=rest)
    np.add(values, values, out=values)
    np.bitwise_xor(words, scratch, out=words)
