"""Request bodies are bounded before they are read: by their announced length, and while they arrive."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainstay.service.common.problem import BadRequestError, TooLargeError, problem_response

_DRAIN: Final = 64 * 1024 * 1024
"""How much of a refused body is read and dropped, so that the sender sees the answer and not a reset."""
_PATIENCE: Final = 2.0
"""Seconds after which a sender that announced too much, and waits for our word before it sends on, is answered."""


async def read_body(receive: Receive, limit: int, error: type[TooLargeError] = TooLargeError) -> bytes:
    """The whole body.

    Raises:
        TooLargeError: it is longer than ``limit`` bytes (``error`` names which limit).
        BadRequestError: it ended early.
    """
    chunks: list[bytes] = []
    length = 0
    more = True
    while more and length <= _DRAIN:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequestError("the body ended early")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        length += len(chunk)
        if length <= limit:
            chunks.append(chunk)
    if length > limit:
        raise error(f"the body has more than the {limit} bytes allowed")
    return b"".join(chunks)


class BodyLimit:
    """Pure ASGI middleware: refuses bodies above ``limit`` bytes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if announced.isdigit() and int(announced) > self.limit:
            await self._refuse(scope, receive, send)
            return
        await self.app(scope, _Counting(receive, self.limit), send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _drop(receive)
        detail = f"the body has more than the {self.limit} bytes allowed"
        error = TooLargeError(detail, headers={"Connection": "close"})
        await problem_response(error, scope["path"])(scope, receive, send)


async def _drop(receive: Receive) -> None:
    dropped, more = 0, True
    try:
        while more and dropped < _DRAIN:
            async with asyncio.timeout(_PATIENCE):
                message = await receive()
            dropped += len(message.get("body", b""))
            more = message.get("more_body", False)
    except TimeoutError:
        return


class _Counting:
    def __init__(self, receive: Receive, limit: int) -> None:
        self.receive, self.left, self.limit = receive, limit, limit

    async def __call__(self) -> Message:
        message = await self.receive()
        self.left -= len(message.get("body", b""))
        if self.left < 0:
            # FastAPI turns every other exception of a body that it reads into "cannot be parsed".
            raise HTTPException(413, f"the body has more than the {self.limit} bytes allowed")
        return message
