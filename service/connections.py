"""What a connection must show before a request of it reaches the app: a header in time, and whose certificate it has.

uvicorn bounds the pause between two requests, but not the time that a header may take: half-open requests would stay.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_log: Final = logging.getLogger(__name__)
PEER_NAMES: Final = "mainstay.peer_names"
"""Key of an ASGI scope: the names in the client's verified certificate; empty without one."""
_LINGER_SECONDS: Final = 0.5
_TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a deadline for each header; the subclass that ``with_deadline`` makes sets it."""

    header_seconds: float = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _in_header: bool = True
    _peer_names: frozenset[str] = frozenset()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer_names = certificate_names(transport.get_extra_info("peercert"))
        self._deadline = self.loop.call_later(self.header_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Most headers come in one piece: a timer is made only for one that did not.
        if self._in_header and self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.header_seconds, self._give_up)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header = True
        self.scope[PEER_NAMES] = self._peer_names  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._in_header = False
        self._disarm()
        super().on_headers_complete()

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.write(_TIMED_OUT)
            self._close()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._close()

    def _close(self) -> None:
        """Close without waiting for the peer to end TLS, which an idle or hostile one never does."""
        self.transport.close()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)


def with_deadline(seconds: float) -> type[BoundedHttpProtocol]:
    """A protocol class that closes a connection whose header is not complete after ``seconds``."""
    return type("DeadlineHttpProtocol", (BoundedHttpProtocol,), {"header_seconds": seconds})


def certificate_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Common name and DNS names of a verified client certificate, as ``ssl.SSLSocket.getpeercert`` gives it."""
    if not certificate:
        return frozenset()
    parts: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    common = {value for part in parts for key, value in part if key == "commonName"}
    return frozenset(common | {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"})


class CertificateReloader:
    """Loads the certificate of a live TLS context again when its file or its key changes."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self._context, self._certificate, self._key = context, certificate, key
        self._loaded = self._stamps()

    def reload_if_changed(self) -> None:
        """New connections get the new certificate; one that cannot be used is logged, and the old one stays."""
        stamps = self._stamps()
        if stamps == self._loaded:
            return
        self._loaded = stamps
        try:
            # A pair that does not match would leave the live context without a key: try another context first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._context):
                context.load_cert_chain(self._certificate, self._key)
        except OSError as error:  # ssl.SSLError is one
            _log.warning("cannot load the changed certificate %s: %s; the old one stays", self._certificate, error)
        else:
            _log.info("loaded the changed certificate %s", self._certificate)

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        try:
            found = [path.stat() for path in (self._certificate, self._key)]
        except OSError:  # it is being replaced
            return ()
        return tuple((status.st_mtime_ns, status.st_ino, status.st_size) for status in found)
