"""The schema that migrations build is the one that the models describe, on both databases, forth and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import inspect

from mainstay.service.common import db, migrate
from mainstay.service.common.db import Database
from mainstay.service.stream import changes
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.stream.position import START
from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.blocks_postgres import PostgresBlockStore
from tests.service.common import schema
from tests.service.conftest import wait_until


@pytest.fixture
def database(empty_database_url: str) -> Iterator[Database]:
    made = Database(empty_database_url)
    yield made
    made.close()


def test_models_and_migrations_agree(database: Database) -> None:
    migrate.upgrade(database)
    schema.drift(database)
    assert migrate.is_current(database)


def test_down_and_up_again(database: Database) -> None:
    migrate.upgrade(database)
    tables = set(inspect(database.engine).get_table_names())
    schema.downgrade(database, "base")
    assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}
    assert not migrate.is_current(database)
    migrate.upgrade(database)
    assert set(inspect(database.engine).get_table_names()) == tables
    schema.drift(database)


def test_a_process_of_the_version_before_works_on_the_new_schema(database: Database) -> None:
    """Since 0008 several processes share a database, and an upgrade restarts one after another."""
    revisions = [revision for revision in sorted(migrate.known_revisions()) if revision >= "0008"]
    before: dict[tuple[str, str], tuple[str, bool]] = {}
    for revision in revisions:
        migrate.upgrade(database, revision)
        inspector = inspect(database.engine)
        now = {(table, c["name"]): c for table in inspector.get_table_names() for c in inspector.get_columns(table)}
        shape = {place: (str(column["type"]), column["nullable"]) for place, column in now.items()}
        assert before.items() <= shape.items(), f"{revision} takes or changes columns that the version before uses"
        tables = {table for table, _ in before}
        unknown = [place for place in now.keys() - before.keys() if place[0] in tables]
        needed = [place for place in unknown if not now[place]["nullable"] and now[place]["default"] is None]
        assert not needed, f"{revision}: the version before cannot add a row, as it knows no {needed}"
        before = shape


@pytest.mark.postgres
def test_a_migration_may_pause(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "WRITER_IDLE_SECONDS", 0.1)
    database = Database(postgres_url)
    with migrate.altering(database) as connection:
        limit = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one()
        assert limit == "5min", "PostgreSQL ended a migration that took seconds between two statements"
    database.close()


@pytest.mark.postgres
def test_the_tables_of_the_block_store_are_its_own(postgres_url: str) -> None:
    database = Database(postgres_url)
    migrate.upgrade(database)
    store = PostgresBlockStore(database.engine)
    store.append([StoredBlock("n1", BlockKind.TIME, "s", 1, 3600.0, 3601.0, b"x")])
    schema.drift(database)
    schema.downgrade(database, "base")
    assert [block.sequence for block in store.read(0.0, 9000.0, kinds=[BlockKind.TIME])] == [1]
    database.close()


def test_changes_from_before_they_had_a_transaction_keep_their_order(database: Database) -> None:
    migrate.upgrade(database, "0006")
    old = "INSERT INTO changes (topic, data, created_at) VALUES ('node', '{{\"id\": \"{0}\"}}', {1})"
    at = "0" if database.is_sqlite else "now()"
    with database.session() as session:
        for name in "cab":
            session.connection().exec_driver_sql(old.format(name, at))
    migrate.upgrade(database)
    with database.session() as session:
        record_change(session, Topic.NODE, {"id": "new"})

    def seen() -> list[str]:
        with database.reading() as session:
            return [row.data["id"] for row in changes.after(session, START) or ()]

    wait_until(lambda: seen() == ["c", "a", "b", "new"])


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    migrate.upgrade(database)
    migrate.upgrade(database)
    schema.drift(database)
