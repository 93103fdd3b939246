"""One GET of an exporter: bounded in time and in size, and led nowhere else.

The standard library's client is used because it follows no redirect, reads no proxy from the environment, and gives us
its socket: a watchdog shuts it when the time is over, so that an exporter which sends a byte now and then holds nobody.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

_CHUNK: Final = 256 * 1024
MAX_URL: Final = 500


class FetchError(Exception):
    """There is no usable answer; the message says why, for the target's list."""


def check_url(url: str) -> SplitResult:
    """The parts of a target's address.

    Raises:
        ValueError: another scheme, no host, credentials or a fragment in it, or an address that is nobody's exporter.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a target is http://HOST… or https://HOST…")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("a target's address carries neither credentials nor a fragment")
    if parts.port == 0 or not url.isascii() or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise ValueError("a target's address is printable ASCII without spaces, its port 1 to 65535")
    if _is_nobodys(parts.hostname):
        raise ValueError(f"{parts.hostname} is no address of an exporter (link-local, multicast or unspecified)")
    return parts


def _is_nobodys(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # Link-local holds the metadata services of clouds.
    return address.is_link_local or address.is_multicast or address.is_unspecified


def fetch(url: str, *, seconds: float, max_bytes: int, ca_file: Path | None = None) -> str:
    """The text at ``url``.

    Args:
        url: as ``check_url`` accepts it.
        seconds: for everything, from connecting to the last byte (resolving the name is the system's affair).
        max_bytes: longest body.
        ca_file: certificates to trust beside the system's.

    Raises:
        FetchError: unreachable, too slow, too large, not 200, or not text.
    """
    deadline = time.monotonic() + seconds
    try:
        with closing(_connection(check_url(url), seconds, ca_file)) as connection:
            connection.connect()
            peer = connection.sock.getpeername()[0]
            if _is_nobodys(peer.partition("%")[0]):  # a name may lead where an address may not
                raise FetchError(f"{peer} is no address of an exporter")
            return _exchange(connection, url, deadline, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FetchError("the answer is not UTF-8 text") from error
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        # A socket that the watchdog shut shows itself in many ways, an attribute of None among them.
        if time.monotonic() >= deadline:
            raise FetchError(f"no whole answer within {seconds:g} s") from error
        raise FetchError(f"{type(error).__name__}: {str(error)[:200]}") from error


def _connection(parts: SplitResult, seconds: float, ca_file: Path | None) -> http.client.HTTPConnection:
    assert parts.hostname is not None
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=seconds, context=context)


def _exchange(connection: http.client.HTTPConnection, url: str, deadline: float, max_bytes: int) -> bytes:
    sock = connection.sock
    watchdog = threading.Timer(max(0.0, deadline - time.monotonic()), _shut, (sock,))
    watchdog.daemon = True
    watchdog.start()
    try:
        parts = urlsplit(url)
        path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "text/plain", "Connection": "close"})
        return _body(connection.getresponse(), deadline, max_bytes)
    finally:
        watchdog.cancel()


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _body(response: http.client.HTTPResponse, deadline: float, max_bytes: int) -> bytes:
    if 300 <= response.status < 400:
        raise FetchError(f"answers {response.status}: redirects are not followed")
    if response.status != 200:
        raise FetchError(f"answers {response.status}")
    if (response.length or 0) > max_bytes:
        raise FetchError(f"the answer has more than {max_bytes} bytes")
    body = bytearray()
    while chunk := response.read1(_CHUNK):
        body += chunk
        if len(body) > max_bytes:
            raise FetchError(f"the answer has more than {max_bytes} bytes")
    # The end may be the watchdog's doing: what was cut off must not pass for the whole.
    if time.monotonic() >= deadline or response.length:
        raise FetchError("the answer was cut off")
    return bytes(body)
