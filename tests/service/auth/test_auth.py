"""Who may do what, over real HTTP."""

from __future__ import annotations

import re
import time

import httpx
import pytest

from mainstay.probes.ids import uuid7
from mainstay.service.auth.tokens import NotYourRackError, Principal, Scope, TokenKind
from tests.fakes.clock import ManualClock


def slug(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["type"]).removeprefix("urn:mainstay:problem:")


def make(client: httpx.Client, **body: object) -> str:
    answer = client.post("/v1/auth/tokens", json={"name": "t", **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def test_the_first_start_makes_an_admin_and_keeps_its_token_private(service) -> None:
    file = service.settings.data_dir / "admin-token"
    assert file.stat().st_mode & 0o777 == 0o600
    me = service.client().get("/v1/auth/me").json()
    assert me.items() >= {"subject": "first admin", "scopes": ["admin"], "kind": "admin", "racks": None}.items()


def test_the_second_start_does_not(start) -> None:
    first = start()
    token = first.admin_token
    second = start()
    assert second.app.state.first_code is None
    assert second.client(token).get("/v1/auth/me").status_code == 200


def test_no_secret_is_stored(service) -> None:
    secret = make(service.client(), scopes=["read"])
    raw = b"".join(path.read_bytes() for path in service.settings.data_dir.glob("mainstay.db*"))
    assert secret.encode() not in raw
    assert service.admin_token.encode() not in raw
    listed = service.client().get("/v1/auth/tokens").text
    assert secret not in listed
    assert secret[:15] in listed


@pytest.mark.parametrize("header", ["", "Bearer", "Basic eDp5", "Bearer nope", "bearer mst_admin_x"])
def test_a_bad_authorization_is_401_and_says_how(lasting_service, header: str) -> None:
    answer = lasting_service.client("").get("/v1/auth/me", headers={"Authorization": header} if header else {})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert slug(answer) == "unauthorized"


SCOPES = {
    "read": {"read": 200, "report": 403, "act": 403, "admin": 403},
    "report": {"read": 200, "admin": 403},
    "act": {"read": 200, "admin": 403},
    "admin": {"read": 200, "admin": 200},
}
ENDPOINTS = {"read": "/v1/nodes", "admin": "/v1/users"}


@pytest.mark.parametrize("scope", SCOPES)
def test_scopes_open_their_endpoints_only(service, scope: str) -> None:
    client = service.client(make(service.client(), scopes=[scope]))
    for endpoint, path in ENDPOINTS.items():
        assert client.get(path).status_code == SCOPES[scope][endpoint], endpoint
    report = client.put("/v1/telemetry/catalogs/" + "0" * 16, json={"narrow": ["load_1m"], "wide": []})
    assert report.status_code == (422 if scope in {"report", "admin"} else 403)


def test_a_revoked_token_is_over_at_once(service) -> None:
    admin = service.client()
    created = admin.post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]}).json()
    client = service.client(created["token"])
    assert client.get("/v1/auth/me").status_code == 200
    assert admin.delete(f"/v1/auth/tokens/{created['id']}").status_code == 204
    assert client.get("/v1/auth/me").status_code == 401
    again = admin.delete(f"/v1/auth/tokens/{created['id']}")
    assert (again.status_code, slug(again)) == (404, "unknown-token")


