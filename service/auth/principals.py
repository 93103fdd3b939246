"""Whom a token stands for: the principal, from the rows of the token, its user, and the teams."""

from __future__ import annotations

from mainstay.service.auth import repository
from mainstay.service.auth.models import TokenRow, UserRow
from mainstay.service.auth.roles import scopes_of, strongest, within
from mainstay.service.auth.tokens import Principal, Scope, TokenKind
from mainstay.service.common.db import AnySession


def principal_of(session: AnySession, row: TokenRow, expires_at: float | None = None) -> Principal:
    """The principal that a valid token stands for, until ``expires_at`` (Unix seconds) at most."""
    ends = [end for end in (row.expires_at, expires_at) if end is not None]
    scopes, job_scopes, jobs, name = _reach(session, row)
    return Principal(
        token_id=row.id,
        kind=TokenKind(row.kind),
        name=name,
        scopes=scopes,
        node=row.node,
        job=row.job,
        racks=frozenset(row.racks or ()),
        expires_at=min(ends, default=None),
        jobs=jobs,
        job_scopes=job_scopes,
        user_id=row.user_id,
    )


def _reach(session: AnySession, row: TokenRow) -> tuple[frozenset[Scope], frozenset[Scope], tuple[str, ...], str]:
    """Scopes in the fleet, scopes for jobs of its own, these jobs, and the name."""
    scopes = frozenset(Scope(one) for one in row.scopes)
    if row.user_id is not None:
        return _of_user(session, row, scopes)
    if row.kind == TokenKind.JOB and row.job is not None:
        return frozenset(), scopes, (row.job,), row.name
    if row.team is not None:
        return frozenset(), scopes, repository.jobs_of_teams(session, {row.team}), row.name
    return scopes, frozenset(), (), row.name


def _of_user(
    session: AnySession, row: TokenRow, scopes: frozenset[Scope]
) -> tuple[frozenset[Scope], frozenset[Scope], tuple[str, ...], str]:
    user = session.get_one(UserRow, row.user_id)
    scopes = scopes if row.sign_in is None else frozenset(Scope)
    fleet, own = (strongest(within(scopes, scopes_of(role))) for role in (user.role, user.team_role))
    if row.team is not None:
        # A token for one team is as narrow as the team, even if its user may do the same in the whole fleet.
        of_member = own if row.team in user.teams else frozenset[Scope]()
        return frozenset(), of_member | fleet, repository.jobs_of_teams(session, {row.team}), user.name
    jobs = repository.jobs_of_teams(session, user.teams)
    return fleet, own if user.teams else frozenset(), jobs, user.name
