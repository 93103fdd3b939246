"""Weak validators for what is polled: an unchanged answer costs a header, not a body."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Header, Response

IfNoneMatch = Annotated[str | None, Header(max_length=2000)]


def digest(content: bytes) -> str:
    """Short text that changes whenever the content does."""
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def etag(*parts: object) -> str:
    """A validator that changes whenever any part does."""
    text = "\x1f".join(str(part) for part in parts)
    return f'W/"{digest(text.encode())}"'


def matches(tag: str, header: str | None) -> bool:
    """Whether an ``If-None-Match`` header names ``tag`` (weak comparison)."""
    if header is None:
        return False
    candidates = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in candidates or tag.removeprefix("W/") in candidates


def not_modified(tag: str) -> Response:
    return Response(status_code=304, headers={"ETag": tag})
