"""One GET of an exporter: bounded in time and in size, and led nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from urllib3 import BaseHTTPResponse

from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.common.outgoing_request import DEFAULT_POLICY, OutgoingRequestError, check_url, exchange

MAX_URL: Final = 500


class FetchError(Exception):
    """There is no usable answer; the message says why, for the target's list."""


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

    def read(response: BaseHTTPResponse) -> bytes:
        return _body(response, max_bytes)

    try:
        parts = check_url(url)
        target = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        headers = {"Accept": "text/plain"}
        made = exchange(
            "GET", parts, read, target=target, headers=headers, seconds=seconds, policy=policy, ca_file=ca_file
        )
        return made.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FetchError("the answer is not UTF-8 text") from error
    except (OutgoingRequestError, ValueError) as error:
        raise FetchError(str(error)) from error


def _body(response: BaseHTTPResponse, max_bytes: int) -> bytes:
    if 300 <= response.status < 400:
        raise FetchError(f"answers {response.status}: redirects are not followed")
    if response.status != 200:
        raise FetchError(f"answers {response.status}")
    body = response.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise FetchError(f"the answer has more than {max_bytes} bytes")
    return body
