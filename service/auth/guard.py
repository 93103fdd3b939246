"""Dependencies that say who may call a handler.

``Reader``, ``Reporter``, ``Responder``, ``Actor`` and ``Admin`` lend the principal after checking the scope, for the
whole fleet or, on the routes of ``access``, for the job that the request is about. A browser's cookie also has to
prove, on every method that changes something, that the request came from our own pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import anyio
from fastapi import Depends, Request

from mainstay.probes.http_server import PEER_NAMES
from mainstay.service import services as running
from mainstay.service.audit.record import record_request
from mainstay.service.auth import access, repository
from mainstay.service.auth.principals import principal_of
from mainstay.service.auth.tokens import Principal, Scope, TokenKind, digest
from mainstay.service.common.problem import ForbiddenError, MisdirectedError, UnauthorizedError
from mainstay.service.services import Services

COOKIE: Final = "mainstay_session"
_WHO: Final = "/v1/auth/me"
"""Says only whose a token is. A relay asks it for its nodes, whose certificates it cannot show."""
_ADMISSION: Final = "/v1/admission"
"""A job asks where it reports. A gateway has all that refuses it a node (decision 52)."""
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


_CERTIFIED: Final = frozenset({TokenKind.NODE, TokenKind.RELAY})
"""Kinds of token that need a certificate, of their node or of the token's name, where an authority is configured."""


class CrossOriginError(ForbiddenError):
    slug, title = "cross-origin", "Request from another origin"


class WrongCertificateError(ForbiddenError):
    slug, title = "wrong-certificate", "Wrong client certificate"


def bearer_of(request: Request) -> str | None:
    """The bearer token of the request.

    Raises:
        UnauthorizedError: there is an Authorization header of another form.
    """
    header = request.headers.get("authorization")
    return None if header is None else _secret_of(header)


def _secret_of(header: str) -> str:
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise UnauthorizedError("the Authorization header must be 'Bearer TOKEN'", error="invalid_request")
    return secret.strip()


async def identify(request: Request) -> Principal:
    """Who is asking, by bearer token or by session cookie.

    Raises:
        UnauthorizedError: the credential is unknown, expired, or revoked.
        CrossOriginError: a cookie came with a changing request from another origin.
    """
    services = running.services_of(request)
    secret = bearer_of(request)
    if secret is not None:
        principal = await _known(services, digest(secret), by_cookie=False)
        if principal.kind in _CERTIFIED and request.scope["path"] != _WHO:
            require_certificate(services, request.scope, principal.node or principal.name)
        return principal
    cookie = request.cookies.get(COOKIE)
    if cookie is None:
        raise UnauthorizedError("sign in, or send 'Authorization: Bearer TOKEN'")
    require_same_origin(request)
    return await _known(services, digest(cookie), by_cookie=True)


def digest_of(header: bytes) -> str:
    """The digest of the token in an Authorization header; raises ``UnauthorizedError`` for another form of header."""
    return digest(_secret_of(header.decode("latin-1")))


def remembered(services: Services, key: str, scope: Mapping[str, Any]) -> Principal | None:
    """The principal that ``identify`` finds for a token with this digest; None where memory does not know it.

    Raises:
        UnauthorizedError, ForbiddenError: as ``identify``; a join token is refused too.
    """
    principal = services.tokens.get(key)
    if principal is not None:
        refuse_join_token(principal)
        _require_current(services, principal)
        if principal.kind in _CERTIFIED:
            require_certificate(services, scope, principal.node or principal.name)
    return principal


def require_certificate(services: Services, scope: Mapping[str, Any], node: str) -> None:
    """Where client certificates are configured, the connection's must name ``node`` (or a relay's token).

    Raises:
        WrongCertificateError: it shows none, or one of another node.
    """
    if services.settings.tls_client_ca is None:
        return
    names = scope.get(PEER_NAMES) or frozenset()
    if node not in names:
        shown = f"one for {', '.join(sorted(names))}" if names else "none"
        raise WrongCertificateError(f"{node!r} must show a client certificate of its name; it shows {shown}")


async def _known(services: Services, key: str, *, by_cookie: bool) -> Principal:
    cache_key = f"cookie:{key}" if by_cookie else key
    principal = services.tokens.get(cache_key)
    if principal is None:
        epoch = services.tokens.epoch
        look_up = _by_cookie if by_cookie else _by_token
        # In threads of its own: whoever asks never waits behind what reports and pages do.
        limiter = services.pressure.threads.identity
        principal = await anyio.to_thread.run_sync(look_up, services, key, limiter=limiter)
        if principal is None:
            what = "session is over" if by_cookie else "token is unknown, expired or revoked"
            raise UnauthorizedError(f"this {what}", error="invalid_token")
        services.tokens.put(cache_key, principal, epoch, session=by_cookie)
    _require_current(services, principal)
    services.tokens.note_use(principal, services.clock.now())
    return principal


def _require_current(services: Services, principal: Principal) -> None:
    if principal.expires_at is not None and principal.expires_at <= services.clock.now():
        raise UnauthorizedError("this token or session has expired", error="invalid_token")


def _by_token(services: Services, key: str) -> Principal | None:
    with services.database.reading() as session:
        row = repository.valid_token(session, key, services.clock.now())
        return principal_of(session, row) if row is not None else None


def _by_cookie(services: Services, key: str) -> Principal | None:
    with services.database.reading() as session:
        found = repository.session_token(session, key, services.clock.now())
        return principal_of(session, *found) if found is not None else None


def require_same_origin(request: Request) -> None:
    """A changing request must come from our own pages (Fetch metadata, else Origin); SameSite=Strict is the first wall.

    Raises:
        CrossOriginError: it does not, or does not say.
    """
    if request.method in _SAFE:
        return
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin":
            return
        raise CrossOriginError(f"a changing request with a session cookie must be same-origin, not {site[:20]}")
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc != request.headers.get("host"):
        raise CrossOriginError("a changing request with a session cookie must carry our own Origin")


class GatewayError(MisdirectedError):
    slug, title = "gateway", "This process is a gateway"


class _Requires:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request, principal: Annotated[Principal, Depends(identify)]) -> Principal:
        refuse_join_token(principal)
        if not principal.may(self.scope) and not (self.scope is Scope.REPORT and principal.may_somewhere(self.scope)):
            await access.require_own(request, principal, self.scope)
        if request.method not in _SAFE and self.scope is not Scope.REPORT:
            await record_request(request, principal, at=running.services_of(request).clock.now())
        path = request.scope["path"]
        reports = self.scope is Scope.REPORT or path == _WHO
        reports |= path == _ADMISSION and principal.kind is TokenKind.JOB
        if not reports and running.services_of(request).settings.is_gateway:
            # What it knows of telemetry is nothing, and of the state of the fleet too little to answer.
            raise GatewayError("a gateway accepts what nodes and jobs send: ask a process that has the role all")
        return principal


Anyone = Annotated[Principal, Depends(identify)]
Reader = Annotated[Principal, Depends(_Requires(Scope.READ))]
Reporter = Annotated[Principal, Depends(_Requires(Scope.REPORT))]
Responder = Annotated[Principal, Depends(_Requires(Scope.RESPOND))]
Actor = Annotated[Principal, Depends(_Requires(Scope.ACT))]
Admin = Annotated[Principal, Depends(_Requires(Scope.ADMIN))]


def refuse_join_token(principal: Principal) -> None:
    """Reject a join token: it is valid for enrollment only."""
    if principal.kind is TokenKind.JOIN:
        raise ForbiddenError("a join token can only enroll a node: use a token with the required scope")