@pytest.mark.slow
def test_a_revocation_by_another_process_arrives_soon(start) -> None:
    first = start(auth={"cache_seconds": 3600, "revocation_seconds": 0.05})
    second = start()
    created = first.client().post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]}).json()
    client = first.client(created["token"])
    assert client.get("/v1/auth/me").status_code == 200
    browser = first.client("")
    browser.post("/v1/auth/session", json={"token": first.admin_token})
    cookie = browser.cookies["mainstay_session"]
    assert browser.get("/v1/auth/me").status_code == 200
    elsewhere = second.client("", Cookie=f"mainstay_session={cookie}", **{"Sec-Fetch-Site": "same-origin"})
    assert elsewhere.delete("/v1/auth/session").status_code == 204
    second.client(first.admin_token).delete(f"/v1/auth/tokens/{created['id']}")
    deadline = time.monotonic() + 60
    while client.get("/v1/auth/me").status_code != 401 or browser.get("/v1/auth/me").status_code != 401:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_tokens_expire_even_in_the_cache(start) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock, auth={"cache_seconds": 3600})
    client = service.client(make(service.client(), scopes=["read"], expires_in=60))
    assert client.get("/v1/auth/me").status_code == 200
    clock.advance(61)
    assert client.get("/v1/auth/me").status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        {}, {"name": ""}, {"name": "x"}, {"name": "x", "scopes": ["root"]}, {"name": "x", "kind": "admin"},
        {"name": "x", "kind": "job", "scopes": ["admin"]}, {"name": "x", "kind": "node", "scopes": ["report"]},
        {"name": "x", "scopes": ["read"], "expires_in": -1}, {"name": "x", "scopes": ["read"], "more": 1},
        {"name": "x\x00", "scopes": ["read"]}, {"name": "x", "scopes": ["read"], "node": "a b"},
        {"name": "x", "kind": "relay"}, {"name": "x", "scopes": ["read"], "racks": ["r"]},
        {"name": "x", "kind": "relay", "racks": ["a b"]},
        {"name": "x", "kind": "relay", "racks": ["r"], "scopes": ["act"]},
    ],
)  # fmt: skip
def test_bad_tokens_are_not_made(lasting_service, body: dict[str, object]) -> None:
    answer = lasting_service.client().post("/v1/auth/tokens", json=body)
    assert answer.status_code == 422
    assert slug(answer) == "invalid"
    assert len(lasting_service.client().get("/v1/auth/tokens").json()["items"]) == 1


# sessions


@pytest.fixture
def browser(service) -> httpx.Client:
    """Signed in by cookie."""
    client = service.client("")
    answer = client.post("/v1/auth/session", json={"token": service.admin_token})
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/"))
    return client


def test_a_cookie_reads(browser) -> None:
    assert browser.get("/v1/auth/me").json()["kind"] == "admin"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 201),
    ],
)
def test_a_cookie_changes_things_from_our_own_pages_only(browser, headers: dict[str, str], status: int) -> None:
    answer = browser.post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]}, headers=headers)
    assert answer.status_code == status, answer.text
    assert status == 201 or slug(answer) == "cross-origin"


def test_our_own_origin_will_do_where_a_browser_sends_no_metadata(browser) -> None:
    origin = str(browser.base_url).rstrip("/")
    answer = browser.post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]}, headers={"Origin": origin})
    assert answer.status_code == 201


def test_signing_out_ends_the_session(service, browser) -> None:
    cookie = browser.cookies["mainstay_session"]
    assert browser.delete("/v1/auth/session", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 204
    again = service.client("", Cookie=f"mainstay_session={cookie}").get("/v1/auth/me")
    assert again.status_code == 401


def test_a_session_ends_with_its_token_and_with_time(start) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock, auth={"session_hours": 1, "cache_seconds": 3600})
    created = service.client().post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]}).json()
    first, second = service.client(""), service.client("")
    for client in (first, second):
        assert client.post("/v1/auth/session", json={"token": created["token"]}).status_code == 204
    assert first.get("/v1/auth/me").status_code == 200
    clock.advance(3601)
    assert first.get("/v1/auth/me").status_code == 401
    assert second.post("/v1/auth/session", json={"token": created["token"]}).status_code == 204
    assert service.client().delete(f"/v1/auth/tokens/{created['id']}").status_code == 204
    assert second.get("/v1/auth/me").status_code == 401


def test_signing_in_with_nothing_is_refused(service) -> None:
    client = service.client("")
    assert client.post("/v1/auth/session", json={"token": "nope"}).status_code == 401
    assert client.post("/v1/auth/session", json={"token": ""}).status_code == 422
    join = make(service.client(), kind="join")
    assert client.post("/v1/auth/session", json={"token": join}).status_code == 401
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        foreign = client.post("/v1/auth/session", json={"token": service.admin_token}, headers=headers)
        assert foreign.status_code == 403


# sign-in codes


def signed_in(client: httpx.Client, code: str) -> int:
    return client.post("/v1/auth/session", json={"token": code}).status_code


