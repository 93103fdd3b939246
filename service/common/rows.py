"""Rows by their key, and changes to a row that no other process made first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Double, cast, extract, inspect, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.service.common.db import AnySession, Base, WriteSession
from mainstay.service.common.problem import ProblemError

_Row = TypeVar("_Row", bound=Base)


def require_row(session: AnySession, kind: type[_Row], key: Any, missing: ProblemError) -> _Row:
    """The row with this key.

    Raises:
        ProblemError: ``missing``, if there is none.
    """
    row = session.get(kind, key)
    if row is None:
        raise missing
    return row


def equal_to(wanted: Mapping[InstrumentedAttribute[Any], Any]) -> list[ColumnElement[bool]]:
    """A condition for each column whose value is not None: the filters of a list."""
    return [column == value for column, value in wanted.items() if value is not None]


def unix_seconds(session: AnySession, time: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
    """A time as Unix seconds from the database: making a datetime of each first is slow where there are many."""
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return cast(extract("epoch", time), Double) if is_postgresql else time.expression


def insert_into(session: WriteSession, kind: type[Base]) -> postgresql.Insert | sqlite.Insert:
    """INSERT that can say what happens to rows that are there already, in the dialect of the session."""
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return postgresql.insert(kind) if is_postgresql else sqlite.insert(kind)


def compare_and_set(
    session: WriteSession, row: Base, *unchanged: ColumnElement[bool], reread: bool = True, **values: Any
) -> bool:
    """Write ``values`` if the stored row is still ``unchanged``, and read it again; false if another came first.

    Without ``reread``, a row that another changed stays as it was read.
    """
    key = inspect(type(row)).primary_key
    statement = (
        update(type(row))
        .where(*(column == getattr(row, str(column.key)) for column in key), *unchanged)
        .values(**values)
        .returning(*key)
        .execution_options(synchronize_session=False)
    )
    written = session.execute(statement).first() is not None
    if written or reread:
        session.refresh(row)
    return written
