"""The user for whom a provider vouches: name, groups, roles, and teams, renewed at each sign-in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select

from mainstay.probes.ids import uuid7
from mainstay.service.auth import repository
from mainstay.service.auth.models import TeamRow, UserRow
from mainstay.service.auth.openid import OpenIdError
from mainstay.service.auth.roles import UserRole
from mainstay.service.common.db import WriteSession
from mainstay.service.config.openid_settings import OpenIdSettings

_UNWANTED: Final = re.compile(r"[^A-Za-z0-9._@+-]+")


@dataclass(frozen=True, slots=True)
class Person:
    """What the provider says of a user."""

    issuer: str
    subject: str
    name: str
    display_name: str
    groups: frozenset[str]
    role: UserRole | None
    team_role: UserRole


def person_of(claims: Mapping[str, Any], settings: OpenIdSettings) -> Person:
    """The person whom the claims describe.

    Raises:
        OpenIdError: a claim has a wrong type.
    """
    named = next((str(claims[one]) for one in (settings.name_claim, "email", "sub") if claims.get(one)), "")
    name = _UNWANTED.sub("-", named).lstrip("._@+-")[:100] or "user"
    groups = claims.get(settings.groups_claim, [])
    if not isinstance(groups, list) or not all(isinstance(one, str) for one in groups):
        raise OpenIdError(f"the claim {settings.groups_claim!r} is no list of texts")
    display = str(claims.get("name") or name)[:200].replace("\x00", "")
    found = frozenset(groups)
    return Person(
        issuer=str(claims["iss"]),
        subject=str(claims["sub"])[:255],
        name=name,
        display_name=display,
        groups=found,
        role=_role(found, settings),
        team_role=UserRole(settings.team_role),
    )


def _role(groups: frozenset[str], settings: OpenIdSettings) -> UserRole | None:
    """The highest role of the groups, else the default."""
    by_role = {
        UserRole.ADMIN: settings.admin_groups,
        UserRole.OPERATOR: settings.operator_groups,
        UserRole.RESPONDER: settings.responder_groups,
        UserRole.VIEWER: settings.viewer_groups,
    }
    default = None if settings.default_role == "none" else UserRole(settings.default_role)
    return next((role for role, wanted in by_role.items() if groups & set(wanted)), default)


def store(session: WriteSession, person: Person, *, now: float) -> tuple[UserRow, set[str]]:
    """The user's row with the roles and teams of now, and the ids of the tokens that a change concerns.

    A user is who the provider says by issuer and subject, never by name: a name may be given to another person.
    """
    row = session.scalar(select(UserRow).where(UserRow.issuer == person.issuer, UserRow.subject == person.subject))
    if row is None:
        row = UserRow(
            id=uuid7(), name=_free_name(session, person.name), display_name=person.display_name, role=None,
            team_role=None, teams=[], issuer=person.issuer, subject=person.subject, created_at=now, changed_at=now,
        )  # fmt: skip
        session.add(row)
    teams = [
        team.name
        for team in session.scalars(select(TeamRow).order_by(TeamRow.name))
        if person.groups & set(team.groups)
    ]
    team_role = person.team_role if teams else None
    row.display_name = person.display_name
    if (row.role, row.teams, row.team_role) == (person.role, teams, team_role):
        session.flush()
        return row, set()
    row.role, row.teams, row.team_role, row.changed_at = person.role, teams, team_role, now
    session.flush()
    return row, repository.tokens_of_user(session, row.id)


def _free_name(session: WriteSession, name: str) -> str:
    """``name``, or with a number if another user has it."""
    taken = set(session.scalars(select(UserRow.name).where(UserRow.name.startswith(name, autoescape=True))))
    return (
        name
        if name not in taken
        else next(one for n in range(2, len(taken) + 3) if (one := f"{name}-{n}") not in taken)
    )
