"""Links that acknowledge."""

from __future__ import annotations

import pytest

from mainstay.service.notifications.links import AcknowledgeLink, InvalidLinkError, sign, verify

KEY = b"k" * 32
LINK = AcknowledgeLink("g1", "oncall", 1000)
OTHER = AcknowledgeLink("g2", "oncall", 1000)


def test_a_link_is_what_was_signed() -> None:
    token = sign(LINK, KEY)
    assert verify(token, KEY, now=1000.0) == LINK
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
        (sign(AcknowledgeLink("g1", "oncall", 999), KEY), "expired"),
    ],
)
def test_others_are_refused(token: str, fault: str) -> None:
    with pytest.raises(InvalidLinkError, match=fault):
        verify(token, KEY, now=1000.0)
