"""The services of one worker compile each SQL statement once.

SQLAlchemy keeps compiled statements by engine and dialect object, and each test has an engine of its own: a third of
what a service cost from its start to its end was to compile what the test before had compiled.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy.engine.default import DefaultDialect

from mainstay.service.common import db


def _kind(dialect: DefaultDialect) -> tuple[object, ...]:
    return type(dialect), dialect.server_version_info, dialect.default_schema_name


def share_statements() -> None:
    """From now on dialects of one kind are equal, and all ``Database`` objects have one cache."""
    if isinstance(db.create_engine, partial):
        return
    DefaultDialect.__hash__ = lambda self: hash(_kind(self))  # type: ignore[method-assign, assignment]
    DefaultDialect.__eq__ = lambda self, other: (  # type: ignore[method-assign, assignment]
        isinstance(other, DefaultDialect) and _kind(self) == _kind(other)
    )
    db.create_engine = partial(db.create_engine, execution_options={"compiled_cache": {}})  # type: ignore[attr-defined]
