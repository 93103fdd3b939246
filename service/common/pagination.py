"""Keyset pages: the cursor is the last row's sort key.

A page costs the same wherever it is, and rows are never skipped or doubled while others are inserted. No COUNT.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query
from sqlalchemy import Select, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.service.common.db import AnySession
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.common.schemas import Output, check_text

ItemT = TypeVar("ItemT")
RowT = TypeVar("RowT")
MAX_LIMIT = 500


class Page(Output, Generic[ItemT]):
    """One page of a list; ``next_cursor`` is null on the last."""

    items: list[ItemT]
    next_cursor: str | None


class BadCursorError(UnprocessableError):
    slug, title = "invalid-cursor", "Bad cursor"


@dataclass(frozen=True, slots=True)
class PageParams:
    limit: int
    cursor: str | None


def _params(
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> PageParams:
    return PageParams(limit, cursor)


Paging = Annotated[PageParams, Depends(_params)]
"""Dependency: ``limit`` and ``cursor`` of the query string."""


def encode_cursor(values: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(list(values)).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, types: Sequence[type]) -> list[Any]:
    """The sort key in ``cursor``.

    Raises:
        BadCursorError: it is not one that this list gave.
    """
    try:
        raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        values = json.loads(raw)
    except (ValueError, binascii.Error, RecursionError) as error:
        raise BadCursorError("cursor is not one that this list gave") from error
    if not isinstance(values, list) or len(values) != len(types):
        raise BadCursorError("cursor belongs to another list")
    if not all(_fits(value, kind) for value, kind in zip(values, types, strict=True)):
        raise BadCursorError("cursor holds a value that this list cannot have")
    return values


def _fits(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 253_402_300_800
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if isinstance(value, str) and kind is str:
        try:
            check_text(value)
        except ValueError:
            return False
        return True
    return False


def paginate(
    session: AnySession,
    statement: Select[RowT],
    *,
    keys: Sequence[InstrumentedAttribute[Any]],
    page: PageParams,
    descending: bool = True,
) -> tuple[list[RowT], str | None]:
    """Rows of one page and the cursor of the next.

    Args:
        session: where to read.
        statement: selects one entity; must not be ordered yet.
        keys: NOT NULL columns that order the list and together are unique (end with the id).
        page: from ``Paging``.
        descending: newest first.
    """
    if page.cursor is not None:
        values = decode_cursor(page.cursor, [key.type.python_type for key in keys])
        bound = tuple_(*(literal(value, key.type) for key, value in zip(keys, values, strict=True)))
        statement = statement.where(tuple_(*keys) < bound if descending else tuple_(*keys) > bound)
    order = [key.desc() if descending else key.asc() for key in keys]
    rows = list(session.scalars(statement.order_by(*order).limit(page.limit + 1)))
    if len(rows) <= page.limit:
        return rows, None
    last = rows[page.limit - 1]
    return rows[: page.limit], encode_cursor([getattr(last, key.key) for key in keys])
