"""What tests do to a schema and the program never does."""

from __future__ import annotations

from alembic import command

from mainstay.service.common.db import Database
from mainstay.service.common.migrate import altering, config


def downgrade(database: Database, revision: str) -> None:
    with altering(database) as connection:
        command.downgrade(config(connection), revision)


def drift(database: Database) -> None:
    """Raise ``alembic.util.CommandError`` when models and migrations disagree."""
    with database.engine.execution_options(mainstay_writes=True).begin() as connection:
        command.check(config(connection))
