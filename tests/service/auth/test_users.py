"""Local users: signing in, roles that change, sessions, personal tokens, and the last administrator."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from mainstay.service.auth import passwords
from tests.fakes.clock import ManualClock

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters that are used cost half a second a hash; one test measures them."""
    monkeypatch.setattr(passwords, "_N", 2**4)


def create(service: Any, name: str, **more: Any) -> None:
    body = {"name": name, "password": PASSWORD, "role": "viewer", **more}
    answer = service.client().post("/v1/users", json=body)
    assert answer.status_code == 201, answer.text


def sign_in(service: Any, name: str, password: str = PASSWORD) -> httpx.Client:
    browser: httpx.Client = service.client("", Origin=service.url)
    answer = browser.post("/v1/auth/session", json={"name": name, "password": password})
    assert answer.status_code == 204, answer.text
    return browser


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rsplit(":", 1)[-1]


def test_what_a_user_does_carries_their_name(service_anywhere) -> None:
    create(service_anywhere, "alice@example.com", display_name="Alice", role="operator")
    browser = sign_in(service_anywhere, "alice@example.com")
    me = browser.get("/v1/auth/me").json()
    assert (me["user"], me["display_name"], me["scopes"], me["sign_in"]) == (
        "alice@example.com", "Alice", ["act"], "password",
    )  # fmt: skip
    silence = {"nodes": ["n1"], "ends_at": time.time() + 600, "reason": "replacing a fan"}
    made = browser.post("/v1/silences", json=silence)
    assert made.status_code in {200, 201}, made.text
    assert made.json()["actor"] == "alice@example.com"


def test_a_wrong_password_tells_no_more_than_a_wrong_name(service) -> None:
    create(service, "alice")
    browser = service.client("")
    wrong = [
        browser.post("/v1/auth/session", json={"name": name, "password": "wrong wrong wrong"})
        for name in ("alice", "unknown")
    ]
    assert [answer.status_code for answer in wrong] == [401, 401]
    assert len({answer.json()["detail"] for answer in wrong}) == 1


def test_failed_passwords_are_throttled(start) -> None:
    service = start(auth={"sign_in_failures": 2})
    create(service, "alice")
    statuses = [
        service.client("").post("/v1/auth/session", json={"name": "alice", "password": text}).status_code
        for text in ("wrong", "wrong", PASSWORD)
    ]
    assert statuses == [401, 401, 429]


@pytest.mark.parametrize(
    "body",
    [{}, {"token": "x", "name": "a", "password": "p"}, {"name": "a"}, {"password": "p"}],
)
def test_a_sign_in_is_a_token_or_a_name_and_a_password(lasting_service, body: dict[str, str]) -> None:
    assert lasting_service.client("").post("/v1/auth/session", json=body).status_code == 422


def test_a_hash_takes_a_while_and_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    began = time.process_time()
    stored = passwords.hash_password(PASSWORD)
    assert time.process_time() - began > 0.05
    assert PASSWORD not in stored
    assert passwords.check_password(PASSWORD, stored)
    assert not passwords.check_password(PASSWORD + "x", stored)
    assert not passwords.check_password(PASSWORD, None)


@pytest.mark.parametrize("password", ["short", "alice-alice-alice"])
def test_a_weak_password_is_refused(service, password: str) -> None:
    answer = service.client().post("/v1/users", json={"name": "alice-alice", "password": password, "role": "viewer"})
    assert answer.status_code == 422


def test_a_role_changes_at_once_for_sessions_and_tokens(service_anywhere) -> None:
    create(service_anywhere, "bob", role="operator")
    browser = sign_in(service_anywhere, "bob")
    body = {"name": "laptop", "scopes": ["act"], "personal": True}
    secret = browser.post("/v1/auth/tokens", json=body).json()["token"]
    laptop, admin = service_anywhere.client(secret), service_anywhere.client()
    assert laptop.get("/v1/auth/me").json()["scopes"] == ["act"]
    changed = admin.put("/v1/users/bob/access", json={"role": "viewer"})
    assert (changed.status_code, changed.json()["role"]) == (200, "viewer")
    for client in (browser, laptop):
        assert client.get("/v1/auth/me").json()["scopes"] == ["read"]
        assert problem(client.post("/v1/nodes/n1:drain", json={"reason": "x"})) == (403, "scope-missing")


def test_another_process_learns_of_a_change(start, database_url) -> None:
    here, there = (start(database_url=database_url) for _ in range(2))
    create(here, "bob", role="operator")
    browser, deadline = sign_in(here, "bob"), time.monotonic() + 30
    secret = browser.post("/v1/auth/tokens", json={"name": "t", "scopes": ["act"], "personal": True}).json()["token"]
    elsewhere = there.client(secret)
    assert elsewhere.get("/v1/auth/me").json()["scopes"] == ["act"]
    for verb, expected in (("disable", 401), ("enable", 200), ("disable", 401)):
        assert here.client().post(f"/v1/users/bob:{verb}").status_code == 200
        while elsewhere.get("/v1/auth/me").status_code != expected:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_disabled_user_is_out_at_once_and_may_come_back(service) -> None:
    create(service, "bob")
    browser, admin = sign_in(service, "bob"), service.client()
    secret = browser.post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"], "personal": True}).json()["token"]
    assert admin.post("/v1/users/bob:disable").status_code == 200
    assert browser.get("/v1/auth/me").status_code == 401
    assert service.client(secret).get("/v1/auth/me").status_code == 401
    answer = service.client("").post("/v1/auth/session", json={"name": "bob", "password": PASSWORD})
    assert answer.status_code == 401
    assert admin.post("/v1/users/bob:enable").status_code == 200
    assert browser.get("/v1/auth/me").status_code == 401
    assert service.client(secret).get("/v1/auth/me").status_code == 200
    sign_in(service, "bob")


