"""The schema that migrations build is the one that the models describe, on both databases, forth and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import inspect

from service.kit import migrate
from service.kit.db import Database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    made.close()


def test_models_and_migrations_agree(database: Database) -> None:
    migrate.upgrade(database)
    migrate.drift(database)
    assert migrate.is_current(database)


def test_down_and_up_again(database: Database) -> None:
    migrate.upgrade(database)
    tables = set(inspect(database.engine).get_table_names())
    migrate.downgrade(database, "base")
    assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}
    assert not migrate.is_current(database)
    migrate.upgrade(database)
    assert set(inspect(database.engine).get_table_names()) == tables
    migrate.drift(database)


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    migrate.upgrade(database)
    migrate.upgrade(database)
    migrate.drift(database)
