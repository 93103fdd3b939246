"""Routes of auth: signing in, tokens, enrolling a node."""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Path, Request, Response
from sqlalchemy import select

from mainstay.service.audit.record import ActorKind, record_act
from mainstay.service.auth import guard, serializers, service, users
from mainstay.service.auth.guard import COOKIE, Anyone, Reader
from mainstay.service.auth.models import TokenRow, UserRow
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
from mainstay.service.auth.tokens import Scope, TokenKind
from mainstay.service.auth.users import SignInMethod
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


async def checked_user(body: SignIn, services: ServicesDep, _: Annotated[str, Depends(limit_attempts)]) -> str | None:
    """The id of the user with the name and the password, if there are any. No other request waits meanwhile."""
    name, password = body.name, body.password
    if name is None or password is None:
        return None

    def check() -> str:
        with services.database.reading() as session:
            return users.check_sign_in(session, name, password).id

    return await anyio.to_thread.run_sync(check, limiter=services.pressure.threads.people)


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
    user: Annotated[str | None, Depends(checked_user)],
    services: ServicesDep,
    session: Writing,
    now: Now,
) -> Response:
    """Exchange a token, the code of a sign-in link, or a name and password for a session cookie.

    Many failures are answered 429.
    """
    hours = services.settings.auth.session_hours
    if user is None:
        cookie, seconds, row = service.sign_in(session, body.token or "", now=now, hours=hours)
        actor, actor_id = row.name, row.id
    else:
        person = session.get_one(UserRow, user)
        cookie = users.open_session(session, person, SignInMethod.PASSWORD, address=address, now=now, hours=hours)
        actor, actor_id, seconds = person.name, person.id, hours * 3600
    kind: ActorKind = "token" if user is None else "user"
    record_act(
        session, at=now, actor=actor, actor_kind=kind, actor_id=actor_id, action="sign_in", target="/v1/auth/session",
        address=address,
    )  # fmt: skip
    services.sign_ins.return_attempt(address)
    response = Response(status_code=204)
    set_cookie(response, request, cookie, seconds)
    return response


def set_cookie(response: Response, request: Request, cookie: str, seconds: float) -> None:
    """Hand a browser the secret of its session."""
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, cookie, max_age=int(seconds), path="/", secure=secure, httponly=True, samesite="strict")


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
    user = session.get(UserRow, reader.user_id) if reader.user_id else None
    token = session.get(TokenRow, reader.token_id)
    return Me(
        subject=reader.node or reader.job or reader.name,
        display_name=user.display_name if user else reader.name,
        scopes=sorted(reader.scopes),
        job_scopes=sorted(reader.job_scopes),
        jobs=list(reader.jobs),
        kind=reader.kind,
        user=user.name if user else None,
        sign_in=SignInMethod(token.sign_in) if token and token.sign_in else None,
        racks=[node.rack] if node else sorted(reader.racks) or None,
    )


@router.get("/auth/tokens", operation_id="list_tokens")
def list_tokens(reader: Reader, session: Reading, page: Paging, valid: bool | None = None) -> TokenPage:
    """Tokens, newest first; never their secrets. An admin sees all, others their own.

    ``valid`` leaves out the revoked ones.
    """
    wanted = select(TokenRow).where(TokenRow.sign_in.is_(None))
    if not reader.may(Scope.ADMIN):
        own = TokenRow.id == reader.token_id if reader.user_id is None else TokenRow.user_id == reader.user_id
        wanted = wanted.where(own)
    if valid is not None:
        wanted = wanted.where(TokenRow.revoked_at.is_(None) if valid else TokenRow.revoked_at.is_not(None))
    rows, cursor = paginate(session, wanted, keys=(TokenRow.created_at, TokenRow.id), page=page)
    return TokenPage(items=serializers.read_tokens(session, rows), next_cursor=cursor)


@router.post("/auth/tokens", status_code=201, operation_id="create_token")
def create_token(body: TokenCreate, reader: Reader, services: ServicesDep, session: Writing, now: Now) -> TokenCreated:
    """Create a token. Only this response contains its secret. Without ``personal`` it needs the scope ``admin``."""
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
        team=body.team,
        user_id=service.owner_of(reader, body.kind, personal=body.personal),
        expires_at=None if life is None else now + life,
    )
    row, secret = service.create_token(session, new, now=now)
    return TokenCreated(**serializers.read_tokens(session, [row])[0].model_dump(), token=secret)


@router.delete("/auth/tokens/{token_id}", status_code=204, operation_id="revoke_token", response_class=Response)
def revoke_token(
    token_id: Annotated[Uuid, Path()], reader: Reader, services: ServicesDep, session: Writing, now: Now
) -> None:
    """End a token and the sessions opened with it, at once. Who is no admin can end only tokens of their own."""
    if not reader.may(Scope.ADMIN) and token_id not in service.own_tokens(session, reader):
        raise service.UnknownTokenError(f"you have no live token with the id {token_id}")
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
