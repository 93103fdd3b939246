"""Sign-in through an OpenID Connect provider: the authorization code flow with PKCE, state, and nonce.

OpenID Connect Core 1.0, 3.1 (code flow) and 3.1.3.7 (what of an ID token is checked); RFC 7636 (PKCE); RFC 9700.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from urllib3 import BaseHTTPResponse

from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.common.outgoing_request import OutgoingRequestError, check_url, exchange
from mainstay.service.config.openid_settings import OpenIdSettings

_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures with a public key. HS256 would accept tokens of anyone to whom a client secret leaked."""
_LEEWAY_SECONDS: Final = 60
_KEEP_SECONDS: Final = 3600.0
"""How long what the provider says of itself is kept; keys that are not known are looked up at once."""
_SECONDS: Final = 10.0
_LONGEST: Final = 1024 * 1024
_DOWN_SECONDS: Final = 2.0
"""After a failure, how long sign-ins fail without asking: each would wait behind the others."""
_KEY_PAUSE_SECONDS: Final = 10.0
"""Between two look-ups of keys: a token with an invented key must not make us ask the provider each time."""


class OpenIdError(Exception):
    """The provider does not answer, or what it answers proves nothing; the message is for the log."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A sign-in that began: kept in a cookie of the browser that left for the provider."""

    state: str
    nonce: str
    verifier: str
    next: str
    """Path of the dashboard to open afterwards."""

    def to_cookie(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def from_cookie(cls, text: str) -> Pending:
        """Raise ``OpenIdError`` for what ``to_cookie`` did not make."""
        try:
            return cls(**json.loads(base64.urlsafe_b64decode(text)))
        except (ValueError, TypeError) as error:
            raise OpenIdError("the cookie of the sign-in is damaged") from error


def provider_of(
    settings: OpenIdSettings, policy: AddressPolicy, monotonic: Callable[[], float], wall: Callable[[], float]
) -> Provider | None:
    """The configured provider, if there is one."""
    return Provider(settings, policy, monotonic, wall) if settings.issuer else None


def new_sign_in(next_path: str) -> Pending:
    """A new sign-in that leads to ``next_path``."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return Pending(state, nonce, verifier, next_path)


@dataclass
class Provider:
    """One provider, as its metadata describes it.

    Args:
        settings: of the provider.
        policy: the addresses that may be connected to.
        monotonic: seconds.
        wall: Unix seconds, by which the provider's tokens are judged.
    """

    settings: OpenIdSettings
    policy: AddressPolicy
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    _down_until: float = field(default=0.0, init=False, repr=False)
    _metadata: tuple[float, dict[str, Any]] | None = field(default=None, init=False, repr=False)
    _keys: tuple[float, KeySet] | None = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def authorization_url(self, pending: Pending, redirect_uri: str) -> str:
        """Where the browser is sent to."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).decode().rstrip("=")
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = self._endpoint("authorization_endpoint")
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def claims(self, code: str, pending: Pending, redirect_uri: str) -> dict[str, Any]:
        """What the provider says of the user: the claims of the ID token, and those of its userinfo endpoint.

        Raises:
            OpenIdError: it refuses the code, or the ID token is not one for us and this sign-in.
        """
        answer = self._exchange_code(code, pending, redirect_uri)
        claims = self._verify(str(answer.get("id_token", "")), pending.nonce)
        wanted = {self.settings.name_claim, self.settings.groups_claim}
        if wanted <= claims.keys() or "userinfo_endpoint" not in self.metadata():
            return claims
        more = self._ask("GET", self._endpoint("userinfo_endpoint"), bearer=str(answer.get("access_token", "")))
        if more.get("sub") != claims["sub"]:
            raise OpenIdError("the userinfo endpoint speaks of another user than the ID token")
        return more | claims

    def metadata(self) -> dict[str, Any]:
        """What the provider says of itself (OpenID Connect Discovery 1.0, 4)."""
        with self._lock:
            if self._metadata is None or self._metadata[0] < self.monotonic():
                self._metadata = (self.monotonic() + _KEEP_SECONDS, self._discover())
            return self._metadata[1]

    def _discover(self) -> dict[str, Any]:
        if self.monotonic() < self._down_until:
            raise OpenIdError("the provider did not answer a moment ago")
        issuer = self.settings.issuer.rstrip("/")
        try:
            found = self._ask("GET", f"{issuer}/.well-known/openid-configuration")
        except OpenIdError:
            self._down_until = self.monotonic() + _DOWN_SECONDS
            raise
        if str(found.get("issuer", "")).rstrip("/") != issuer:
            raise OpenIdError(f"the provider calls itself {found.get('issuer')!r}, not {issuer!r}")
        return found

    def _endpoint(self, name: str) -> str:
        url = self.metadata().get(name)
        if not isinstance(url, str):
            raise OpenIdError(f"the provider names no {name}")
        return url

    def _exchange_code(self, code: str, pending: Pending, redirect_uri: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": pending.verifier,
        }
        settings, basic = self.settings, None
        secret = settings.client_secret_file.read_text().strip() if settings.client_secret_file else None
        if secret is None:
            form["client_id"] = settings.client_id
        elif "client_secret_basic" in self.metadata().get(
            "token_endpoint_auth_methods_supported", ["client_secret_basic"]
        ):
            basic = f"{quote(settings.client_id, safe='')}:{quote(secret, safe='')}"  # RFC 6749, 2.3.1
        else:
            form |= {"client_id": settings.client_id, "client_secret": secret}
        return self._ask("POST", self._endpoint("token_endpoint"), form=form, basic=basic)

    def _verify(self, token: str, nonce: str) -> dict[str, Any]:
        try:
            try:
                decoded = jwt.decode(token, self._key_set(), algorithms=_ALGORITHMS)
            except (JoseError, ValueError):  # signed with a key that is newer than ours
                decoded = jwt.decode(token, self._key_set(renew=True), algorithms=_ALGORITHMS)
            claims: dict[str, Any] = decoded.claims
            registry = jwt.JWTClaimsRegistry(
                now=lambda: int(self.wall()),
                leeway=_LEEWAY_SECONDS,
                iss={"essential": True, "value": self.metadata()["issuer"]},
                aud={"essential": True, "value": self.settings.client_id},
                exp={"essential": True},
                iat={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            registry.validate(claims)
        except (JoseError, ValueError) as error:
            raise OpenIdError(f"the ID token is not valid: {error}") from error
        audience = claims["aud"]
        if isinstance(audience, list) and len(audience) > 1 and claims.get("azp") != self.settings.client_id:
            raise OpenIdError("the ID token was made for another client")
        return claims

    def _key_set(self, *, renew: bool = False) -> KeySet:
        url, now = self._endpoint("jwks_uri"), self.monotonic()
        with self._lock:
            lives = _KEEP_SECONDS - _KEY_PAUSE_SECONDS if renew else 0.0
            if self._keys is None or self._keys[0] - lives < now:
                self._keys = (now + _KEEP_SECONDS, KeySet.import_key_set(self._ask("GET", url)))  # type: ignore[arg-type]
            return self._keys[1]

    def _ask(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        basic: str | None = None,
        bearer: str | None = None,
    ) -> dict[str, Any]:
        """One request; its answer is a JSON object."""
        headers = {"Accept": "application/json"}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if basic is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(basic.encode()).decode()}"
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        try:
            parts = check_url(url)
            status, body = exchange(
                method, parts, _read, target=urlsplit(url)._replace(scheme="", netloc="").geturl() or "/",
                headers=headers, body=None if form is None else urlencode(form).encode(), seconds=_SECONDS,
                policy=self.policy, ca_file=self.settings.ca_file,
            )  # fmt: skip
            answer = json.loads(body)
        except (OutgoingRequestError, ValueError) as error:
            raise OpenIdError(f"{method} {urlsplit(url).path}: {error}") from error
        if status != 200 or not isinstance(answer, dict):
            raise OpenIdError(f"{method} {urlsplit(url).path} is answered {status}: {_error_of(answer)}")
        return answer


def _read(response: BaseHTTPResponse) -> tuple[int, bytes]:
    return response.status, response.read(_LONGEST)


def _error_of(answer: Any) -> str:
    said = answer if isinstance(answer, dict) else {}
    return f"{said.get('error', 'no error named')} {said.get('error_description', '')}"[:300]
