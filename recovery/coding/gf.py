"""Bulk arithmetic over GF(2^8), for whoever combines blocks as they arrive, by the fastest library that is here."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final

import numpy as np

from mainstay.recovery.coding import isal
from mainstay.recovery.coding.galois_field import PRODUCTS, Bytes

MultiplyAdd = Callable[[int, Bytes, Bytes], None]
"""``multiply_add`` of arguments that were checked already; releases the interpreter lock while it works."""

TILE: Final = 128 * 1024
"""Bytes of each block at a time in numpy: output, product, and block fit a second-level cache of 512 KiB."""

logger = logging.getLogger("mainstay.coding")


def multiply_add(coefficient: int, block: Bytes, out: Bytes) -> None:
    """``out`` becomes ``out`` + ``coefficient``·``block``: the step of a streaming encode or decode.

    Args:
        coefficient: 0 to 255; 1 is a plain XOR.
        block: uint8 [n], contiguous.
        out: uint8 [n], contiguous, apart from ``block``.

    Raises:
        ValueError: another shape, type or coefficient; names it.
    """
    if not 0 <= coefficient <= 255:
        raise ValueError(f"coefficient {coefficient}: a byte, 0 to 255")
    for name, array in (("block", block), ("out", out)):
        if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, not contiguous uint8 [n]")
    if len(block) != len(out):
        raise ValueError(f"out has {len(out)} bytes, the block has {len(block)}")
    if coefficient == 1:
        np.bitwise_xor(out, block, out=out)
    elif coefficient:
        fastest()(coefficient, block, out)


@functools.cache
def fastest() -> MultiplyAdd:
    """ISA-L's where it is installed, else numpy's."""
    library = isal.load()
    if library is not None:
        return isal.Isal(library).multiply_add
    logger.info("ISA-L is not here (mainstay[codes] brings it): Reed-Solomon parity is made by numpy, slower")
    return multiply_add_by_numpy


def multiply_add_by_numpy(coefficient: int, block: Bytes, out: Bytes) -> None:
    """``MultiplyAdd`` that looks each product up."""
    product = np.empty(min(TILE, len(out)), np.uint8)
    for at in range(0, len(out), TILE):
        part, target = block[at : at + TILE], out[at : at + TILE]
        PRODUCTS[coefficient].take(part, out=product[: len(part)], mode="wrap")  # "raise" would copy its output
        np.bitwise_xor(target, product[: len(part)], out=target)