def test_a_code_signs_in_once_as_whoever_made_it(service_anywhere) -> None:
    code = service_anywhere.client().post("/v1/auth/sign-in-codes").json()["code"]
    first, second = service_anywhere.client(""), service_anywhere.client("")
    assert signed_in(first, code) == 204
    assert first.get("/v1/auth/me").json()["kind"] == "admin"
    assert signed_in(second, code) == 401
    assert second.get("/v1/auth/me").status_code == 401


def test_the_first_code_is_the_administrators_and_no_token(service) -> None:
    code = service.app.state.first_code
    assert service.client(code).get("/v1/auth/me").status_code == 401
    assert service.client("", Cookie=f"mainstay_session={code}").get("/v1/auth/me").status_code == 401
    browser = service.client("")
    assert signed_in(browser, code) == 204
    me = browser.get("/v1/auth/me").json()
    assert (me["subject"], me["scopes"], me["kind"], me["user"]) == ("first admin", ["admin"], "admin", None)


def test_a_code_ends_with_time_and_with_its_token(start) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock, auth={"sign_in_code_seconds": 60})
    created = service.client().post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]}).json()
    codes = [service.client(created["token"]).post("/v1/auth/sign-in-codes").json()["code"] for _ in range(2)]
    clock.advance(61)
    assert signed_in(service.client(""), codes[0]) == 401
    codes.append(service.client(created["token"]).post("/v1/auth/sign-in-codes").json()["code"])
    assert service.client().delete(f"/v1/auth/tokens/{created['id']}").status_code == 204
    assert signed_in(service.client(""), codes[2]) == 401


def test_a_session_makes_no_code(browser) -> None:
    refused = browser.post("/v1/auth/sign-in-codes", headers={"Sec-Fetch-Site": "same-origin"})
    assert refused.status_code == 403


def test_failed_sign_ins_are_throttled_also_with_the_right_token(start) -> None:
    service = start(auth={"sign_in_failures": 3})
    client = service.client("")
    assert signed_in(client, service.admin_token) == 204, "what succeeds costs nothing"
    assert [signed_in(client, f"mst_code_{n}") for n in range(3)] == [401, 401, 401]
    refused = client.post("/v1/auth/session", json={"token": service.admin_token})
    assert (refused.status_code, slug(refused)) == (429, "too-many-requests")
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert service.client().get("/v1/auth/me").status_code == 200, "a token still works"


def test_another_sites_page_cannot_use_up_the_attempts(start) -> None:
    service = start(auth={"sign_in_failures": 1})
    client = service.client("")
    foreign = [
        client.post("/v1/auth/session", json={"token": "x"}, headers={"Sec-Fetch-Site": "cross-site"}) for _ in range(3)
    ]
    assert {answer.status_code for answer in foreign} == {403}
    assert signed_in(client, service.admin_token) == 204


def test_behind_a_trusted_proxy_each_user_has_attempts_of_their_own(start) -> None:
    client = start(auth={"sign_in_failures": 1}).client("")
    asked = [
        client.post("/v1/auth/session", json={"token": "x"}, headers={"X-Forwarded-For": address})
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2")
    ]
    assert [answer.status_code for answer in asked] == [401, 429, 401]


# enrolling


def test_a_join_token_is_spent_once(service_anywhere) -> None:
    join = service_anywhere.client(make(service_anywhere.client(), kind="join"))
    answer = join.post("/v1/nodes:enroll", json={"name": "n1"})
    assert (answer.status_code, answer.json()["node"]) == (201, "n1")
    assert service_anywhere.client(answer.json()["token"]).get("/v1/auth/me").json().items() >= {
        "subject": "n1", "scopes": ["report"], "kind": "node", "racks": [""],
    }.items()  # fmt: skip
    assert join.post("/v1/nodes:enroll", json={"name": "n2"}).status_code == 401
    assert service_anywhere.client().get("/v1/nodes").json()["items"][0]["state"] == "unknown"


def test_a_join_token_opens_nothing_else(service) -> None:
    join = service.client(make(service.client(), kind="join"))
    assert join.get("/v1/nodes").status_code == 403
    assert join.get("/v1/auth/me").status_code == 403


