"""A walk over pages sees every row once; a cursor that we did not give is refused in words."""

from __future__ import annotations

import base64
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.service.common.pagination import BadCursorError, decode_cursor, encode_cursor


def test_a_walk_sees_every_row_once(service_anywhere) -> None:
    client: httpx.Client = service_anywhere.client()
    made = {client.post("/v1/auth/tokens", json={"name": f"t{i}", "scopes": ["read"]}).json()["id"] for i in range(7)}
    seen: list[str] = []
    cursor = None
    while True:
        page = client.get("/v1/auth/tokens", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        assert "items" in page, page
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert made <= set(seen)
    assert len(seen) == len(set(seen)) == 8  # the first admin's is there too
    assert seen == sorted(seen, reverse=True)


def forged(values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    ["x", "!!!!", "é", forged([1]), forged({"a": 1}), forged(["nan", "x"]), forged([float("nan"), "x"]),
     forged([1e300, "x"]), forged([1.0, "\x00"]), forged([True, "x"]), forged([10**360, "x"]),
     "A" * 499],
)  # fmt: skip
def test_a_forged_cursor_is_refused(lasting_service, cursor: str) -> None:
    answer = lasting_service.client().get("/v1/auth/tokens", params={"cursor": cursor})
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:mainstay:problem:invalid-cursor"


@given(st.floats(0, 2e11), st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00")))
def test_a_cursor_comes_back_as_it_went(at: float, name: str) -> None:
    assert decode_cursor(encode_cursor([at, name]), [float, str]) == [at, name]


@given(st.text(max_size=60))
def test_no_text_breaks_the_decoder(text: str) -> None:
    try:
        decode_cursor(text, [float, str])
    except BadCursorError:
        return
