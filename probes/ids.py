"""UUIDv7 (RFC 9562) as text, made without any dependency: ids sort by the millisecond in which they were made."""

from __future__ import annotations

import os
import time


def uuid7() -> str:
    """A new id: 48 bits of Unix milliseconds, 12 bits of the fraction below them, 62 random bits."""
    nanoseconds = time.time_ns()
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    fraction = (rest << 12) // 1_000_000
    random = int.from_bytes(os.urandom(8)) >> 2
    text = f"{(milliseconds << 80) | (7 << 76) | (fraction << 64) | (2 << 62) | random:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
