"""Which node a token stands for, as the service says; a relay asks once a token and keeps the answer for a while."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

from mainstay.probes.relay_problem import RelayProblemError
from mainstay.probes.transport import RetryableError, Transport, TransportError

FRESH_SECONDS: Final = 600.0
"""How long an answer is used: as long as the service itself keeps one. A revocation takes this long to be seen."""
OUTAGE_SECONDS: Final = 24 * 3600.0
"""How long a token that was valid stays so while the service does not answer."""
_RETRY_SECONDS: Final = 30.0
"""Until the service is asked again about a token that it refused, or after it did not answer."""
_MAX_KNOWN: Final = 50_000
_AT_ONCE: Final = 4
"""Questions to the service at a time: a rack that boots must not ask with 128 connections."""


class _Subject(msgspec.Struct):
    subject: str
    kind: str


@dataclass(slots=True)
class _Known:
    node: str
    """Empty: the service refused the token."""
    until: float
    """When to ask again; monotonic seconds."""
    ends: float
    """When the answer is worth nothing any more."""


class NodeCredentials:
    """Answers of ``GET /v1/auth/me`` by token. Used from one event loop."""

    def __init__(self, transport: Transport, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._clock = clock
        self._known: dict[bytes, _Known] = {}
        self._asking: dict[bytes, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def identify(self, token: str) -> str:
        """The name of the node whose credential ``token`` is.

        Raises:
            RelayProblemError: the token is refused, is not a node's, or cannot be checked now.
        """
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._known.get(key)
        now = self._clock()
        if known is None or known.ends <= now:
            await asyncio.shield(self._ask(key, token))
            known = self._known.get(key)
        elif known.until <= now:
            self._ask(key, token)  # meanwhile the old answer holds
        if known is None:
            raise RelayProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "unchecked-token",
                "the service does not answer, and this relay does not know the token: send to the service directly",
                retry_after=2,
            )
        if not known.node:
            raise RelayProblemError(
                HTTPStatus.UNAUTHORIZED, "unauthorized", "this token is not the credential of a node"
            )
        return known.node

    def _ask(self, key: bytes, token: str) -> asyncio.Task[None]:
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._learn(key, token))
            task.add_done_callback(lambda _: self._asking.pop(key))
        return task

    async def _learn(self, key: bytes, token: str) -> None:
        async with self._turn:
            try:
                node = await asyncio.to_thread(self._node_of, token)
            except TransportError:  # the service does not answer
                known, now = self._known.get(key), self._clock()
                if known is not None and known.ends <= now:
                    del self._known[key]
                elif known is not None:
                    known.until = now + _RETRY_SECONDS
                return
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        now = self._clock()
        fresh, ends = (FRESH_SECONDS, OUTAGE_SECONDS) if node else (_RETRY_SECONDS, _RETRY_SECONDS)
        self._known[key] = _Known(node, now + fresh, now + ends)

    def _node_of(self, token: str) -> str:
        """The node's name, empty for a token that is refused or not a node's."""
        try:
            answer = self._transport.request("GET", "/auth/me", headers={"Authorization": f"Bearer {token}"})
            found = msgspec.json.decode(answer.data, type=_Subject)
        except RetryableError as error:
            if error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                return ""
            raise
        except msgspec.MsgspecError as error:
            raise RetryableError(f"GET /auth/me: the answer is not that of a service: {error}") from error
        return found.subject if found.kind == "node" else ""
