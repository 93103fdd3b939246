"""Answers compressed as the client accepts: zstd, brotli or gzip.

``Compression`` compresses answers to GET that are neither small nor streams, on the event loop: what is large is
compressed by its handler in a thread (``compress``), or once a version (``CachedBody``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Final

import brotli
import zstandard
from fastapi import Header
from starlette.types import Receive, Scope, Send
from starlette_compress import CompressMiddleware, add_compress_type, remove_compress_type

MINIMUM_BYTES: Final = 1024
"""Below this, headers and a round trip cost more than the body."""
_LEVELS: Final = {"zstd_level": 3, "brotli_quality": 4, "gzip_level": 3}
_STREAMS: Final[Mapping[str, Callable[[], tuple[Callable[[bytes], bytes], Callable[[], bytes]]]]] = {
    "zstd": lambda: ((made := zstandard.ZstdCompressor(level=3).compressobj()).compress, made.flush),
    "br": lambda: ((made := brotli.Compressor(quality=4)).process, made.finish),
    "gzip": lambda: ((made := zlib.compressobj(3, wbits=31)).compress, made.flush),
}
"""The best one first. At level 3 gzip takes two thirds of the time of level 4 for a body that is a tenth longer."""
AcceptEncoding = Annotated[str, Header(include_in_schema=False, max_length=1000)]
"""Parameter of a handler that compresses its own answer."""

remove_compress_type("text/event-stream")
add_compress_type("application/octet-stream")  # the heat-map: a byte a device, mostly alike


class Compression(CompressMiddleware):
    """Pure ASGI middleware: what is polled and read is compressed, what acts or reports is answered as it is."""

    def __init__(self, app: object) -> None:
        super().__init__(app, minimum_size=MINIMUM_BYTES, **_LEVELS)  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reads = scope["type"] == "http" and scope["method"] == "GET"
        await (super().__call__(scope, receive, send) if reads else self.app(scope, receive, send))


def choose(accept: str, among: Iterable[str] = tuple(_STREAMS)) -> str | None:
    """The first encoding that an ``Accept-Encoding`` header allows; None: as it is."""
    wanted: dict[str, bool] = {}
    for part in accept.lower().split(","):
        name, _, quality = part.partition(";")
        wanted[name.strip()] = quality.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return next((name for name in among if wanted.get(name, wanted.get("*", False))), None)


def headers(encoding: str | None) -> dict[str, str]:
    """Of an answer in this encoding."""
    vary = {"Vary": "Accept-Encoding"}
    return vary if encoding is None else vary | {"Content-Encoding": encoding}


def compress(body: bytes, encoding: str | None) -> bytes:
    """The body in an encoding of ``choose``."""
    return b"".join(stream([body], encoding))


def stream(parts: Iterable[bytes], encoding: str | None) -> Iterator[bytes]:
    """The parts of a body in an encoding of ``choose``, as one stream."""
    if encoding is None:
        yield from parts
        return
    compress_part, finish = _STREAMS[encoding]()
    yield from map(compress_part, parts)
    yield finish()


class CachedBody:
    """A body that many ask for: compressed once an encoding."""

    def __init__(self, body: bytes) -> None:
        self._bodies: dict[str | None, bytes] = {None: body}

    def get(self, encoding: str | None) -> bytes:
        if encoding not in self._bodies:
            self._bodies[encoding] = compress(self._bodies[None], encoding)
        return self._bodies[encoding]
