"""Bulk arithmetic over GF(2^8), for whoever combines blocks as they arrive, by the fastest library that is here."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import numpy as np

from mainstay.recovery.coding import isal, numpy_gf
from mainstay.recovery.coding.galois_field import Bytes

MultiplyAdd = Callable[[int, Bytes, Bytes], None]
"""``multiply_add`` of arguments that were checked already; releases the interpreter lock while it works."""

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
        numpy_gf.xor_into(out, block)
    elif coefficient:
        fastest()(coefficient, block, out)


@functools.cache
def fastest() -> MultiplyAdd:
    """ISA-L's where it is installed, else numpy's."""
    library = isal.load()
    if library is not None:
        return isal.Isal(library).multiply_add
    logger.info("ISA-L is not here (mainstay[codes] brings it): Reed-Solomon parity is made by numpy, slower")
    return numpy_gf.multiply_add
