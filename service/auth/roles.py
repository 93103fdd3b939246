"""Roles of people: each may do what the one before may."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from mainstay.service.auth.tokens import IMPLIED, Scope, implies


class UserRole(StrEnum):
    VIEWER = "viewer"
    """Reads."""
    RESPONDER = "responder"
    """Takes over and comments on incidents, and silences notifications."""
    OPERATOR = "operator"
    """Drains, validates, and repairs nodes, and decides on proposals."""
    ADMIN = "admin"
    """Manages users, tokens, policies, and receivers."""


SCOPES: Final = {
    UserRole.VIEWER: frozenset({Scope.READ}),
    UserRole.RESPONDER: frozenset({Scope.RESPOND}),
    UserRole.OPERATOR: frozenset({Scope.ACT}),
    UserRole.ADMIN: frozenset({Scope.ADMIN}),
}


def scopes_of(role: str | None) -> frozenset[Scope]:
    """The scopes of a role; none without one."""
    return frozenset() if role is None else SCOPES[UserRole(role)]


def within(scopes: frozenset[Scope], bound: frozenset[Scope]) -> frozenset[Scope]:
    """What both ``scopes`` and ``bound`` allow."""
    return frozenset(one for one in Scope if implies(scopes, one) and implies(bound, one))


def strongest(scopes: frozenset[Scope]) -> frozenset[Scope]:
    """The same, without the scopes that another one implies."""
    return frozenset(one for one in scopes if not any(one in IMPLIED[other] for other in scopes - {one}))
