"""Ids of events from other systems: derived from the content, so that a repeated event has the same id."""

from __future__ import annotations

import hashlib


def content_id(time: float, *parts: object) -> str:
    """UUIDv7-shaped text: the milliseconds of ``time``, then 74 bits of a digest of ``parts`` instead of random ones.

    Args:
        time: Unix seconds at which it happened, as its sender says it.
        parts: everything that makes it this event and no other; compared as text.
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
    low, high = int.from_bytes(digest[:8]) >> 2, int.from_bytes(digest[8:10]) >> 4
    milliseconds = int(time * 1000.0) & (2**48 - 1)
    text = f"{(milliseconds << 80) | (7 << 76) | (high << 64) | (2 << 62) | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
