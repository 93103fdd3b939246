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

from mainstay.probes.decoding import UNREADABLE, build_decoders
from mainstay.probes.relay_problem import RelayProblemError, unavailable
from mainstay.probes.transport import RetryableError, Transport, TransportError

FRESH_SECONDS: Final = 600.0
"""How long an answer is used: as long as the service itself keeps one. A revocation takes this long to be seen."""
OUTAGE_SECONDS: Final = 24 * 3600.0
"""How long a token that was valid stays so while the service does not answer."""
RETRY_SECONDS: Final = 30.0
"""Until the service is asked again about a token that it refused, or after it did not answer."""
_MAX_KNOWN: Final = 50_000
_AT_ONCE: Final = 4
"""Questions to the service at a time: a rack that boots must not ask with 128 connections."""
_ALL_RACKS: Final = "*"


class _Subject(msgspec.Struct):
    subject: str
    kind: str
    racks: tuple[str, ...] | None = None


build_decoders(_Subject)


@dataclass(slots=True)
class _Known:
    node: str
    refusal: RelayProblemError | None
    until: float
    """When to ask again; monotonic seconds."""
    ends: float
    """When the answer is worth nothing any more."""


class NodeCredentials:
    """Answers of ``GET /v1/auth/me`` by token. Used from one event loop, but for ``forget``."""

    def __init__(self, transport: Transport, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._clock = clock
        self._known: dict[bytes, _Known] = {}
        self._asking: dict[bytes, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def identify(self, token: str) -> str:
        """The name of the node whose credential ``token`` is.

        Raises:
            RelayProblemError: the token is not that of a node in this relay's racks, or cannot be checked now.
        """
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known, now = self._known.get(key), self._clock()
        if known is None or known.ends <= now:
            await asyncio.shield(self._ask(key, token))
            known = self._known.get(key)
            if known is None or known.ends <= now:
                raise unavailable(
                    "unchecked-token",
                    "the service does not answer, and this relay does not know the token: send to the service directly",
                )
        elif known.until <= now:
            self._ask(key, token)  # meanwhile the old answer holds
        if known.refusal is not None:
            raise known.refusal.with_traceback(None)  # or each raise would add to the last one's
        return known.node

    def forget(self, node: str) -> None:
        """Ask the service again when this node sends its next frame."""
        for known in list(self._known.values()):
            if known.node == node:
                known.ends = self._clock()

    def _ask(self, key: bytes, token: str) -> asyncio.Task[None]:
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._learn(key, token))
            task.add_done_callback(lambda _: self._asking.pop(key))
        return task

    async def _learn(self, key: bytes, token: str) -> None:
        fresh, ends, refusal = FRESH_SECONDS, OUTAGE_SECONDS, None
        async with self._turn:
            try:
                node = await asyncio.to_thread(self._node_of, token)
            except RelayProblemError as error:
                node, refusal, fresh, ends = "", error, RETRY_SECONDS, RETRY_SECONDS
            except TransportError:  # the service does not answer: an old answer holds
                if key in self._known:
                    self._known[key].until = self._clock() + RETRY_SECONDS
                return
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        now = self._clock()
        self._known[key] = _Known(node, refusal, now + fresh, now + ends)

    def _node_of(self, token: str) -> str:
        try:
            found = self._subject(token)
        except RetryableError as error:
            if error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise _refused() from error
            raise
        if found.kind != "node":
            raise _refused()
        mine = self._subject(self._transport.token).racks or ()
        if _ALL_RACKS not in mine and not set(found.racks or ()) & set(mine):
            where = ", ".join(found.racks or ())
            raise RelayProblemError(
                HTTPStatus.FORBIDDEN,
                "wrong-rack",
                f"node {found.subject} is in rack {where!r}, this relay serves {', '.join(mine)}",
            )
        return found.subject

    def _subject(self, token: str) -> _Subject:
        answer = self._transport.request("GET", "/auth/me", headers={"Authorization": f"Bearer {token}"})
        try:
            return msgspec.json.decode(answer.data, type=_Subject)
        except UNREADABLE as error:
            raise RetryableError(f"GET /auth/me: the answer is not that of a service: {error}") from error


def _refused() -> RelayProblemError:
    return RelayProblemError(HTTPStatus.UNAUTHORIZED, "unauthorized", "this token is not the credential of a node")
