"""Requests to receivers: to allowed addresses, bounded in time and in size, without redirects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from urllib3 import BaseHTTPResponse

from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.common.outgoing_request import DEFAULT_POLICY, OutgoingRequestError, check_url, exchange
from mainstay.service.notifications.receivers.base import MAX_ANSWER, DeliveryError, HttpAnswer
from mainstay.service.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingPost:
    """The ``HttpPost`` of the service.

    Args:
        seconds: for everything, from connecting to the last byte.
        policy: the addresses that may be connected to.
        ca_file: certificates to trust together with the system's.
    """

    seconds: float = 10.0
    policy: AddressPolicy = DEFAULT_POLICY
    ca_file: Path | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        chosen = settings.notifications
        policy = AddressPolicy.from_texts(settings.sources.allowed_networks)
        return cls(seconds=chosen.timeout_seconds, policy=policy, ca_file=chosen.ca_file)

    def __call__(
        self, url: str, body: bytes | None, headers: Mapping[str, str], *, max_bytes: int = MAX_ANSWER
    ) -> HttpAnswer:
        """POST the body, or GET where there is none.

        Raises:
            DeliveryError: no answer.
        """

        def read(response: BaseHTTPResponse) -> HttpAnswer:
            return HttpAnswer(response.status, response.read(max_bytes), _retry_after(response))

        try:
            parts = check_url(url)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            return exchange(
                "GET" if body is None else "POST", parts, read, target=target, headers=headers, body=body,
                seconds=self.seconds, policy=self.policy, ca_file=self.ca_file,
            )  # fmt: skip
        except ValueError as error:
            raise DeliveryError(f"the URL {error}", again=True) from None
        except OutgoingRequestError as error:
            raise DeliveryError(f"no answer: {error}", again=True) from None


def _retry_after(response: BaseHTTPResponse) -> float | None:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
