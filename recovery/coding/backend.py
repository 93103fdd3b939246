"""What a backend does: linear combinations of equal blocks over GF(2^8), and which one this process has.

A backend gets blocks that were checked already (``codes.require_blocks``): equal lengths, uint8, contiguous, and no
output that overlaps an input.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from mainstay.recovery.coding.galois_field import Bytes, Matrix
from mainstay.recovery.coding.isal_backend import IsalBackend, load
from mainstay.recovery.coding.numpy_backend import NumpyBackend

NAMES: Final = ("isa-l", "numpy")

logger = logging.getLogger("mainstay.coding")


class Backend(Protocol):
    """Bulk arithmetic; both methods release the interpreter lock while they work."""

    name: str
    """One of ``NAMES``."""

    def combine(self, matrix: Matrix, blocks: Sequence[Bytes], out: Sequence[Bytes]) -> None:
        """``out[i]`` becomes the sum over j of ``matrix[i, j]``·``blocks[j]``."""

    def multiply_add(self, coefficient: int, block: Bytes, out: Bytes) -> None:
        """``out`` becomes ``out`` + ``coefficient``·``block``."""


@functools.cache
def find(name: str | None = None) -> Backend:
    """The backend of that name, or the fastest one that is here.

    Raises:
        ValueError: no backend has that name, or ISA-L is asked for and not installed.
    """
    if name not in {None, *NAMES}:
        raise ValueError(f"backend {name!r}: one of {', '.join(NAMES)}")
    library = None if name == "numpy" else load()
    if library is not None:
        return IsalBackend(library)
    if name == "isa-l":
        raise ValueError("ISA-L is not here: install mainstay[codes]")
    if name is None:
        logger.info("ISA-L is not here (mainstay[codes] brings it): Reed-Solomon parity is made by numpy, slower")
    return NumpyBackend()
