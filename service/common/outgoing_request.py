"""One HTTP request to a URL that a user gave: bounded in time and in size, and led nowhere else.

A single connection of urllib3 follows no redirect and reads no proxy from the environment.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from mainstay.service.common.outgoing import (
    AddressPolicy,
    GuardedHTTPConnection,
    GuardedHTTPSConnection,
    RefusedAddressError,
    TimeLimit,
    is_address,
)

DEFAULT_POLICY: Final = AddressPolicy()
_ANYWHERE: Final = AddressPolicy.from_texts(("::/0", "0.0.0.0/0"))
"""Refuses only what no setting allows: which networks are closed is known where a URL is used."""
_Result = TypeVar("_Result")

# urllib3 warns of malformed headers with the whole URL, which may be a secret.
logging.getLogger("urllib3.connection").setLevel(logging.ERROR)


class OutgoingRequestError(Exception):
    """There is no whole answer; the message says why, and names neither path nor query of the URL."""


def check_url(url: str) -> SplitResult:
    """Split the URL of a request.

    Raises:
        ValueError: another scheme, no host, credentials or a fragment in it, or an address that no setting allows.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be http://HOST… or https://HOST…")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("must have neither credentials nor a fragment")
    if not url.isascii() or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise ValueError("must be printable ASCII without spaces")
    if _port(parts) == 0:
        raise ValueError("must have a port from 1 to 65535")
    if is_address(parts.hostname):
        _ANYWHERE.check(parts.hostname)
    return parts


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:  # its text has what stands there
        return 0


def exchange(
    method: str,
    url: SplitResult,
    read: Callable[[BaseHTTPResponse], _Result],
    *,
    target: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    seconds: float,
    policy: AddressPolicy = DEFAULT_POLICY,
    ca_file: Path | None = None,
) -> _Result:
    """Send one request.

    Args:
        method: of HTTP.
        url: from ``check_url``.
        read: makes the result from the answer.
        target: path and query.
        headers: of the request.
        body: of the request.
        seconds: for everything, from connecting to the last byte (resolving the name is the system's affair).
        policy: the addresses that may be connected to.
        ca_file: certificates to trust together with the system's.

    Raises:
        OutgoingRequestError: unreachable, too slow, or not HTTP.
    """
    with TimeLimit(seconds) as limit:
        try:
            with closing(_connection(url, limit, policy, ca_file)) as connection:
                sent = {**headers, "Connection": "close"}
                connection.request(method, target, body=body, headers=sent, preload_content=False)
                result = read(connection.getresponse())
        except (OSError, HTTPError, HTTPException, ValueError, AttributeError) as error:
            # A connection that was shut down fails in many ways, an attribute of None among them.
            reason = f"no whole answer within {seconds:g} s" if limit.is_over else _reason(error.__cause__ or error)
            raise OutgoingRequestError(reason) from error
        if limit.is_over:  # a body without a length ends where it is cut off
            raise OutgoingRequestError(f"no whole answer within {seconds:g} s")
        return result


def _reason(error: BaseException) -> str:
    """Without the text of an error that may quote the peer, which may repeat the URL."""
    name = type(error).__name__
    return f"{name}: {str(error)[:200]}" if isinstance(error, OSError | RefusedAddressError) else name


def _connection(
    url: SplitResult, limit: TimeLimit, policy: AddressPolicy, ca_file: Path | None
) -> GuardedHTTPConnection | GuardedHTTPSConnection:
    if url.scheme == "http":
        return GuardedHTTPConnection(url.hostname, url.port, policy=policy, limit=limit)
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return GuardedHTTPSConnection(url.hostname, url.port, ssl_context=context, policy=policy, limit=limit)
