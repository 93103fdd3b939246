"""Bulk arithmetic over GF(2^8) outside of a code, for whoever combines blocks as they arrive."""

from __future__ import annotations

from mainstay.recovery.coding.backend import find
from mainstay.recovery.coding.codes import require_blocks
from mainstay.recovery.coding.galois_field import Bytes


def multiply_add(coefficient: int, block: Bytes, out: Bytes) -> None:
    """``out`` becomes ``out`` + ``coefficient``·``block``: the step of a streaming encode or decode.

    Args:
        coefficient: 0 to 255.
        block: uint8 [n], contiguous.
        out: uint8 [n], contiguous, apart from ``block``.

    Raises:
        ValueError: another shape, type or coefficient; names it.
    """
    if not 0 <= coefficient <= 255:
        raise ValueError(f"coefficient {coefficient}: a byte, 0 to 255")
    require_blocks([block], "block")
    require_blocks([out], "out", len(block))
    if coefficient:
        find().multiply_add(coefficient, block, out)
