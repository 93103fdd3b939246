"""The contract of a receiver: a model of its configuration that can send one message.

A new kind of receiver costs two files: a module here, listed in ``receivers/__init__.py``, and its test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.common.outgoing_request import DEFAULT_POLICY, check_url
from mainstay.service.notifications.message import Message

SecretName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""Name of a file in the secrets directory. Its text is never stored, logged, or answered by the API."""


def _check_url(url: str) -> str:
    check_url(url)
    return url


HttpUrl = Annotated[str, Field(max_length=2000), AfterValidator(_check_url)]
MAX_ANSWER: Final = 64 * 1024
_SHORTEST_SECRET: Final = 6
"""Shorter parts of a URL are words such as ``v2``, which no one has to hide."""


class DeliveryError(Exception):
    """The receiver did not accept the message.

    Args:
        reason: for the delivery log; never contains a secret.
        again: whether a later attempt can succeed.
        after_seconds: how long the receiver asks to wait before it.
    """

    def __init__(self, reason: str, *, again: bool, after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.again = again
        self.after_seconds = after_seconds


class HttpAnswer(NamedTuple):
    """The answer of a receiver."""

    status: int
    body: bytes
    """Its first bytes."""
    retry_after: float | None = None
    """Seconds."""


class HttpPost(Protocol):
    """A request to a URL that an administrator configured.

    Addresses are checked when connecting; redirects are not followed.
    """

    def __call__(
        self, url: str, body: bytes | None, headers: Mapping[str, str], *, max_bytes: int = MAX_ANSWER
    ) -> HttpAnswer:
        """POST the body, or GET where there is none.

        Raises:
            DeliveryError: no answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One attempt to send a message, and the means for it."""

    id: str
    """The same for all attempts: a receiver that sees it twice has a repeated message."""
    attempt: int
    """From 1. A higher one may be a repeated message: an earlier attempt may have arrived without an answer."""
    now: float
    """Unix seconds."""
    post: HttpPost
    secret: Callable[[str], str]
    """Text of a secret by its name. Raises DeliveryError where there is no such file."""
    policy: AddressPolicy = DEFAULT_POLICY
    """The addresses that receivers without HTTP may connect to."""
    ca_file: Path | None = None
    """Certificates that they trust together with the system's."""

    @property
    def repeated(self) -> bool:
        return self.attempt > 1


class ReceiverConfig(BaseModel):
    """What the configuration says about one receiver. Subclasses add ``kind: Literal[...]`` and their own keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
    send_resolved: bool = True
    """Whether the receiver gets the message that a group of incidents is over."""
    tracks_groups: ClassVar[bool] = False
    """Whether the receiver keeps one alert for a group (PagerDuty, Alertmanager): it must learn of the end."""

    def send(self, message: Message, delivery: Delivery) -> None:
        """Send the message once.

        Raises:
            DeliveryError: it was not accepted.
        """
        raise NotImplementedError


JSON: dict[str, str] = {"Content-Type": "application/json", "User-Agent": "mainstay"}
Payload = dict[str, Any]


def encode(payload: object) -> bytes:
    """JSON without spaces, in UTF-8."""
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def request(
    delivery: Delivery,
    url: str,
    body: bytes | None,
    *,
    headers: Mapping[str, str] = JSON,
    secrets: Sequence[str] = (),
    max_bytes: int = MAX_ANSWER,
) -> bytes:
    """POST the body, or GET where there is none, and judge the answer.

    Args:
        delivery: the attempt.
        url: of the receiver; errors do not show its path and query.
        body: of the request.
        headers: of the request.
        secrets: other texts that errors must not show.
        max_bytes: of the answer.

    Raises:
        DeliveryError: no answer, or one that ``check_status`` refuses.
    """
    try:
        check_url(url)
    except ValueError as error:
        raise DeliveryError(f"the URL {error}", again=True) from None
    answer = delivery.post(url, body, headers, max_bytes=max_bytes)
    check_status(answer, (*_secret_parts(url), *secrets))
    return answer.body


def check_status(answer: HttpAnswer, secrets: Sequence[str] = ()) -> None:
    """Judge an answer.

    Raises:
        DeliveryError: the status is not 2xx. 408, 425, 429, and 5xx are worth another attempt.
    """
    if not 200 <= answer.status < 300:
        again = answer.status in {408, 425, 429} or answer.status >= 500
        text = f"answers {answer.status}{answer_text(answer.body, secrets)}"
        raise DeliveryError(text, again=again, after_seconds=answer.retry_after)


def answer_text(answer: bytes, secrets: Sequence[str]) -> str:
    """The beginning of an answer after a colon, for an error; empty where it has none."""
    text = " ".join(hide(answer.decode(errors="replace"), secrets).split())[:200]
    return f": {text}" if text else ""


def hide(text: str, secrets: Sequence[str]) -> str:
    """Replace secrets that a receiver repeats, such as the path of a URL on a page about an error."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secret_parts(url: str) -> list[str]:
    parts = urlsplit(url)
    words = [part for part in re.split(r"[/?&=]", f"{parts.path}?{parts.query}") if len(part) >= _SHORTEST_SECRET]
    return [url, parts.path.strip("/"), parts.query, *words, *map(unquote, words)]
