"""Alembic's entry: the connection comes from the program, or from the settings when ``alembic`` is run by hand."""

from __future__ import annotations

from alembic import context
from sqlalchemy.engine import Connection

from mainstay.service.common.db import Database
from mainstay.service.common.migrate import altering
from mainstay.service.config.load import load
from mainstay.service.models import Base


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        # SQLite cannot alter a table in place: Alembic copies it.
        render_as_batch=connection.dialect.name == "sqlite",
        include_object=_ours,
    )
    if connection.dialect.name == "postgresql":
        # Better to fail and try again than to queue every request behind a migration that waits for a lock.
        connection.exec_driver_sql("SET lock_timeout = '5s'")
    with context.begin_transaction():
        context.run_migrations()


def _ours(_obj: object, name: str | None, kind: str, _reflected: bool, _compared: object) -> bool:
    # The block store makes its own table, and its hourly partitions come and go by themselves.
    is_store = name is not None and (
        name in {"blocks", "block_commits", "block_members"} or name.startswith("blocks_h")
    )
    return not (kind == "table" and is_store)


def main() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run(connection)
        return
    database = Database(load().settings.resolved_database_url)
    with altering(database) as opened:
        run(opened)
    database.close()


main()