def test_only_a_join_token_enrolls(service) -> None:
    assert service.client().post("/v1/nodes:enroll", json={"name": "n1"}).status_code == 403


def test_a_known_name_needs_a_join_token_of_its_own(service) -> None:
    admin = service.client()
    old = service.node_client("n1")
    stranger = service.client(make(admin, kind="join"))
    taken = stranger.post("/v1/nodes:enroll", json={"name": "n1"})
    assert (taken.status_code, slug(taken)) == (409, "node-exists")
    bound = service.client(make(admin, kind="join", node="n1"))
    assert bound.post("/v1/nodes:enroll", json={"name": "other"}).status_code == 403
    assert bound.post("/v1/nodes:enroll", json={"name": "n1"}).status_code == 201
    assert old.get("/v1/auth/me").status_code == 401, "its earlier credential is over"


def test_a_join_token_expires(start) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock, auth={"join_token_hours": 1})
    join = service.client(make(service.client(), kind="join"))
    clock.advance(3601)
    assert join.post("/v1/nodes:enroll", json={"name": "n1"}).status_code == 401


def test_a_node_writes_only_its_own_report(service, report) -> None:
    node = service.node_client("n1")
    assert node.put("/v1/nodes/n1", json=report).status_code == 200
    foreign = node.put("/v1/nodes/n2", json=report)
    assert (foreign.status_code, slug(foreign)) == (403, "wrong-node")
    assert node.get("/v1/auth/me").json()["racks"] == [report.get("rack", "")]
    assert service.client().put("/v1/nodes/n2", json=report).status_code == 200, "an admin may"
    user = service.client(make(service.client(), scopes=["report"]))
    assert user.put("/v1/nodes/n1", json=report).status_code == 403


def test_a_relay_token_is_bound_to_racks_and_writes_nothing_of_a_node_or_a_job(service, report) -> None:
    relay = service.client(make(service.client(), kind="relay", racks=["rack-1", "rack-1", "rack-2"]))
    assert (
        relay.get("/v1/auth/me").json().items()
        >= {
            "subject": "t",
            "scopes": ["report"],
            "kind": "relay",
            "racks": ["rack-1", "rack-2"],
        }.items()
    )
    listed = service.client().get("/v1/auth/tokens").json()["items"][0]
    assert (listed["kind"], listed["racks"]) == ("relay", ["rack-1", "rack-2"])
    assert slug(relay.put("/v1/nodes/n1", json=report)) == "wrong-node"
    event = {"id": uuid7(), "time": time.time(), "kind": "job_started", "node": None, "job": "j", "data": {}}
    assert slug(relay.post("/v1/events", json={"items": [event]})) == "wrong-job"


@pytest.mark.parametrize(
    ("racks", "carried", "refused"),
    [
        ({"rack-1"}, ["rack-1"], ["rack-2", "", None, "*"]),
        ({"rack-1", "rack-2"}, ["rack-1", "rack-2"], ["rack-3"]),
        ({"*"}, ["rack-1", "", None], []),
        (set(), [], ["rack-1", "", "*"]),
    ],
)
def test_a_relay_carries_frames_of_its_racks(
    racks: set[str], carried: list[str | None], refused: list[str | None]
) -> None:
    relay = Principal("id", TokenKind.RELAY, "r1", frozenset({Scope.REPORT}), racks=frozenset(racks))
    for rack in carried:
        relay.require_relayed("n1", rack)
    for rack in refused:
        with pytest.raises(NotYourRackError, match=re.escape(f"frames of node 'n1' in rack {rack!r}")):
            relay.require_relayed("n1", rack)


def test_no_other_token_carries_frames_of_others() -> None:
    for kind in set(TokenKind) - {TokenKind.RELAY}:
        with pytest.raises(NotYourRackError):
            Principal("id", kind, "x", frozenset({Scope.REPORT}), racks=frozenset({"*"})).require_relayed(
                "n1", "rack-1"
            )
    Principal("id", TokenKind.ADMIN, "x", frozenset({Scope.ADMIN})).require_relayed("n1", "rack-1")
