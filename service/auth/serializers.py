"""Rows of auth as answered."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from mainstay.service.auth.models import TokenRow, UserRow
from mainstay.service.auth.schemas import SessionRead, TokenRead, UserRead
from mainstay.service.common.db import AnySession


def read_tokens(session: AnySession, rows: Sequence[TokenRow]) -> list[TokenRead]:
    """Tokens with the names of their users."""
    names = _names(session, rows)
    columns = [name for name in TokenRead.model_fields if name != "user"]
    return [TokenRead(**{name: getattr(row, name) for name in columns}, user=names.get(row.user_id)) for row in rows]


def read_sessions(session: AnySession, rows: Sequence[TokenRow], current: str) -> list[SessionRead]:
    """Sessions; ``current`` is the id of the one that asks."""
    names = _names(session, rows)
    columns = [name for name in SessionRead.model_fields if name not in {"user", "is_current"}]
    return [
        SessionRead(
            **{name: getattr(row, name) for name in columns}, user=names[row.user_id], is_current=row.id == current
        )
        for row in rows
    ]


def _names(session: AnySession, rows: Sequence[TokenRow]) -> dict[str | None, str]:
    users = {row.user_id for row in rows if row.user_id is not None}
    found = session.execute(select(UserRow.id, UserRow.name).where(UserRow.id.in_(users))) if users else ()
    return {id_: name for id_, name in found}  # noqa: C416 - rows are no pairs to the type checker


def read_user(row: UserRow) -> UserRead:
    """A user, without the password."""
    columns = [name for name in UserRead.model_fields if name != "has_password"]
    return UserRead(**{name: getattr(row, name) for name in columns}, has_password=row.password is not None)
