"""One GET of an exporter: bounded in time and in size, and led nowhere else.

A single connection of urllib3 follows no redirect, reads no proxy from the environment, and gives us its socket. A
timer closes that socket when the time is over: the timeouts of urllib3 limit each read, not a slow answer as a whole.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from urllib3 import BaseHTTPResponse
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from mainstay.service.common.outgoing import (
    AddressPolicy,
    GuardedHTTPConnection,
    GuardedHTTPSConnection,
    is_address,
)

MAX_URL: Final = 500
DEFAULT_POLICY: Final = AddressPolicy()
_ANYWHERE: Final = AddressPolicy.from_texts(("::/0", "0.0.0.0/0"))
"""Refuses only what no setting allows: which networks are closed is known where a target is used."""


class FetchError(Exception):
    """There is no usable answer; the message says why, for the target's list."""


def check_url(url: str) -> SplitResult:
    """The parts of a target's address.

    Raises:
        ValueError: another scheme, no host, credentials or a fragment in it, or an address where no exporter runs.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a target is http://HOST… or https://HOST…")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("a target's address carries neither credentials nor a fragment")
    if parts.port == 0 or not url.isascii() or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise ValueError("a target's address is printable ASCII without spaces, its port 1 to 65535")
    if is_address(parts.hostname):
        _ANYWHERE.check(parts.hostname)
    return parts


def fetch(
    url: str,
    *,
    seconds: float,
    max_bytes: int,
    ca_file: Path | None = None,
    policy: AddressPolicy = DEFAULT_POLICY,
) -> str:
    """The text at ``url``.

    Args:
        url: as ``check_url`` accepts it.
        seconds: for everything, from connecting to the last byte (resolving the name is the system's affair).
        max_bytes: longest body.
        ca_file: certificates to trust beside the system's.
        policy: the addresses that may be connected to.

    Raises:
        FetchError: unreachable, too slow, too large, not 200, or not text.
    """
    deadline = time.monotonic() + seconds
    try:
        with closing(_connection(check_url(url), seconds, ca_file, policy)) as connection:
            connection.connect()
            body = _exchange(connection, url, deadline, max_bytes)
        if time.monotonic() >= deadline:  # the timer may have cut off a body that has no length
            raise FetchError(f"no whole answer within {seconds:g} s")
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FetchError("the answer is not UTF-8 text") from error
    except (OSError, HTTPError, HTTPException, ValueError, AttributeError) as error:
        # A socket that the timer closed fails in many ways, an attribute of None among them.
        if time.monotonic() >= deadline:
            raise FetchError(f"no whole answer within {seconds:g} s") from error
        cause = error.__cause__ or error
        raise FetchError(f"{type(cause).__name__}: {str(cause)[:200]}") from error


def _connection(
    parts: SplitResult, seconds: float, ca_file: Path | None, policy: AddressPolicy
) -> GuardedHTTPConnection | GuardedHTTPSConnection:
    assert parts.hostname is not None
    if parts.scheme == "http":
        return GuardedHTTPConnection(parts.hostname, parts.port, timeout=seconds, policy=policy)
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return GuardedHTTPSConnection(parts.hostname, parts.port, timeout=seconds, ssl_context=context, policy=policy)


def _exchange(connection: HTTPConnection, url: str, deadline: float, max_bytes: int) -> bytes:
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), _shut, (connection.sock,))
    timer.daemon = True
    timer.start()
    try:
        parts = urlsplit(url)
        path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        headers = {"Accept": "text/plain", "Connection": "close"}
        connection.request("GET", path, headers=headers, preload_content=False)
        return _body(connection.getresponse(), max_bytes)
    finally:
        timer.cancel()


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _body(response: BaseHTTPResponse, max_bytes: int) -> bytes:
    if 300 <= response.status < 400:
        raise FetchError(f"answers {response.status}: redirects are not followed")
    if response.status != 200:
        raise FetchError(f"answers {response.status}")
    body = response.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise FetchError(f"the answer has more than {max_bytes} bytes")
    return body
