"""Links that act without signing in: signed for one purpose, and valid for a limited time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import ClassVar, TypeVar

from mainstay.service.common.problem import UnprocessableError


class InvalidLinkError(UnprocessableError):
    slug, title = "invalid-link", "Invalid or expired link"


@dataclass(frozen=True, kw_only=True)
class SignedLink:
    """What a link allows. A subclass names its purpose: a link of one purpose is not valid for another one."""

    purpose: ClassVar[str]
    expires_at: int
    """Unix seconds."""


_Link = TypeVar("_Link", bound=SignedLink)


def sign(link: SignedLink, key: bytes) -> str:
    """The token of a link."""
    body = json.dumps(asdict(link), separators=(",", ":")).encode()
    return f"{_encode(body)}.{_encode(_mac(link.purpose, body, key))}"


def verify(kind: type[_Link], token: str, key: bytes, now: float) -> _Link:
    """The link of a token.

    Args:
        kind: what the link must allow.
        token: see ``sign``.
        key: that signed it.
        now: Unix seconds.

    Raises:
        InvalidLinkError: this service did not sign it for this purpose, or it has expired.
    """
    try:
        body, mac = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
    except ValueError as error:
        raise InvalidLinkError("this link is not complete: copy it whole") from error
    if not hmac.compare_digest(mac, _mac(kind.purpose, body, key)):
        raise InvalidLinkError("this service did not make this link")
    link = kind(**json.loads(body))
    if link.expires_at < now:
        raise InvalidLinkError("this link has expired: sign in to see the incident, or ask for a new link")
    return link


def _mac(purpose: str, body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + b":" + body, hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
