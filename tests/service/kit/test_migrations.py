"""The schema that migrations build is the one that the models describe, on both databases, forth and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import inspect, text

from probes.frame import Axis
from service.kit import migrate
from service.kit.db import Database
from service.telemetry.blocks import Block
from service.telemetry.blocks_postgres import PostgresBlockStore


@pytest.fixture
def database(empty_database_url: str) -> Iterator[Database]:
    made = Database(empty_database_url)
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


@pytest.mark.postgres
def test_the_tables_of_the_block_store_are_its_own(postgres_url: str) -> None:
    database = Database(postgres_url)
    migrate.upgrade(database)
    store = PostgresBlockStore(database.engine)
    store.append([Block("n1", Axis.TIME, "s", 1, 3600.0, 3601.0, b"x")])
    migrate.drift(database)
    migrate.downgrade(database, "base")
    assert [block.sequence for block in store.read(0.0, 9000.0, axis=Axis.TIME)] == [1]
    database.close()


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    migrate.upgrade(database)
    migrate.upgrade(database)
    migrate.drift(database)


def test_nodes_that_are_there_get_their_number_of_gpus(database: Database) -> None:
    migrate.upgrade(database, "0012")
    said = "'', '', '', '', '', ''"
    with database.session() as session:
        for name in ("n1", "n2"):
            session.execute(text(
                "INSERT INTO nodes (name, state, state_reason, hostname, os, kernel, version, boot_id, cohort, rack,"
                " state_version, owner, actor, cpu_count, memory_bytes, first_seen_at)"
                f" VALUES ('{name}', 'healthy', '', {said}, '', 0, 'machine', 'mainstay', 0, 0, {_now(database)})"
            ))  # fmt: skip
        for device, kind, present in (("gpu0", "gpu", "true"), ("gpu1", "gpu", "false"), ("nic0", "nic", "true")):
            session.execute(text(
                'INSERT INTO devices (node, id, "index", kind, model, facts, present, first_seen_at, last_seen_at)'
                f" VALUES ('n1', '{device}', 0, '{kind}', '', '{{}}', {present}, {_now(database)}, {_now(database)})"
            ))  # fmt: skip
    migrate.upgrade(database)
    with database.reading() as session:
        counted = session.execute(text("SELECT name, gpus FROM nodes ORDER BY name")).all()
    assert [tuple(row) for row in counted] == [("n1", 1), ("n2", 0)]


def _now(database: Database) -> str:
    return "1.0" if database.is_sqlite else "now()"
