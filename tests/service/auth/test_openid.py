"""Sign-in through an OpenID Connect provider: a real one in a process of its own, and forged answers."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from mainstay.service.auth import openid, openid_users
from mainstay.service.auth.openid import OpenIdError, Pending
from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.config.openid_settings import OpenIdSettings

DASHBOARD = "http://dashboard.example"
PEOPLE = [
    {"sub": "1", "preferred_username": "ada", "name": "Ada L.", "groups": ["ops", "everyone"]},
    {"sub": "2", "preferred_username": "ben", "groups": ["ml-vision"]},
    {"sub": "3", "preferred_username": "cyd", "groups": ["guests"]},
    {"sub": "4", "preferred_username": "ada", "groups": ["everyone"]},
]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[str]:
    """The URL of a provider that knows ``PEOPLE``."""
    port, log = free_port(), tmp_path_factory.mktemp("openid") / "log"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "oidc_provider_mock",
        "--port",
        str(port),
        "--require-nonce",
        "true",
    ]
    for claims in PEOPLE:
        command += ["--user-claims", json.dumps(claims)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
        try:
            while True:
                try:
                    httpx.get(f"{url}/.well-known/openid-configuration").raise_for_status()
                    break
                except httpx.HTTPError:
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.05)
            yield url
        finally:
            process.kill()


@pytest.fixture
def service(start: Callable[..., Any], provider: str, tmp_path: Path) -> Any:
    (tmp_path / "client-secret").write_text("s3cret\n")
    settings = {
        "issuer": provider, "client_id": "mainstay", "client_secret_file": tmp_path / "client-secret",
        "label": "Example Login", "operator_groups": ["ops"], "viewer_groups": ["everyone"],
    }  # fmt: skip
    return start(openid=settings, notifications={"dashboard_url": DASHBOARD})


def leave(browser: httpx.Client, next_path: str = "/jobs") -> str:
    """Leave for the provider; the URL that it was sent to."""
    answer = browser.get("/v1/auth/openid", params={"next": next_path})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def authorize(url: str, sub: str) -> dict[str, str]:
    """Sign in at the provider; the query with which it sends the browser back."""
    answer = httpx.post(url, data={"sub": sub})
    assert answer.status_code == 302, answer.text
    back = urlsplit(answer.headers["location"])
    assert f"{back.scheme}://{back.netloc}{back.path}" == f"{DASHBOARD}/v1/auth/openid/callback"
    return {name: values[0] for name, values in parse_qs(back.query).items()}


def come_back(browser: httpx.Client, query: dict[str, str]) -> str:
    """Where the dashboard sends the browser."""
    answer = browser.get("/v1/auth/openid/callback", params=query)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def sign_in(service: Any, sub: str) -> tuple[httpx.Client, str]:
    browser = service.client("", Origin=service.url)
    return browser, come_back(browser, authorize(leave(browser), sub))


def test_the_provider_is_offered(service) -> None:
    assert service.client("").get("/v1/auth/sign-in-options").json() == {"openid": "Example Login", "users": False}


def test_a_user_signs_in_with_the_role_of_their_groups(service) -> None:
    browser, target = sign_in(service, "1")
    assert target == "/jobs"
    me = browser.get("/v1/auth/me").json()
    assert (me["user"], me["display_name"], me["scopes"], me["sign_in"]) == ("ada", "Ada L.", ["act"], "openid")
    user = service.client().get("/v1/users").json()["items"][0]
    assert (user["name"], user["role"], user["has_password"]) == ("ada", "operator", False)
    act = service.client().get("/v1/audit-log", params={"action": "sign_in"}).json()["items"][0]
    assert (act["actor"], act["actor_kind"]) == ("ada", "user")


def test_groups_make_members_of_teams(service) -> None:
    service.client().put("/v1/teams/vision", json={"jobs": ["vision-*"], "groups": ["ml-vision"]})
    browser, _ = sign_in(service, "2")
    me = browser.get("/v1/auth/me").json()
    assert (me["scopes"], me["job_scopes"], me["jobs"]) == ([], ["act"], ["vision-*"])


def test_a_user_in_no_group_is_refused_with_a_reason(service) -> None:
    browser, target = sign_in(service, "3")
    assert target == "/sign-in?refused=no_access"
    assert browser.get("/v1/auth/me").status_code == 401


def test_a_disabled_user_is_refused(service) -> None:
    sign_in(service, "1")
    service.client().post("/v1/users/ada:disable")
    assert sign_in(service, "1")[1] == "/sign-in?refused=disabled"


def test_two_users_of_one_name_are_two(service) -> None:
    sign_in(service, "1")
    browser, _ = sign_in(service, "4")
    me = browser.get("/v1/auth/me").json()
    assert (me["user"], me["scopes"]) == ("ada-2", ["read"])


def test_the_state_of_another_browser_is_refused(service) -> None:
    victim, attacker = (service.client("", Origin=service.url) for _ in range(2))
    query = authorize(leave(attacker), "1")
    assert come_back(victim, query) == "/sign-in?refused=openid_expired"  # it never left
    leave(victim)
    assert come_back(victim, query) == "/sign-in?refused=openid_expired"
    assert victim.get("/v1/auth/me").status_code == 401


def test_a_code_works_once(service) -> None:
    browser = service.client("", Origin=service.url)
    url = leave(browser)
    query = authorize(url, "1")
    cookie = browser.cookies.get("mainstay_openid")
    assert come_back(browser, query) == "/jobs"
    again = service.client("", Cookie=f"mainstay_openid={cookie}")
    assert come_back(again, query) == "/sign-in?refused=openid_failed"


def test_the_challenge_is_of_the_verifier_that_the_browser_keeps(service) -> None:
    browser = service.client("")
    query = parse_qs(urlsplit(leave(browser)).query)
    pending = Pending.from_cookie(browser.cookies.get("mainstay_openid") or "")
    digest = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).decode().rstrip("=")
    assert (query["code_challenge"], query["code_challenge_method"]) == ([digest], ["S256"])
    assert (query["state"], query["nonce"]) == ([pending.state], [pending.nonce])


def test_what_the_provider_denies_is_said(service) -> None:
    browser = service.client("", Origin=service.url)
    state = parse_qs(urlsplit(leave(browser)).query)["state"][0]
    query = {"error": "access_denied", "state": state}
    assert come_back(browser, query) == "/sign-in?refused=openid_denied"


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "/a b"])
def test_the_browser_never_leaves_the_dashboard_afterwards(service, path: str) -> None:
    browser = service.client("", Origin=service.url)
    assert come_back(browser, authorize(leave(browser, path), "1")) == "/"


def test_without_a_provider_there_is_no_such_route(lasting_service) -> None:
    client = lasting_service.client("")
    assert client.get("/v1/auth/openid").status_code == 404
    assert client.get("/v1/auth/sign-in-options").json()["openid"] is None


def test_a_provider_that_is_down_is_a_sentence_on_the_page(start, free_port) -> None:
    service = start(openid={"issuer": f"http://127.0.0.1:{free_port()}", "client_id": "mainstay"})
    assert leave(service.client("")) == "/sign-in?refused=openid_failed"


def test_a_provider_that_failed_is_not_asked_again_at_once(free_port) -> None:
    now = 100.0
    settings = OpenIdSettings(issuer=f"http://127.0.0.1:{free_port()}", client_id="mainstay")
    provider = openid.Provider(settings, AddressPolicy(), lambda: now, time.time)
    for reason in ("refused", "a moment ago"):
        with pytest.raises(OpenIdError, match=reason):
            provider.metadata()
    now += 60
    with pytest.raises(OpenIdError, match="refused"):
        provider.metadata()


@pytest.mark.parametrize("issuer", ["http://idp.example", "https://", "ftp://x", "https://a.example?x=1"])
def test_an_issuer_is_https(issuer: str) -> None:
    with pytest.raises(ValueError, match="https"):
        OpenIdSettings(issuer=issuer)


ISSUER, NONCE, NOW = "https://idp.example", "n-1", 1_800_000_000
KEY, OTHER = (RSAKey.generate_key(2048, {"kid": kid, "alg": "RS256"}) for kid in ("k1", "k2"))
CLAIMS = {"iss": ISSUER, "aud": "mainstay", "sub": "1", "exp": NOW + 300, "iat": NOW, "nonce": NONCE, "groups": []}


class ForgedProvider(openid.Provider):
    """A provider whose answers a test gives; what is checked of them is the real code."""

    token = ""

    def _ask(self, method: str, url: str, **_: Any) -> dict[str, Any]:
        if url.endswith("openid-configuration"):
            return {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/jwks", "token_endpoint": f"{ISSUER}/token"}
        return {"keys": [KEY.as_dict(private=False)]} if url.endswith("jwks") else {"id_token": self.token}


def claims_of(token: str) -> dict[str, Any]:
    settings = OpenIdSettings(issuer=ISSUER, client_id="mainstay")
    forged = ForgedProvider(settings, AddressPolicy(), time.monotonic, lambda: NOW)
    forged.token = token
    return forged.claims("code", Pending("s", NONCE, "v", "/"), "https://d.example/callback")


def signed(key: Any = KEY, header: dict[str, Any] | None = None, **changed: Any) -> str:
    return jwt.encode({"alg": "RS256", "kid": "k1", **(header or {})}, CLAIMS | changed, key)


def test_a_good_id_token_is_taken() -> None:
    assert claims_of(signed())["sub"] == "1"


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": "https://evil.example"}, {"aud": "another"}, {"aud": ["mainstay", "another"]}, {"exp": NOW - 61},
        {"nonce": "n-2"}, {"nonce": None}, {"sub": ""}, {"exp": None},
    ],
)  # fmt: skip
def test_a_token_for_another_one_or_another_time_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(OpenIdError):
        claims_of(signed(**changed))


def test_a_token_of_another_key_is_refused() -> None:
    with pytest.raises(OpenIdError):
        claims_of(signed(OTHER))
    with pytest.raises(OpenIdError):
        claims_of(signed(OTHER, {"kid": "k2"}))


def test_a_token_without_a_signature_is_refused() -> None:
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, CLAIMS)
    )
    with pytest.raises(OpenIdError):
        claims_of(f"{head}.{body}.")


def test_a_token_signed_with_the_client_secret_is_refused() -> None:
    from joserfc.jwk import OctKey

    with pytest.raises(OpenIdError):
        claims_of(jwt.encode({"alg": "HS256", "kid": "k1"}, CLAIMS, OctKey.import_key("s3cret" * 8)))


def test_groups_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(OpenIdError, match="groups"):
        openid_users.person_of(CLAIMS | {"groups": "ops"}, OpenIdSettings())


@pytest.mark.parametrize(
    ("claims", "name"),
    [({"preferred_username": "a b/c"}, "a-b-c"), ({"email": "a@b.c"}, "a@b.c"), ({}, "1"), ({"sub": "---"}, "user")],
)
def test_a_name_is_made_of_what_there_is(claims: dict[str, str], name: str) -> None:
    assert openid_users.person_of(CLAIMS | claims, OpenIdSettings()).name == name
