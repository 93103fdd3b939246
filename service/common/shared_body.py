"""A large answer made in a thread, part by part, once for all who ask while it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.to_thread

SHARED_SECONDS: Final = 1.0
"""For how long others join an answer that is being made."""

PIECE_BYTES: Final = 2**18
"""What is handed to the connection at a time: megabytes at once keep the event loop for milliseconds."""


@dataclass(slots=True)
class _Source:
    parts: Iterator[bytes]
    limiter: anyio.CapacityLimiter
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    is_broken: bool = False


class _Part:
    """A part, and the next one once it is made: what all readers have passed is freed."""

    def __init__(self, source: _Source, body: bytes | None = b"") -> None:
        self.source, self.body = source, body
        self.next: _Part | None = None

    async def following(self) -> _Part:
        """The next part; the body of the last is None."""
        async with self.source.lock:
            if self.next is None:
                await anyio.to_thread.run_sync(self._make, limiter=self.source.limiter)
        assert self.next is not None
        return self.next

    def _make(self) -> None:
        source = self.source
        if source.is_broken:
            raise RuntimeError(
                "the answer that this request shares could not be made; the request that began it says why"
            )
        source.is_broken = True
        self.next = _Part(source, next(filter(None, source.parts), None))
        source.is_broken = False


class SharedBody:
    """The newest answer of each encoding.

    Args:
        make: encoding → the parts, made one by one when the first reader needs them.
        limiter: of the threads that make them.
    """

    def __init__(self, make: Callable[[str | None], Iterator[bytes]], limiter: anyio.CapacityLimiter) -> None:
        self._make, self._limiter = make, limiter
        self._open: dict[str | None, _Part] = {}

    async def read(self, encoding: str | None) -> AsyncIterator[bytes]:
        """The parts, of which the first is made already.

        Raises what ``make`` raises for it.
        """
        first = self._open.get(encoding)
        if first is None:
            first = self._open[encoding] = _Part(_Source(self._make(encoding), self._limiter))
            asyncio.get_running_loop().call_later(SHARED_SECONDS, self._close, encoding, first.source)
        try:
            await first.following()
        finally:
            if first.next is None:
                self._close(encoding, first.source)
        return self._rest(encoding, first)

    async def _rest(self, encoding: str | None, part: _Part) -> AsyncIterator[bytes]:
        while (part := await part.following()).body is not None:
            for start in range(0, len(part.body), PIECE_BYTES):
                yield part.body[start : start + PIECE_BYTES]
        self._close(encoding, part.source)

    def _close(self, encoding: str | None, source: _Source) -> None:
        """Later requests make another."""
        held = self._open.get(encoding)
        if held is not None and held.source is source:
            del self._open[encoding]
