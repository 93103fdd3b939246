"""The client with which a node or a job sends data to the service over connections that stay open.

This module never discards data. An answer means one of three things: accepted (the data is durable at the service),
rejected (the service will never accept these bytes), or retryable (no connection, 5xx, 429, a revoked token). A
rejected credential is retryable, because the data is good.

    TransportError
    ├── RejectedError    the service rejects this request, and will reject it again
    └── RetryableError   the same request may succeed later
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.signals import Catalog

_PASSING: Final = frozenset({401, 403, 404, 408, 425, 429})
"""Client errors that say nothing about the data: credential, wrong service behind the URL, timing, load."""
_FINAL: Final = frozenset({"wrong-node", "wrong-rack"})
"""Problems of these statuses that concern the data: it belongs to another sender."""
_DETAIL_BYTES: Final = 4096
_CONNECT_S: Final = 3.0
_ABOUT_THE_HOST: Final = "wrong-host"
"""A 400 that an operator ends by a setting of the service: the data is good."""


class TransportError(Exception):
    """A request was not accepted.

    ``status`` is the HTTP status (0: no answer), ``slug`` names the problem, ``retry_after`` is in seconds.
    """

    def __init__(self, message: str, *, status: int = 0, slug: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.slug = slug
        self.retry_after = retry_after


class RejectedError(TransportError):
    """The service will never take this request."""


class RetryableError(TransportError):
    """The request may be accepted another time."""


class ProblemDocument(msgspec.Struct):
    """The parts of an RFC 9457 answer that are read here."""

    type: str = ""
    title: str = ""
    detail: str = ""


_PROBLEM: Final = msgspec.json.Decoder(ProblemDocument)
"""Made at import: msgspec crashes where several threads are the first to decode a type."""


class Backoff:
    """Delays that double from ``base`` to ``cap`` seconds, each drawn from the upper half of its step.

    The jitter keeps ten thousand nodes from returning in the same instant after the service was away.
    """

    def __init__(self, base: float = 0.25, cap: float = 15.0, rng: Callable[[], float] = random.random) -> None:
        self._base = base
        self._cap = cap
        self._rng = rng
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        step = min(self._cap, self._base * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return step * (0.5 + 0.5 * self._rng())

    def reset(self) -> None:
        self._failures = 0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for ``https``: whom to trust instead of the system's authorities, and who we are.

    Each new connection reads them again, so that a renewed certificate needs no restart.
    """

    ca_file: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None

    @classmethod
    def from_environment(cls) -> TlsFiles:
        """What ``MAINSTAY_CA_FILE``, ``MAINSTAY_CLIENT_CERTIFICATE`` and ``MAINSTAY_CLIENT_KEY`` name."""
        names = ("MAINSTAY_CA_FILE", "MAINSTAY_CLIENT_CERTIFICATE", "MAINSTAY_CLIENT_KEY")
        return cls(*(Path(value) if (value := os.environ.get(name)) else None for name in names))

    def check(self) -> None:
        """Raise ``ValueError`` for a file that is missing, and for a certificate without its key."""
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("a client certificate needs both --client-certificate and --client-key")
        for path in (self.ca_file, self.client_certificate, self.client_key):
            if path is not None and not path.is_file():
                raise ValueError(f"{path} is not a file")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


class Transport:
    """A client of one service. Thread-safe; connections are kept alive.

    Args:
        url: where the service listens, ``http://host:port`` or ``https://…``.
        token: bearer token; may be replaced at any time.
        tls: files for ``https``; the default is what the environment names (``MAINSTAY_CA_FILE``).
        read_s: seconds to wait for an answer.

    Raises:
        ValueError: the URL is not an HTTP one, or a TLS file is missing.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        tls: TlsFiles | None = None,
        read_s: float = 10.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"service URL {url!r} must look like http://host:port or https://host:port")
        self.url = url.rstrip("/")
        self.token = token
        self._read_s = read_s
        files = tls or TlsFiles.from_environment()
        files.check()
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=4,
            retries=False,
            ca_certs=_text(files.ca_file),
            cert_file=_text(files.client_certificate),
            key_file=_text(files.client_key),
        )

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
        read_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """One request and its accepted (2xx) answer. ``body`` is sent as JSON, ``content`` as it is.

        Raises:
            RejectedError: the service will never accept it.
            RetryableError: no answer, or one that may change.
        """
        data = msgspec.json.encode(body) if content is None and body is not None else content
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type, **(headers or {})}
        timeout = urllib3.Timeout(connect=_CONNECT_S, read=read_s or self._read_s)
        try:
            answer = self._pool.request(
                method, f"{self.url}/v1{path}", body=data, headers=sent, timeout=timeout, redirect=False
            )
        except HTTPError as error:
            raise RetryableError(f"cannot reach {self.url} ({method} {path}): {_cause(error)}") from error
        if 200 <= answer.status < 300:
            return answer
        raise _verdict(method, path, answer)

    def json(self, method: str, path: str, body: Any = None, *, read_s: float | None = None) -> Any:
        """One request with a JSON answer (None when the answer is empty)."""
        answer = self.request(method, path, body, read_s=read_s)
        try:
            return msgspec.json.decode(answer.data) if answer.data else None
        except UNREADABLE as error:
            raise RetryableError(f"{method} {path}: the answer is not JSON: {error}", status=answer.status) from error

    def send_frame(self, body: bytes) -> None:
        """Deliver one encoded frame; on return it is durable at the service."""
        self.request("POST", "/telemetry/frames", content=body, content_type="application/msgpack")

    def put_catalog(self, catalog: Catalog) -> None:
        """Tell the service what the frames with this digest carry."""
        body = {"narrow": catalog.narrow, "wide": catalog.wide}
        self.request("PUT", f"/telemetry/catalogs/{catalog.digest}", body)

    def close(self) -> None:
        self._pool.clear()


def _cause(error: HTTPError) -> str:
    reason = getattr(error, "reason", None) or error
    text = re.sub(r"^<?HTTPS?Connection\([^)]*\)>?: ", "", " ".join(str(reason).split()))
    return text or type(error).__name__


def _verdict(method: str, path: str, answer: urllib3.BaseHTTPResponse) -> TransportError:
    try:
        problem = _PROBLEM.decode(answer.data[:_DETAIL_BYTES])
    except UNREADABLE:
        problem = ProblemDocument(title=answer.data[:200].decode("utf-8", "replace").strip())
    slug = problem.type.rsplit(":", 1)[-1].rsplit("/", 1)[-1]
    message = f"{method} {path}: {answer.status} {problem.detail or problem.title or answer.reason or ''}".rstrip()
    if answer.status == HTTPStatus.UNAUTHORIZED:
        message += "; 'mainstay token' on the host of the service creates a valid one"
    is_passing = answer.status in _PASSING or slug == _ABOUT_THE_HOST
    refused = 400 <= answer.status < 500 and (not is_passing or slug in _FINAL)
    kind = RejectedError if refused else RetryableError
    return kind(message, status=answer.status, slug=slug, retry_after=_retry_after(answer))


def _retry_after(answer: urllib3.BaseHTTPResponse) -> float:
    text = answer.headers.get("Retry-After", "")
    return min(float(text), 300.0) if text.isdecimal() else 0.0  # a date: our own back-off will do
