"""The contract of a receiver: a model of its configuration that can send one message.

A new kind of receiver costs two files: a module here, listed in ``receivers/__init__.py``, and its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field

from mainstay.service.notifications.message import Message

SecretName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""Name of a file in the secrets directory. Its text is never stored, logged, or answered by the API."""


class DeliveryError(Exception):
    """The receiver did not accept the message.

    Args:
        reason: for the delivery log; never contains a secret.
        again: whether a later attempt can succeed.
    """

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


class HttpPost(Protocol):
    """POST to a URL that an administrator configured; addresses are checked when connecting, redirects not followed."""

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and the first bytes of the answer.

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


def check_status(status: int, answer: bytes) -> None:
    """Judge an HTTP answer.

    Raises:
        DeliveryError: the status is not 2xx. 408, 425, 429, and 5xx are worth another attempt.
    """
    if 200 <= status < 300:
        return
    text = answer[:200].decode(errors="replace").strip()
    raise DeliveryError(f"answers {status}: {text}" if text else f"answers {status}", again=_again(status))


def _again(status: int) -> bool:
    return status in {408, 425, 429} or status >= 500


JSON: dict[str, str] = {"Content-Type": "application/json", "User-Agent": "mainstay"}
Payload = dict[str, Any]
