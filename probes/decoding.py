"""The errors that decoding foreign bytes can raise, named once: a decoder is only as safe as its ``except``.

msgspec checks UTF-8 lazily and recurses: it also raises ``UnicodeDecodeError`` and ``RecursionError``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Truncated, of another shape, not UTF-8, or nested deeper than the stack."""


def build_decoders(shape: type) -> None:
    """Have msgspec 0.22 examine a type while there is one thread: it crashes where several first decode it at once."""
    msgspec.json.Decoder(shape)


def read_if_whole(path: Path, shape: type[T]) -> T | None:
    """The content of a JSON file; None when it is missing, damaged, or of another shape."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except (OSError, *UNREADABLE):
        return None
