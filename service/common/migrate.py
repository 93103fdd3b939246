"""Alembic from inside the program: the embedded shape migrates itself when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from mainstay.service.common.db import IDLE_SECONDS, Database

MIGRATIONS: Final = Path(__file__).parents[2] / "migrations"
_LOCK: Final = 7_233_001  # arbitrary and ours: two processes that start together migrate one after the other


def config(connection: Connection) -> Config:
    made = Config()
    made.set_main_option("script_location", str(MIGRATIONS))
    made.attributes["connection"] = connection
    return made


@contextmanager
def altering(database: Database) -> Iterator[Connection]:
    """A transaction that may change tables; a copied table keeps the rows that refer to it.

    SQLite cannot alter most of a table: it is copied and dropped, and dropping it would delete, by cascade, each row
    that refers to it. So references are not followed meanwhile (they cannot be switched off inside a transaction),
    and all are checked before the commit.

    Raises:
        RuntimeError: a reference leads nowhere afterwards; nothing is committed.
    """
    with database.engine.execution_options(mainstay_writes=True).connect() as connection:
        raw: Any = connection.connection.driver_connection
        if database.is_sqlite:
            raw.execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                if not database.is_sqlite:  # on a busy host, seconds go by between two statements of a migration
                    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all() if database.is_sqlite else []
                if broken:
                    raise RuntimeError(f"the migration left {len(broken)} references that lead nowhere: {broken[0]}")
        finally:
            if database.is_sqlite:
                raw.execute("PRAGMA foreign_keys=ON")


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema to ``revision``; harmless when it is there already."""
    if revision == "head" and is_current(database):
        return
    with altering(database) as connection:
        if not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        command.upgrade(config(connection), revision)


def unknown_revisions(database: Database) -> frozenset[str]:
    """Revisions of the schema that this version does not know: a newer version made them."""
    heads = revisions(database)
    return frozenset() if heads == _newest() else heads - known_revisions()


def known_revisions() -> frozenset[str]:
    """Revisions up to that of this version."""
    return frozenset(script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions())


def revisions(database: Database) -> frozenset[str]:
    """The revision at which the schema stands; empty without a schema."""
    with database.engine.connect() as connection:
        return frozenset(MigrationContext.configure(connection).get_current_heads())


def is_current(database: Database) -> bool:
    """Whether the schema stands at the newest revision."""
    return revisions(database) == _newest()


@cache
def _newest() -> frozenset[str]:
    """The newest revisions: read once a process, because that executes every migration script."""
    return frozenset(ScriptDirectory(str(MIGRATIONS)).get_heads())
