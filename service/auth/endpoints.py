"""Routes of auth: signing in, tokens, enrolling a node."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from sqlalchemy import select

from mainstay.service.auth import guard, service
from mainstay.service.auth.guard import COOKIE, Admin, Anyone, Reader
from mainstay.service.auth.models import TokenRow
from mainstay.service.auth.schemas import (
    EnrollmentCreate,
    EnrollmentRead,
    Me,
    SignIn,
    SignInCode,
    TokenCreate,
    TokenCreated,
    TokenRead,
)
from mainstay.service.auth.service import NewToken
from mainstay.service.auth.tokens import TokenKind
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Reporting, Writing, after_commit
from mainstay.service.common.openapi import PUBLIC, problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import ForbiddenError
from mainstay.service.common.schemas import Uuid
from mainstay.service.fleet.models import NodeRow
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["auth"])


class TokenPage(Page[TokenRead]):
    """Tokens, newest first."""


async def limit_attempts(request: Request, services: ServicesDep) -> str:
    """Before any database work: refuse an address with too many failures. Another site's page counts for nothing."""
    if {"sec-fetch-site", "origin"} & set(request.headers.keys()):
        guard.require_same_origin(request)  # a browser request: another site must not sign a user in
    address = request.client.host if request.client is not None else ""
    services.sign_ins.begin_attempt(address)
    return address


@router.post(
    "/auth/session",
    status_code=204,
    operation_id="sign_in",
    response_class=Response,
    responses=problems(401, 403, 429),
    openapi_extra=PUBLIC,
)
def sign_in(
    body: SignIn,
    request: Request,
    *,
    address: Annotated[str, Depends(limit_attempts)],
    services: ServicesDep,
    session: Writing,
    now: Now,
) -> Response:
    """Exchange a token, or the code of a sign-in link, for a session cookie. Many failures are answered 429."""
    cookie, seconds = service.sign_in(session, body.token, now=now, hours=services.settings.auth.session_hours)
    services.sign_ins.return_attempt(address)
    response = Response(status_code=204)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, cookie, max_age=int(seconds), path="/", secure=secure, httponly=True, samesite="strict")
    return response


@router.post("/auth/sign-in-codes", status_code=201, operation_id="create_sign_in_code")
def create_sign_in_code(
    reader: Reader, request: Request, services: ServicesDep, session: Writing, now: Now
) -> SignInCode:
    """Make a code that signs a browser in once, as whoever asks: ``/sign-in#code=CODE`` exchanges it."""
    if guard.bearer_of(request) is None:  # a session would outlive its end
        raise ForbiddenError("a sign-in code needs an access token, not a session")
    seconds = services.settings.auth.sign_in_code_seconds
    return SignInCode(
        code=service.create_code(session, reader.token_id, now=now, seconds=seconds), expires_at=now + seconds
    )


@router.delete("/auth/session", status_code=204, operation_id="sign_out", response_class=Response)
def sign_out(anyone: Anyone, request: Request, services: ServicesDep, session: Writing) -> Response:
    """End the browser's session."""
    cookie = request.cookies.get(COOKIE)
    if cookie is not None:
        service.sign_out(session, cookie)
        after_commit(session, lambda: services.tokens.forget({anyone.token_id}))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


@router.get("/auth/me", operation_id="get_me")
def get_me(reader: Reader, session: Reading) -> Me:
    """The identity of the caller, its scopes, and its racks."""
    node = session.get(NodeRow, reader.node) if reader.node else None
    racks = [node.rack] if node else sorted(reader.racks) or None
    subject = reader.node or reader.job or reader.name
    return Me(subject=subject, scopes=sorted(reader.scopes), kind=reader.kind, racks=racks)


@router.get("/auth/tokens", operation_id="list_tokens")
def list_tokens(_admin: Admin, session: Reading, page: Paging) -> TokenPage:
    """Tokens, newest first; never their secrets."""
    keys = (TokenRow.created_at, TokenRow.id)
    rows, cursor = paginate(session, select(TokenRow), keys=keys, page=page)
    return TokenPage(items=[TokenRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.post("/auth/tokens", status_code=201, operation_id="create_token")
def create_token(body: TokenCreate, _admin: Admin, services: ServicesDep, session: Writing, now: Now) -> TokenCreated:
    """Create a token. Only this response contains its secret."""
    life = body.expires_in
    if life is None and body.kind is TokenKind.JOIN:
        life = services.settings.auth.join_token_hours * 3600
    new = NewToken(
        name=body.name,
        kind=body.kind,
        scopes=tuple(body.scopes),
        node=body.node,
        job=body.job,
        any_job=body.any_job,
        racks=tuple(body.racks),
        expires_at=None if life is None else now + life,
    )
    row, secret = service.create_token(session, new, now=now)
    return TokenCreated(**TokenRead.model_validate(row).model_dump(), token=secret)


@router.delete("/auth/tokens/{token_id}", status_code=204, operation_id="revoke_token", response_class=Response)
def revoke_token(
    token_id: Annotated[Uuid, Path()], _admin: Admin, services: ServicesDep, session: Writing, now: Now
) -> None:
    """End a token and the sessions opened with it, at once."""
    service.revoke_token(session, token_id, now=now)
    after_commit(session, lambda: services.tokens.forget({token_id}))


@router.post("/nodes:enroll", status_code=201, operation_id="enroll_node", responses=problems(409))
def enroll_node(
    body: EnrollmentCreate, joining: Anyone, request: Request, *, services: ServicesDep, session: Reporting, now: Now
) -> EnrollmentRead:
    """Exchange a join token for the credential of one node."""
    guard.require_certificate(services, request.scope, body.name)
    services.quotas.charge_entity(joining)
    secret, ended = service.enroll(session, joining, body.name, now=now)
    after_commit(session, lambda: services.tokens.forget(ended))
    return EnrollmentRead(node=body.name, token=secret)
