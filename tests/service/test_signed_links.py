"""Links that act without signing in."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from mainstay.service.common.signed_links import InvalidLinkError, SignedLink, sign, verify
from mainstay.service.notifications.links import AcknowledgeLink

KEY = b"k" * 32
LINK = AcknowledgeLink(group="g1", receiver="oncall", expires_at=1000)
OTHER = AcknowledgeLink(group="g2", receiver="oncall", expires_at=1000)


@dataclass(frozen=True, kw_only=True)
class OtherLink(SignedLink):
    purpose: ClassVar[str] = "other"
    group: str
    receiver: str


def test_a_link_is_what_was_signed() -> None:
    token = sign(LINK, KEY)
    assert verify(AcknowledgeLink, token, KEY, now=1000.0) == LINK
    assert not set(token) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        ("", "not complete"),
        ("abc", "not complete"),
        ("a.b.c", "not complete"),
        ("é.é", "not complete"),
        (sign(LINK, b"x" * 32), "did not make this link"),
        (sign(LINK, KEY)[:-1], "did not make this link"),
        (sign(OTHER, KEY).split(".")[0] + "." + sign(LINK, KEY).split(".")[1], "did not"),
        (sign(OtherLink(group="g1", receiver="oncall", expires_at=1000), KEY), "did not make this link"),
        (sign(AcknowledgeLink(group="g1", receiver="oncall", expires_at=999), KEY), "expired"),
    ],
)
def test_others_are_refused(token: str, fault: str) -> None:
    with pytest.raises(InvalidLinkError, match=fault):
        verify(AcknowledgeLink, token, KEY, now=1000.0)


def test_the_body_can_be_read_but_not_changed() -> None:
    body, mac = sign(LINK, KEY).split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert claims == {"group": "g1", "receiver": "oncall", "expires_at": 1000}
    changed = base64.urlsafe_b64encode(json.dumps(claims | {"expires_at": 9000}).encode()).rstrip(b"=").decode()
    with pytest.raises(InvalidLinkError, match="did not make"):
        verify(AcknowledgeLink, f"{changed}.{mac}", KEY, now=0.0)