def test_a_user_changes_the_password_and_is_signed_out(service) -> None:
    create(service, "bob")
    browser, new = sign_in(service, "bob"), "another good password"
    wrong = {"current_password": "wrong wrong wrong", "password": new}
    assert browser.put("/v1/auth/password", json=wrong).status_code == 422
    assert browser.put("/v1/auth/password", json=wrong | {"current_password": PASSWORD}).status_code == 204
    assert browser.get("/v1/auth/me").status_code == 401
    sign_in(service, "bob", new)
    assert service.client().put("/v1/auth/password", json=wrong).status_code == 422  # a token has none


def test_a_user_sees_and_ends_their_own_sessions_only(service) -> None:
    create(service, "bob")
    create(service, "eve")
    first, second, eve = (sign_in(service, name) for name in ("bob", "bob", "eve"))
    items = first.get("/v1/auth/sessions").json()["items"]
    assert [item["user"] for item in items] == ["bob", "bob"]
    assert sum(item["is_current"] for item in items) == 1
    other = next(item["id"] for item in items if not item["is_current"])
    assert eve.delete(f"/v1/auth/sessions/{other}").status_code == 404
    assert first.delete(f"/v1/auth/sessions/{other}").status_code == 204
    assert second.get("/v1/auth/me").status_code == 401
    assert first.get("/v1/auth/me").status_code == 200
    assert len(service.client().get("/v1/auth/sessions").json()["items"]) == 2


def test_a_session_ends_with_time(start) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock, auth={"session_hours": 1})
    create(service, "bob")
    browser = sign_in(service, "bob")
    clock.advance(3601)
    assert browser.get("/v1/auth/me").status_code == 401
    assert service.client().get("/v1/auth/sessions").json()["items"] == []


def test_only_an_admin_makes_tokens_of_others(service) -> None:
    create(service, "bob", role="operator")
    browser = sign_in(service, "bob")
    assert problem(browser.post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]})) == (403, "scope-missing")
    assert browser.get("/v1/auth/tokens").json()["items"] == []
    mine = browser.post("/v1/auth/tokens", json={"name": "t", "scopes": ["admin"], "personal": True}).json()
    assert (mine["user"], service.client(mine["token"]).get("/v1/auth/me").json()["scopes"]) == ("bob", ["act"])
    others = service.client().post("/v1/auth/tokens", json={"name": "o", "scopes": ["read"]}).json()["id"]
    assert problem(browser.delete(f"/v1/auth/tokens/{others}")) == (404, "unknown-token")
    assert browser.delete(f"/v1/auth/tokens/{mine['id']}").status_code == 204


def test_the_use_of_a_token_is_stored(start) -> None:
    clock = ManualClock(1_800_000_000.0)
    service = start(clock)
    service.hold_still()
    made = service.client().post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]}).json()
    assert made["last_used_at"] is None
    service.client(made["token"]).get("/v1/nodes")
    next(loop for loop in service.app.state.loops if loop.name == "auth-last-use").turn()
    listed = service.client().get("/v1/auth/tokens").json()["items"]
    assert next(item["last_used_at"] for item in listed if item["id"] == made["id"]) == 1_800_000_000.0


def test_somebody_can_always_manage_users(service) -> None:
    create(service, "root", role="admin")
    root = sign_in(service, "root")
    first = service.client().get("/v1/auth/tokens").json()["items"][-1]["id"]
    assert root.delete(f"/v1/auth/tokens/{first}").status_code == 204
    assert problem(root.put("/v1/users/root/access", json={"role": "viewer"})) == (409, "last-admin")
    assert problem(root.post("/v1/users/root:disable")) == (409, "last-admin")
    body = {"name": "second", "password": PASSWORD, "role": "admin"}
    assert root.post("/v1/users", json=body).status_code == 201
    assert root.put("/v1/users/root/access", json={"role": "viewer"}).status_code == 200


@pytest.mark.parametrize(
    ("access", "named"),
    [({"teams": ["none"], "team_role": "viewer"}, "none"), ({"teams": []} | {"team_role": "viewer"}, "team_role")],
)
def test_access_that_cannot_be_is_refused(service, access: dict[str, Any], named: str) -> None:
    answer = service.client().post("/v1/users", json={"name": "x", **access})
    assert (answer.status_code, named in answer.json()["detail"]) == (422, True)


def test_a_team_that_ends_takes_its_jobs_from_its_members(service) -> None:
    admin = service.client()
    assert admin.put("/v1/teams/vision", json={"jobs": ["vision-*"]}).status_code == 200
    create(service, "bob", role=None, teams=["vision"], team_role="operator")
    browser = sign_in(service, "bob")
    token = admin.post("/v1/auth/tokens", json={"name": "ci", "scopes": ["act"], "team": "vision"}).json()["token"]
    assert browser.get("/v1/auth/me").json()["jobs"] == ["vision-*"]
    assert admin.put("/v1/teams/vision", json={"jobs": ["vision-*", "v2"]}).status_code == 200
    assert browser.get("/v1/auth/me").json()["jobs"] == ["v2", "vision-*"]
    assert admin.delete("/v1/teams/vision").status_code == 204
    assert browser.get("/v1/jobs").status_code == 403
    assert service.client(token).get("/v1/jobs").status_code == 401
    assert admin.get("/v1/users").json()["items"][0]["teams"] == []


@pytest.mark.parametrize("pattern", ["*x", "a b", "a**", ""])
def test_a_pattern_that_matches_nothing_is_refused(lasting_service, pattern: str) -> None:
    assert lasting_service.client().put("/v1/teams/t", json={"jobs": [pattern]}).status_code == 422
