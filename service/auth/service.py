"""Making and ending tokens and sessions; the first admin; how a node joins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstay.probes.durable_files import write_durably
from mainstay.probes.ids import uuid7
from mainstay.service.auth import repository
from mainstay.service.auth.models import SessionRow, TeamRow, TokenRow
from mainstay.service.auth.tokens import (
    CODE_PREFIX,
    Principal,
    Scope,
    TokenKind,
    code_digest,
    digest,
    make_code,
    make_secret,
)
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnprocessableError,
)
from mainstay.service.fleet.models import NodeRow
from mainstay.service.stream.changes import Topic, record_change

ADMIN_TOKEN_FILE: Final = "admin-token"  # noqa: S105 - a file name
_PREFIX_CHARACTERS: Final = 6
_BOUND_SCOPES: Final = {
    TokenKind.JOB: (Scope.REPORT,),
    TokenKind.NODE: (Scope.REPORT,),
    TokenKind.JOIN: (Scope.REPORT,),
    TokenKind.RELAY: (Scope.REPORT,),
}
"""Kinds that can have these scopes and no others (a join token hands its own on to the node)."""


class NodeExistsError(ConflictError):
    slug, title = "node-exists", "Node exists"


class UnknownTokenError(NotFoundError):
    slug, title = "unknown-token", "Unknown token"


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """What a token shall be."""

    name: str
    kind: TokenKind
    scopes: tuple[Scope, ...] = ()
    node: str | None = None
    job: str | None = None
    any_job: bool = False
    """A job token is meant for no single job."""
    racks: tuple[str, ...] = ()
    team: str | None = None
    """Whose jobs the scopes hold for."""
    user_id: str | None = None
    """Id of the user whom it stands for."""
    expires_at: float | None = None


def create_token(session: WriteSession, new: NewToken, *, now: float) -> tuple[TokenRow, str]:
    """The row and the secret, which is not kept.

    Raises:
        UnprocessableError: scopes or racks that this kind cannot have, or none where some are needed; a job token that
            is neither bound to a job nor meant for all.
    """
    if bool(new.racks) != (new.kind is TokenKind.RELAY):
        raise UnprocessableError("a relay token names its racks, or '*' for all; no other token names racks")
    if new.team is not None:
        _check_team(session, new, new.team)
    if new.kind is TokenKind.JOB and (new.job is None) is not new.any_job:
        raise UnprocessableError("a job token is bound to one job (job) or meant for all of them (any_job): choose one")
    scopes = new.scopes or _BOUND_SCOPES.get(new.kind, ())
    if new.kind in _BOUND_SCOPES and set(scopes) != set(_BOUND_SCOPES[new.kind]):
        allowed = ", ".join(_BOUND_SCOPES[new.kind])
        raise UnprocessableError(f"a {new.kind} token has the scope {allowed} and no other")
    if new.kind not in _BOUND_SCOPES and not scopes:
        raise UnprocessableError("a token needs at least one of the scopes read, report, respond, act, admin")
    secret = make_secret(new.kind)
    row = TokenRow(
        id=uuid7(),
        digest=digest(secret),
        prefix=secret[: len(f"mst_{new.kind.value}_") + _PREFIX_CHARACTERS],
        kind=new.kind.value,
        name=new.name,
        scopes=[scope.value for scope in dict.fromkeys(scopes)],
        node=new.node,
        job=new.job,
        racks=list(dict.fromkeys(new.racks)) or None,
        team=new.team,
        user_id=new.user_id,
        created_at=now,
        expires_at=new.expires_at,
        revoked_at=None,
        used_at=None,
    )
    session.add(row)
    session.flush()
    return row, secret


def _check_team(session: WriteSession, new: NewToken, team: str) -> None:
    if new.kind not in {TokenKind.USER, TokenKind.JOB} or new.job is not None or Scope.ADMIN in new.scopes:
        raise UnprocessableError("a token of a team is a user token below admin, or a job token for any job (any_job)")
    if session.get(TeamRow, team) is None:
        raise UnprocessableError(f"team {team!r} does not exist: create it first")


def owner_of(creator: Principal, kind: TokenKind, *, personal: bool) -> str | None:
    """Id of the user whom a new token stands for; None for one of its own.

    Raises:
        ScopeMissingError: only an admin makes the latter.
        UnprocessableError: no user is signed in whom a personal token could stand for.
    """
    if not personal:
        if not creator.may(Scope.ADMIN):
            raise creator.missing(Scope.ADMIN)
        return None
    if creator.user_id is None or kind is not TokenKind.USER:
        raise UnprocessableError("a personal token is a user token that a signed-in user makes")
    return creator.user_id


def own_tokens(session: AnySession, principal: Principal) -> set[str]:
    """Ids of the live tokens of whoever asks."""
    return {principal.token_id} if principal.user_id is None else repository.tokens_of_user(session, principal.user_id)


def revoke_token(session: WriteSession, token_id: str, *, now: float) -> None:
    """End a token and the sessions opened with it.

    Raises:
        UnknownTokenError: there is no such live token.
    """
    if not repository.revoke(session, token_id, now):
        raise UnknownTokenError(f"no live token has the id {token_id}")


def sign_in(session: WriteSession, secret: str, *, now: float, hours: float) -> tuple[str, float, TokenRow]:
    """A new browser session, for a token or for a sign-in code: its secret, its seconds of life, and the token.

    Raises:
        UnauthorizedError: the token or the code opens nothing.
    """
    if secret.startswith(CODE_PREFIX):
        what, token = (
            "sign-in link is unknown, expired or used",
            repository.spend_code(session, code_digest(secret), now),
        )
    else:
        what, token = "token is unknown, expired or revoked", repository.valid_token(session, digest(secret), now)
    if token is None or token.kind == TokenKind.JOIN:
        raise UnauthorizedError(f"this {what}", error="invalid_token")
    repository.prune_sessions(session, now)
    cookie = make_secret(TokenKind.USER).removeprefix("mst_user_")
    ends = min(now + hours * 3600, token.expires_at or float("inf"))
    session.add(SessionRow(digest=digest(cookie), token_id=token.id, created_at=now, expires_at=ends))
    return cookie, ends - now, token


def create_code(session: WriteSession, token_id: str, *, now: float, seconds: float) -> str:
    """A code that signs a browser in once, as the token with this id, within ``seconds``."""
    code = make_code()
    repository.prune_sessions(session, now)
    session.add(SessionRow(digest=code_digest(code), token_id=token_id, created_at=now, expires_at=now + seconds))
    return code


def sign_out(session: WriteSession, cookie: str) -> None:
    row = session.get(SessionRow, digest(cookie))
    if row is not None:
        session.delete(row)


def enroll(session: WriteSession, principal: Principal, name: str, *, now: float) -> tuple[str, set[str]]:
    """Spend a join token: the secret of the node's credential, and the ids of the tokens that ended.

    An unbound join token opens a new name only, so that a leaked token cannot take over an existing node.

    Raises:
        ForbiddenError: not a join token, or one bound to another node.
        NodeExistsError: the name is taken and the join token is not bound to it.
        UnauthorizedError: the join token was spent.
    """
    if principal.kind is not TokenKind.JOIN:
        raise ForbiddenError("enrolling needs a join token: create one with 'mainstay token join'")
    if principal.node not in {None, name}:
        raise ForbiddenError(f"this join token is for node {principal.node!r} only")
    known = session.get(NodeRow, name)
    if known is not None and principal.node != name:
        raise NodeExistsError(f"node {name!r} exists: to enroll it again, create a join token bound to its name")
    if not repository.spend_join_token(session, principal.token_id, now):
        raise UnauthorizedError("this join token was used before", error="invalid_token")
    if known is None:
        session.add(NodeRow(name=name, first_seen_at=now, last_seen_at=None, started_at=None))
        record_change(session, Topic.NODE, {"id": name, "state": "unknown", "reason": "enrolled"})
    ended = repository.revoke_node_tokens(session, name, now)
    new = NewToken(name=f"node {name}", kind=TokenKind.NODE, node=name)
    return create_token(session, new, now=now)[1], {principal.token_id, *ended}


def ensure_admin(session: WriteSession, data_dir: Path, *, now: float) -> str | None:
    """On the first start: make the admin token and keep it, readable by us alone, for the command line.

    Returns:
        The id of the token when it was made now, else None.
    """
    if repository.has_admin(session):
        return None
    new = NewToken(name="first admin", kind=TokenKind.ADMIN, scopes=(Scope.ADMIN,))
    row, secret = create_token(session, new, now=now)
    write_secret(data_dir / ADMIN_TOKEN_FILE, secret)
    return row.id


def write_secret(path: Path, secret: str) -> None:
    """Write a file that only its owner can read; replace an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_durably(path, f"{secret}\n".encode(), mode=0o600)
