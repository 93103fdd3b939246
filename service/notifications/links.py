"""Links that acknowledge incidents with one click: signed, for one receiver, and good for a limited time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass

from mainstay.service.common.problem import UnprocessableError


class InvalidLinkError(UnprocessableError):
    slug, title = "invalid-acknowledge-link", "Invalid or expired link"


@dataclass(frozen=True, slots=True)
class AcknowledgeLink:
    """What a link allows."""

    group: str
    receiver: str
    """Who got it: named in the timeline of the incidents."""
    expires_at: int
    """Unix seconds."""


def sign(link: AcknowledgeLink, key: bytes) -> str:
    """The token of a link."""
    body = json.dumps(asdict(link), separators=(",", ":")).encode()
    return f"{_encode(body)}.{_encode(_mac(body, key))}"


def verify(token: str, key: bytes, now: float) -> AcknowledgeLink:
    """The link of a token.

    Raises:
        InvalidLinkError: this service did not sign it, or it has expired.
    """
    try:
        body, mac = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
    except ValueError as error:
        raise InvalidLinkError("this link is not complete: copy it whole") from error
    if not hmac.compare_digest(mac, _mac(body, key)):
        raise InvalidLinkError("this service did not make this link")
    link = AcknowledgeLink(**json.loads(body))
    if link.expires_at < now:
        raise InvalidLinkError("this link has expired: sign in and acknowledge the incident there")
    return link


def _mac(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"acknowledge:" + body, hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
