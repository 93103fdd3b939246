"""``/v1/auth/openid``: a browser leaves for the provider, and comes back with a code."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final, TypeVar
from urllib.parse import quote, urlencode

import anyio
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from mainstay.service.audit.record import record_act
from mainstay.service.auth import openid, openid_users, users
from mainstay.service.auth.endpoints import set_cookie
from mainstay.service.auth.models import UserRow
from mainstay.service.auth.openid import OpenIdError, Pending, Provider
from mainstay.service.auth.schemas import SignInOptions
from mainstay.service.auth.users import SignInMethod
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading
from mainstay.service.common.openapi import PUBLIC, problems
from mainstay.service.common.problem import NotFoundError
from mainstay.service.services import Services, ServicesDep

router = APIRouter(prefix="/v1/auth", tags=["auth"])
_log: Final = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_SECONDS: Final = 600
"""How long a person may take at the provider."""
_PATH: Final = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")
"""A path of this site: a browser takes ``//host`` and ``/\\host`` for another one."""


class NoProviderError(NotFoundError):
    slug, title = "no-provider", "No OpenID Connect provider"


def _provider(services: ServicesDep) -> Provider:
    if services.openid is None:
        raise NoProviderError("no OpenID Connect provider is configured (openid.issuer)")
    return services.openid


@router.get("/sign-in-options", operation_id="get_sign_in_options", openapi_extra=PUBLIC)
def get_sign_in_options(services: ServicesDep, session: Reading) -> SignInOptions:
    """How people can sign in here."""
    local = select(UserRow.id).where(UserRow.password.is_not(None)).limit(1)
    label = services.settings.openid.label if services.openid else None
    return SignInOptions(openid=label, users=session.scalar(local) is not None)


@router.get(
    "/openid",
    status_code=303,
    operation_id="begin_openid_sign_in",
    response_class=Response,
    responses=problems(404),
    openapi_extra=PUBLIC,
)
async def begin_openid_sign_in(
    request: Request,
    services: ServicesDep,
    provider: Annotated[Provider, Depends(_provider)],
    next_path: Annotated[str, Query(alias="next", max_length=1000)] = "/",
) -> Response:
    """Send the browser to the provider; ``next`` is the path of the dashboard to open afterwards."""
    pending = openid.new_sign_in(next_path if _PATH.fullmatch(next_path) else "/")
    try:
        target = await _wait(services, partial(provider.authorization_url, pending, _redirect_uri(services)))
    except OpenIdError as error:
        return _refused("openid_failed", str(error))
    response = RedirectResponse(target, status_code=303)
    secure = request.url.scheme == "https"
    # Lax: the provider's redirect is a request from another site.
    response.set_cookie(
        _cookie_name(request), pending.to_cookie(), max_age=_SECONDS, path="/", secure=secure, httponly=True,
        samesite="lax",
    )  # fmt: skip
    return response


def limit_redirects(request: Request, services: ServicesDep) -> str:
    """As ``limit_attempts``; the request does come from another site, and its state proves whose it is."""
    address = request.client.host if request.client is not None else ""
    services.sign_ins.begin_attempt(address)
    return address


@router.get(
    "/openid/callback",
    status_code=303,
    operation_id="finish_openid_sign_in",
    response_class=Response,
    responses=problems(403, 404, 429),
    openapi_extra=PUBLIC,
)
async def finish_openid_sign_in(
    request: Request,
    *,
    address: Annotated[str, Depends(limit_redirects)],
    services: ServicesDep,
    provider: Annotated[Provider, Depends(_provider)],
    now: Now,
    code: Annotated[str, Query(max_length=4000)] = "",
    state: Annotated[str, Query(max_length=200)] = "",
    error: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Sign in the user for whom the provider vouches, and open the dashboard."""
    try:
        pending = Pending.from_cookie(request.cookies.get(_cookie_name(request), ""))
    except OpenIdError:
        return _refused("openid_expired", "the browser sent no cookie of a sign-in")
    if not hmac.compare_digest(pending.state.encode(), state.encode()):
        return _refused("openid_expired", "the state is that of another sign-in")
    if error or not code:
        return _refused("openid_denied", f"the provider answered {error or 'without a code'!r}")
    try:
        claims = await _wait(services, partial(provider.claims, code, pending, _redirect_uri(services)))
        person = openid_users.person_of(claims, services.settings.openid)
    except OpenIdError as failure:
        return _refused("openid_failed", str(failure))
    try:
        return await run_in_threadpool(_sign_in, request, services, person, pending, address=address, now=now)
    except IntegrityError:  # the same user signed in for the first time in another browser at the same moment
        return _refused("openid_expired", f"user {person.name!r} was stored by another request")


async def _wait(services: Services, ask: Callable[[], _Answer]) -> _Answer:
    """Ask the provider, which may take long, in threads that no other request needs."""
    return await anyio.to_thread.run_sync(ask, limiter=services.pressure.threads.people)


def _sign_in(
    request: Request, services: Services, person: openid_users.Person, pending: Pending, *, address: str, now: float
) -> Response:
    hours = services.settings.auth.session_hours
    with services.database.session(first=True) as session:
        user, concerned = openid_users.store(session, person, now=now)
        refusal = "disabled" if user.disabled_at is not None else "no_access" if users.may_do_nothing(user) else None
        if refusal is None:
            cookie = users.open_session(session, user, SignInMethod.OPENID, address=address, now=now, hours=hours)
            record_act(
                session, at=now, actor=user.name, actor_kind="user", actor_id=user.id, action="sign_in",
                target="/v1/auth/openid/callback", detail={"issuer": user.issuer}, address=address,
            )  # fmt: skip
    services.tokens.forget(concerned)
    if refusal is not None:
        return _refused(refusal, f"user {person.name!r}")
    services.sign_ins.return_attempt(address)
    response = RedirectResponse(quote(pending.next, safe="/?&=#%+,:;@~!$'()*[]"), status_code=303)
    set_cookie(response, request, cookie, hours * 3600)
    response.delete_cookie(_cookie_name(request), path="/", httponly=True, samesite="lax")
    return response


def _refused(reason: str, detail: str) -> Response:
    """Back to the sign-in page, which has a sentence for each reason: anyone can write a text into a URL."""
    _log.warning("a sign-in through the provider failed (%s): %s", reason, detail)
    return RedirectResponse(f"/sign-in?{urlencode({'refused': reason})}", status_code=303)


def _redirect_uri(services: Services) -> str:
    return f"{services.settings.dashboard_url}/v1/auth/openid/callback"


def _cookie_name(request: Request) -> str:
    # The prefix keeps other hosts of the domain from setting it; browsers know it over TLS only.
    return "__Host-mainstay_openid" if request.url.scheme == "https" else "mainstay_openid"
