"""Frames of nodes, answered by the HTTP protocol itself: an ASGI task for each costs as much as storing it (measured).

What memory alone can decide, and accepts, is stored here. Everything else goes to the app, which answers all problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from mainstay.probes.http_server import BoundedHttpProtocol
from mainstay.service.auth import guard
from mainstay.service.auth.tokens import Principal
from mainstay.service.common.problem import ProblemError
from mainstay.service.services import Services
from mainstay.service.telemetry.route import FRAMES, FrameGateway, refuse

_MAX_BYTES: Final = 32 * 1024
"""Larger bodies are the app's: at 64 KiB, uvicorn stops reading until an app asks for the body."""


class FrameProtocol(BoundedHttpProtocol):
    """Starts no ASGI task for a frame of a known node; uvicorn still makes its cycle, which orders what is pipelined.

    A uvicorn that no longer calls ``_start_asgi_task`` leaves every frame to the app.
    """

    _sender: Principal | None = None
    """Of the frame whose body arrives."""
    _shown: tuple[bytes, str] = b"", ""
    """The last Authorization header and its token's digest: a node shows the same again."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        sender = self._identify(cycle, app) if cycle.scope["path"] == FRAMES else None
        if sender is None:
            super()._start_asgi_task(cycle, app)
        elif cycle.more_body:
            self._sender = sender
        else:  # it was pipelined
            self._store(cycle, sender)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        sender, self._sender = self._sender, None
        if sender is not None:
            self._store(self.cycle, sender)

    def _identify(self, cycle: RequestResponseCycle, app: Any) -> Principal | None:
        """Who sends this frame; None where the app must be asked."""
        pairs = list(cycle.scope["headers"])
        headers = dict(pairs)
        is_plain = (
            isinstance(app, FrameGateway)
            and cycle.scope["method"] == "POST"
            and len(headers) == len(pairs)  # which of two counts, the app knows
            and not (cycle.waiting_for_100_continue or self.config.access_log or self.flow.write_paused)
        )
        if not is_plain or b"authorization" not in headers:
            return None
        services: Services = app.state.services
        most = min(_MAX_BYTES, services.ingest.settings.max_frame_bytes)
        if not 0 < int(headers.get(b"content-length", 0)) <= most:
            return None
        try:
            if self._shown[0] != headers[b"authorization"]:
                self._shown = headers[b"authorization"], guard.digest_of(headers[b"authorization"])
            return guard.remembered(services, self._shown[1], cycle.scope)
        except ProblemError:
            return None

    def _store(self, cycle: RequestResponseCycle, sender: Principal) -> None:
        services: Services = self.app.state.services
        try:
            is_taken = services.ingest.accept_now(sender, bytes(cycle.body), partial(self._answer, cycle, services))
        except ProblemError:
            is_taken = False
        if not is_taken:
            super()._start_asgi_task(cycle, self.app)

    def _answer(self, cycle: RequestResponseCycle, services: Services, result: bool | ProblemError) -> None:
        """What ``cycle.send`` does for the two messages of an answer."""
        if isinstance(result, ProblemError):
            app: Any = partial(refuse, services, result)
            super()._start_asgi_task(cycle, app)
        elif not self.transport.is_closing():
            cycle.response_started = cycle.response_complete = True
            self.transport.write(_head(tuple(cycle.default_headers), is_new=result, is_kept=cycle.keep_alive))
            if not cycle.keep_alive:
                self.transport.close()
            del cycle.on_response  # else protocol and cycle would keep each other in memory
            self.on_response_complete()


@lru_cache(16)
def _head(headers: Sequence[tuple[bytes, bytes]], *, is_new: bool, is_kept: bool) -> bytes:
    """The answer; the server's own headers change once a second."""
    duplicate = () if is_new else ((b"x-mainstay-duplicate", b"1"),)
    close = () if is_kept else ((b"connection", b"close"),)
    lines = [b"%s: %s\r\n" % pair for pair in (*headers, *duplicate, *close)]
    return b"HTTP/1.1 204 No Content\r\n" + b"".join(lines) + b"\r\n"
