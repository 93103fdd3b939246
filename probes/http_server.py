"""The HTTP server of the service and of a relay: deadlines for what clients send, and certificates that may change.

uvicorn bounds the pause between two requests, but not the time that a header or a body may take: requests that never
end would stay, with their memory. It reads certificates once, and no context forgets an authority.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.config import create_ssl_context
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mainstay.probes.relay_problem import problem_document

_log: Final = logging.getLogger(__name__)
PEER_NAMES: Final = "mainstay.peer_names"
"""Key of an ASGI scope: the names in the client's verified certificate; empty without one."""
BODY_BYTES: Final = 64 * 1024
"""What must arrive of a body in the time given for it: 3 KiB/s by default, less than any link that carries frames."""
_LINGER_SECONDS: Final = 0.5
_RELOAD_TICKS: Final = 20
"""uvicorn ticks ten times a second: a new certificate is in use after two seconds."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with deadlines for header and body; the subclass that ``with_deadlines`` makes sets them."""

    header_seconds: float = 10.0
    body_seconds: float = 20.0
    _deadline: asyncio.TimerHandle | None = None
    _in_header: bool = True
    _in_body: bool = False
    _received: int = 0
    """Bytes of the body since its deadline was set."""
    _peer_names: frozenset[str] = frozenset()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer_names = certificate_names(transport.get_extra_info("peercert"))
        self._arm(self.header_seconds, self._end_header)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Most requests come in one piece: a timer is made only for one that did not.
        if self._deadline is None and not self.transport.is_closing():
            if self._in_header:
                self._arm(self.header_seconds, self._end_header)
            elif self._in_body:
                self._arm(self.body_seconds, self._check_body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header = True
        self.scope[PEER_NAMES] = self._peer_names  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._in_header, self._in_body = False, True
        self._disarm()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._disarm()
        super().on_message_complete()

    def _arm(self, seconds: float, act: Callable[[], None]) -> None:
        self._received = 0
        self._deadline = self.loop.call_later(seconds, act)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_header(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        self._give_up(f"the header was not complete after {self.header_seconds:g} s", is_answering)

    def _check_body(self) -> None:
        """Give the body its time again if enough of it came, or if it waits for us and not for the client."""
        is_ours = self.flow.read_paused or self.cycle.waiting_for_100_continue
        if is_ours or self._received >= BODY_BYTES:
            self._arm(self.body_seconds, self._check_body)
            return
        detail = f"{self._received} bytes of the body came in {self.body_seconds:g} s: send {BODY_BYTES}, or the rest"
        self._give_up(detail, bool(self.pipeline) or self.cycle.response_started)

    def _give_up(self, detail: str, is_answering: bool) -> None:
        """Close, after a 408 unless it would stand within another answer."""
        self._deadline = None
        if self.transport.is_closing():
            return
        if not is_answering:
            body = problem_document(HTTPStatus.REQUEST_TIMEOUT, "request-timeout", detail)
            head = f"content-type: application/problem+json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\n" + head.encode() + body)
        self._close()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._close()

    def _close(self) -> None:
        """Close without waiting for the peer to end TLS, which an idle or hostile one never does."""
        self.transport.close()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)


def with_deadlines(base: type[BoundedHttpProtocol], header: float, body: float) -> type[BoundedHttpProtocol]:
    """A protocol class that closes a connection whose header is not complete in time, or whose body is slow."""
    return type(base.__name__, (base,), {"header_seconds": header, "body_seconds": body})


def certificate_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Common name and DNS names of a verified client certificate, as ``ssl.SSLSocket.getpeercert`` gives it."""
    if not certificate:
        return frozenset()
    parts: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    common = {value for part in parts for key, value in part if key == "commonName"}
    return frozenset(common | {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"})


class ReloadingServer(uvicorn.Server):
    """Gives new connections the certificate, the key, and the authority of clients as their files are now."""

    _context: ssl.SSLContext
    _stamps: tuple[tuple[int, int, int], ...] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            self._context, self._stamps = self.config.ssl, self._read_stamps()
            self.config.ssl.sni_callback = self._use_current  # called for every handshake, with a name or without
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if self.config.ssl is not None and counter % _RELOAD_TICKS == 0:
            self._reload_if_changed()
        return await super().on_tick(counter)

    def _use_current(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str, _first: ssl.SSLContext) -> None:
        connection.context = self._context

    def _reload_if_changed(self) -> None:
        """Files that cannot be used are logged, and what was loaded before stays."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        self._stamps, config = stamps, self.config
        assert config.ssl_certfile is not None
        try:
            self._context = create_ssl_context(
                certfile=config.ssl_certfile,
                keyfile=config.ssl_keyfile,
                password=None,
                ssl_version=config.ssl_version,
                cert_reqs=config.ssl_cert_reqs,
                ca_certs=config.ssl_ca_certs,
                ciphers=config.ssl_ciphers,
            )
        except OSError as error:  # ssl.SSLError is one
            _log.warning("cannot load the changed certificate %s: %s; the old one stays", config.ssl_certfile, error)
        else:
            _log.info("loaded the changed certificate %s", config.ssl_certfile)

    def _read_stamps(self) -> tuple[tuple[int, int, int], ...]:
        files = (self.config.ssl_certfile, self.config.ssl_keyfile, self.config.ssl_ca_certs)
        try:
            found = [Path(file).stat() for file in files if file is not None]
        except OSError:  # it is being replaced
            return ()
        return tuple((status.st_mtime_ns, status.st_ino, status.st_size) for status in found)
