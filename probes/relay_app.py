"""The relay's routes, as one bare ASGI function: the frame route and the catalog route of the service, and its health.

Every other request of a node goes to the service directly.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from mainstay.probes.catalog_store import CatalogStore
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.frame import decode
from mainstay.probes.relay_credentials import NodeCredentials
from mainstay.probes.relay_intake import MAX_BODY_BYTES, FrameIntake
from mainstay.probes.relay_problem import RelayProblemError, unavailable
from mainstay.probes.relay_sender import BundleSender
from mainstay.probes.signals import Catalog

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 60.0
"""How long a relay keeps frames while the service does not answer it, before it sends its nodes to the service."""
_MAX_CATALOG_BYTES: Final = 64 * 1024
_FRAMES: Final = "/v1/telemetry/frames"
_CATALOGS: Final = "/v1/telemetry/catalogs/"
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class RelayApp:
    """An ASGI application."""

    def __init__(
        self, credentials: NodeCredentials, intake: FrameIntake, sender: BundleSender, catalogs: CatalogStore
    ) -> None:
        self._credentials = credentials
        self._intake = intake
        self._sender = sender
        self._catalogs = catalogs
        self._refused: Counter[str] = Counter()
        """Requests, by problem slug."""
        self._shed = 0
        """Frames refused since the last one that was stored, for want of room or of an answer from the service."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            status, kind, body = await self._answer(scope, receive)
            headers = [(b"content-type", kind)] if body else []
        except RelayProblemError as error:
            self._refused[error.slug] += 1
            status, body = error.status, error.document()
            headers = [(b"content-type", b"application/problem+json")]
            if error.retry_after:
                headers.append((b"retry-after", str(error.retry_after).encode()))
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Message, receive: Receive) -> tuple[HTTPStatus, bytes, bytes]:
        method, path = scope["method"], scope["path"]
        if method == "POST" and path == _FRAMES:
            await self._take_frame(_bearer(scope), receive)
            return HTTPStatus.NO_CONTENT, b"", b""
        if method == "PUT" and path.startswith(_CATALOGS):
            await self._credentials.identify(_bearer(scope))
            self._keep_catalog(path.removeprefix(_CATALOGS), await _read(receive, _MAX_CATALOG_BYTES))
            return HTTPStatus.NO_CONTENT, b"", b""
        if method == "GET" and path in {"/healthz", "/readyz", "/metrics"}:
            return await self._report(path)
        raise RelayProblemError(HTTPStatus.NOT_FOUND, "not-found", f"a relay has no {method} {path}: ask the service")

    async def _take_frame(self, token: str, receive: Receive) -> None:
        """Store a frame. The first one that is shed is logged, and the first one that is stored afterwards."""
        try:
            self._require_ready()
            node = await self._credentials.identify(token)
            await self._intake.accept(node, await _read(receive, MAX_BODY_BYTES))
        except RelayProblemError as error:
            if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                if not self._shed:
                    log.warning("frames are refused, nodes send them directly: %s", error)
                self._shed += 1
            raise
        if self._shed:
            log.warning("frames are stored again; %d were refused", self._shed)
            self._shed = 0

    async def _report(self, path: str) -> tuple[HTTPStatus, bytes, bytes]:
        if path == "/metrics":
            return HTTPStatus.OK, _TEXT, (await asyncio.to_thread(self._metrics)).encode()
        if path == "/readyz":
            self._require_ready()
        return HTTPStatus.OK, _JSON, b'{"status":"ok"}'

    def _require_ready(self) -> None:
        """Refuse early what could not be kept, or would only wait here."""
        since = self._sender.cut_off_since
        if since is not None and time.monotonic() - since > PATIENCE_SECONDS:
            reason = self._sender.trouble
            raise unavailable("cut-off", f"this relay cannot reach the service: {reason}")
        if not self._intake.has_room():
            raise unavailable("spool-full", "the spool of this relay is full")

    def _keep_catalog(self, digest: str, body: bytes) -> None:
        try:
            catalog = msgspec.json.decode(body, type=Catalog)
        except UNREADABLE as error:
            raise RelayProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-catalog", str(error)) from error
        if catalog.digest != digest or not (catalog.narrow or catalog.wide):
            raise RelayProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid-catalog",
                f"these names have the digest {catalog.digest}, not {digest[:64]}",
            )
        try:
            self._catalogs.store(catalog)
        except OSError as error:
            raise unavailable("disk-error", f"the relay cannot write: {error}") from error

    def _metrics(self) -> str:
        spool = self._sender.spool
        oldest = spool.peek(1)
        age = max(0.0, time.time() - decode(oldest[0].payload).t0) if oldest else 0.0
        lines = [
            *_metric("frames_accepted_total", "counter", "Frames stored for nodes.", self._intake.accepted),
            *_metric("bundles_sent_total", "counter", "Bundles that the service acknowledged.", self._sender.bundles),
            *_metric("spool_entries", "gauge", "Frames that wait for the service.", len(spool)),
            *_metric("spool_bytes", "gauge", "Size of the spool on disk.", spool.size_bytes),
            *_metric("oldest_frame_age_seconds", "gauge", "Age of the oldest frame that waits.", round(age, 3)),
        ]
        for name, about, counts in (
            ("requests_refused_total", "Requests refused by this relay.", self._refused),
            ("frames_refused_total", "Frames that the service refused; they are set aside.", self._sender.refused),
        ):
            lines += [f"# HELP mainstay_relay_{name} {about}", f"# TYPE mainstay_relay_{name} counter"]
            lines += [f'mainstay_relay_{name}{{reason="{slug}"}} {count}' for slug, count in sorted(counts.items())]
        return "\n".join((*lines, ""))


def _metric(name: str, kind: str, about: str, value: float) -> tuple[str, str, str]:
    name = f"mainstay_relay_{name}"
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value}"


def _bearer(scope: Message) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return str(token.strip())
    raise RelayProblemError(HTTPStatus.UNAUTHORIZED, "unauthorized", "send 'Authorization: Bearer TOKEN'")


async def _read(receive: Receive, limit: int) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RelayProblemError(HTTPStatus.BAD_REQUEST, "disconnected", "the client left")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise RelayProblemError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "frame-too-large", f"a body may have {limit} bytes"
            )
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)
